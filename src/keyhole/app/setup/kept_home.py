"""The home and caches that outlive a bubblewrap sandbox, opened for one run.

Called when a run is surveyed. The policy's word wins; without one, an agent that is run by name
keeps its home, and presets keep the caches of their package managers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.kept_settings import MAX_KEPT
from keyhole.model.errors import Refused
from keyhole.model.quantity import format_size
from keyhole.policy.schema import HomeMode, RuntimeName
from keyhole.sandbox.homes.caches import (
    CACHE_PLACES,
    cache_directory,
    cache_variables,
    chosen_caches,
)
from keyhole.sandbox.homes.home_store import HomeKey, HomeOwner, HomeStore
from keyhole.sandbox.homes.tree_size import measure_trees

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.policy.policy import Policy
    from keyhole.sandbox.homes.home_store import OpenHome
    from keyhole.sandbox.identity import Identity


class HomeRequest(Struct, frozen=True):
    """The sandbox that may keep something."""

    policy: Policy
    file: Path
    """The policy's file."""
    homes: Path
    """Where kept homes are."""
    keeps: bool
    """Whether it keeps its home unless the policy says otherwise."""
    name: str = ""
    """The name of a named sandbox, which has a home of its own."""


class SandboxHome(Struct, frozen=True):
    """The kept directories of one sandbox; by default none."""

    opened: OpenHome | None = None
    home: str = ""
    """The kept home; empty: the sandbox has a fresh one."""
    caches: tuple[tuple[str, str], ...] = ()
    """Kept directories, each with its place below the home."""
    variables: tuple[tuple[str, str], ...] = ()

    def read(self, path: str) -> bytes | None:
        """A settings file below the kept home, as an earlier sandbox left it."""
        return self.opened.read(path, MAX_KEPT) if self.opened and self.home else None

    @property
    def trees(self) -> tuple[str, ...]:
        """The directories that the sandbox can write."""
        return (*((self.home,) if self.home else ()), *(source for source, _ in self.caches))

    def close(self) -> None:
        """Let go of it."""
        if self.opened is not None:
            self.opened.close()


def open_home(request: HomeRequest, who: Identity) -> SandboxHome:
    """Open what this sandbox keeps. Raises Refused."""
    sandbox = request.policy.sandbox
    if sandbox.runtime is not RuntimeName.BWRAP:
        if sandbox.home is HomeMode.KEEP or sandbox.caches:
            raise Refused(
                "sandbox.home and sandbox.caches are kept for bwrap alone; a container keeps "
                "directories by sandbox.volumes, or its home if it has a name (`keyhole new`)"
            )
        return SandboxHome()
    keeps = request.keeps if sandbox.home is None else sandbox.home is HomeMode.KEEP
    keeps = keeps or bool(request.name)
    caches = chosen_caches(sandbox.caches, request.policy.presets)
    if not keeps and not caches:
        return SandboxHome()
    # Where root runs an ordinary user's project, the sandbox is that user's.
    owner = None if who.maps_root else HomeOwner(who.uid, who.gid)
    key = HomeKey.of(request.file.parent, request.file, request.name)
    opened = HomeStore(request.homes).open(key, owner)
    try:
        _refuse_full(opened, request.policy.limits.home)
        places = [place for cache in caches for place in CACHE_PLACES[cache]]
        return SandboxHome(
            opened,
            str(opened.home) if keeps else "",
            tuple((str(opened.cache(cache_directory(place))), place) for place in places),
            tuple(cache_variables(caches).items()),
        )
    except BaseException:
        opened.close()
        raise


def _refuse_full(opened: OpenHome, most: int) -> None:
    """Refuse a home that is over the bound. It is measured only if it was large before: most
    starts do not wait for that."""
    if opened.known_size > most and measure_trees(opened.trees).bytes > most:
        raise Refused(
            f"the kept home and caches hold more than limits.home ({format_size(most)}); "
            "`keyhole home reset` empties them, or raise the limit in the policy"
        )
