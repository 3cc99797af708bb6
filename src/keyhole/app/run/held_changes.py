"""The views of one run: opened before it starts, and summed up when it has ended.

Used by `keyhole run`, and by the supervisor of a named sandbox, where `sandbox.changes` is
`review`. The lock is held while the sandbox runs: no other run, apply or discard touches the same
layer meanwhile.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.run.change_audit import hold_recorded
from keyhole.changes.change_store import ChangeStore
from keyhole.changes.overlay_trials import OverlayTrials
from keyhole.changes.scratch_layer import scratch_layer
from keyhole.model.errors import KeyholeError, ResourceUnusable
from keyhole.model.text import visible
from keyhole.sandbox.bwrap.overlay_trial import NO_OVERLAY, can_mount_overlay
from keyhole.sandbox.files.mount_plan import BinaryFile, Bind, Mask, SeedFile, Symlink, TextFile
from keyhole.sandbox.launch import ReviewView

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.launch_preparation import PreparedLaunch
    from keyhole.changes.change_store import ReviewedTree
    from keyhole.sandbox.files.mount_plan import Entry
    from keyhole.sandbox.launch import Launch

_SHOWN = "`keyhole changes` shows {0}, `keyhole apply` takes {0} over"


def change_store(directory: Path, policy: Path | str) -> ChangeStore:
    """The changes that belong to a policy file and its project."""
    path = os.path.realpath(policy)
    return ChangeStore(directory, os.path.dirname(path), path)


def recovered_lines(store: ChangeStore) -> list[str]:
    """Lines about acts of killed processes that were finished just now."""
    more = {"apply": "; to take it back: keyhole undo"}
    return [
        f"the last {act} had been interrupted, and was finished now{more.get(act, '')}"
        for act, _ in store.recovered
    ]


class HeldChanges:
    """The views of one run."""

    def __init__(
        self,
        store: ChangeStore,
        prepared: PreparedLaunch,
        session: str,
        *,
        name: str = "",
        fault: str = "",
    ) -> None:
        self._store = store
        self._prepared = prepared
        self._session = session
        self._holder = f"{name} (`keyhole stop {name}` ends it)" if name else f"session {session}"
        self._fault = fault
        self._views: tuple[ReviewedTree, ...] = ()
        self._copies = False
        """Whether each view is a copy: in a container, and where overlayfs is refused."""
        self._lock: int | None = None

    def begin(self, audit: Path) -> str:
        """Open the views. Returns a line about changes of earlier runs, or an empty text. Raises
        Refused while another run has them, ResourceUnusable."""
        plan, base = self._prepared.plan, self._prepared.base
        try:
            self._lock = hold_recorded(audit, self._store, self._holder)
            self._copies = self._needs_copies()
            self._views, pending = self._store.open_views(
                plan.reviewed,
                plan.watched,
                (base.uid, base.gid),
                self._session,
                self._hidden() if self._copies else None,
            )
        except OSError as error:
            raise ResourceUnusable(
                f"the changes cannot be held for review: {visible(str(error))}"
            ) from None
        # On a thread that ends with this process: removing can take long, and can be done later.
        threading.Thread(target=self._store.empty_trash, args=(None,), daemon=True).start()
        lines = recovered_lines(self._store)
        if pending:
            count = f"the sandbox goes on with {_counted(pending)} of earlier runs"
            lines.append(f"{count}: {_shown(pending)}")
        return ". ".join(lines)

    def _needs_copies(self) -> bool:
        prepared = self._prepared
        if prepared.container_target is not None or NO_OVERLAY in self._fault.split(","):
            return True
        known = OverlayTrials(self._store.directory / "overlays")
        owner, bwrap = (prepared.base.uid, prepared.base.gid), prepared.base.bwrap
        for tree in prepared.plan.reviewed:
            if known.holds(tree):
                continue
            with scratch_layer(str(self._store.directory), owner) as layer:
                if not can_mount_overlay(tree, layer, bwrap):
                    return True
            known.keep(tree)
        return False

    def _hidden(self) -> set[str]:
        """Paths in the trees that are covered inside, so that their content is not needed."""
        return {
            entry.target
            for entry in self._prepared.base.files
            if isinstance(entry, Mask | TextFile | BinaryFile)
        }

    def fit(self, launch: Launch) -> Launch:
        """The launch with its views, and without covers of files that the view does not show."""
        trees = [view.path for view in self._views]
        inside = [
            entry.target
            for entry in launch.files
            if any(entry.target.startswith(f"{tree}/") for tree in trees)
        ]
        hidden = set(inside) - self._store.shown_covers(self._views, inside)
        files = tuple(entry for entry in launch.files if _stays(entry, hidden))
        if self._copies:
            files = tuple(map(self._from_copy, files))
        launch = replace(launch, files=files, record=self._store.prepare_sandbox_record())
        if self._copies:
            return replace(launch, views=())
        views = tuple(ReviewView(view.path, view.directory) for view in self._views)
        return replace(launch, views=views)

    def _from_copy(self, entry: Entry) -> Entry:
        """Whatever lies in a reviewed tree is bound from its copy, never from the tree itself."""
        if not isinstance(entry, Bind):
            return entry
        for view in self._views:
            if entry.source == view.path or entry.source.startswith(f"{view.path}/"):
                return replace(entry, source=view.copy + entry.source.removeprefix(view.path))
        return entry

    def finish(self) -> str:
        """A line about the changes that wait, after the sandbox has ended; empty if there are
        none."""
        try:
            if self._lock is not None:
                # A run that failed may leave its sandbox ending.
                self._store.refuse_living_sandbox(self._holder)
                self._store.collect()
            count = len(self._store.changes(marks=False))
        except (KeyholeError, OSError) as error:
            return f"the changes of this run cannot be counted: {visible(str(error))}"
        return f"{_counted(count)} held for review: {_shown(count)}" if count else ""

    def close(self) -> None:
        """Release the views."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _stays(entry: Entry, hidden: set[str]) -> bool:
    return isinstance(entry, SeedFile | Symlink) or entry.target not in hidden


def _counted(count: int) -> str:
    return f"{count} change{'' if count == 1 else 's'}"


def _shown(count: int) -> str:
    return _SHOWN.format("it" if count == 1 else "them")
