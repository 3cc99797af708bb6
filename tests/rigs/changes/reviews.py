"""A project and its view as two directories: the layer is written as overlayfs would write it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.changes.apply_plan import Selection, plan_apply
from keyhole.changes.change_store import ChangeStore
from keyhole.changes.upper_layer import OPAQUE

if TYPE_CHECKING:
    from keyhole.changes.change_store import ApplyOutcome
    from keyhole.changes.entry import ApplyPlan, FileChange


@dataclass(frozen=True)
class Review:
    """The person's tree, the upper directory of its view, and the store of both."""

    tree: Path
    upper: Path
    store: ChangeStore

    @classmethod
    def of(cls, top: Path, files: dict[str, str]) -> Review:
        """A project with these files, whose view has just been opened."""
        tree = top / "project"
        for name, text in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        tree.mkdir(exist_ok=True)
        store = ChangeStore(top / "changes", str(tree), str(tree / "keyhole.toml"))
        with store.holding("a run"):
            views, _ = store.open_views([str(tree)], [], (os.getuid(), os.getgid()))
        return cls(tree, top / views[0].upper, store)

    def begin_again(self) -> int:
        """The next run begins; how many changes it goes on with."""
        with self.store.holding("a run"):
            return self.store.open_views([str(self.tree)], [], (os.getuid(), os.getgid()))[1]

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        """The sandbox writes a file."""
        path = self.upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        """The sandbox makes a link."""
        (self.upper / name).parent.mkdir(parents=True, exist_ok=True)
        (self.upper / name).symlink_to(target)

    def remove(self, name: str) -> None:
        """The sandbox removes a file or a whole directory."""
        (self.upper / name).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.upper / name, stat.S_IFCHR, os.makedev(0, 0))

    def replace_directory(self, name: str) -> None:
        """The sandbox removes a directory and makes it anew."""
        (self.upper / name).mkdir(parents=True)
        os.setxattr(self.upper / name, OPAQUE, b"y")

    def changes(self) -> dict[str, FileChange]:
        """The pending changes by their path in the tree."""
        return {change.name: change for change in self.store.changes()}

    def said(self) -> dict[str, str]:
        """What was done to each path; directories end with a slash."""
        return {
            f"{name}/" if change.kind == "directory" else name: str(change.change)
            for name, change in self.changes().items()
        }

    def plan(self, *names: str, replaces: bool = False) -> ApplyPlan:
        """The plan of `keyhole apply NAMES`."""
        named = tuple(str(self.tree / name) for name in names)
        return plan_apply(self.store.changes(), Selection(named, replaces))

    def apply(self, *names: str, replaces: bool = False) -> ApplyOutcome:
        """`keyhole apply NAMES`."""
        with self.store.holding("apply"):
            return self.store.apply(self.plan(*names, replaces=replaces))

    def held(self, *names: str) -> dict[str, str]:
        """What `keyhole apply NAMES` would hold back, and why."""
        return {each.change.name: str(each.reason) for each in self.plan(*names).held}

    def undo(self) -> ApplyOutcome:
        """`keyhole undo`."""
        with self.store.holding("undo"):
            return self.store.undo()

    def discard(self, *names: str) -> None:
        """`keyhole discard NAMES`."""
        chosen = Selection(tuple(str(self.tree / name) for name in names))
        with self.store.holding("discard"):
            found = [change for change in self.store.changes() if chosen.covers(change)]
            self.store.discard(found if names else None)

    def files(self) -> dict[str, str]:
        """The person's files: their content, or the target of a link."""
        return {
            str(path.relative_to(self.tree)): f"-> {path.readlink()}"
            if path.is_symlink()
            else path.read_text()
            for path in sorted(self.tree.rglob("*"))
            if path.is_symlink() or path.is_file()
        }
