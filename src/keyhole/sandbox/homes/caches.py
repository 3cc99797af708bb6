"""The caches of package managers that are kept: where each lies in the home, and who asks for it.

Pure. The directories are Keyhole's own, for each project and policy: a package that hostile code
puts into a cache must not reach the host, nor the sandboxes of another project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.policy.schema import CacheName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CACHE_PLACES: Mapping[CacheName, tuple[str, ...]] = {
    CacheName.PIP: (".cache/pip",),
    CacheName.UV: (".cache/uv",),
    CacheName.NPM: (".npm",),
    CacheName.CARGO: (".cargo/registry", ".cargo/git"),
    CacheName.GO: ("go/pkg/mod", ".cache/go-build"),
    CacheName.MAVEN: (".m2/repository",),
}
"""The usual directories of each cache, below the home."""

OF_PRESETS: Mapping[str, tuple[CacheName, ...]] = {
    "python": (CacheName.PIP, CacheName.UV),
    "node": (CacheName.NPM,),
    "cargo": (CacheName.CARGO,),
    "go": (CacheName.GO,),
    "maven": (CacheName.MAVEN,),
}
"""The caches that come with a preset, unless the policy has a list of its own."""

_VARIABLES: Mapping[CacheName, tuple[tuple[str, str], ...]] = {
    # A cache is a mount of its own, so uv cannot link files from it, and would warn each time.
    CacheName.UV: (("UV_LINK_MODE", "copy"),),
}


def chosen_caches(
    named: tuple[CacheName, ...] | None, presets: Iterable[str]
) -> tuple[CacheName, ...]:
    """The caches of a sandbox: those that the policy names, else those of its presets."""
    if named is not None:
        return named
    return tuple(dict.fromkeys(c for preset in presets for c in OF_PRESETS.get(preset, ())))


def cache_variables(caches: Iterable[CacheName]) -> dict[str, str]:
    """Variables that package managers need with these caches."""
    return dict(pair for cache in caches for pair in _VARIABLES.get(cache, ()))


def cache_directory(place: str) -> str:
    """The name of the directory that keeps this place of the home."""
    return place.strip(".").replace("/", "-").replace(".", "")
