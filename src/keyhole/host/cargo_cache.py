"""Asks cargo for its default index, and reads from its cache where registries keep crates.

Called by `cargo`. The default is asked of cargo, not guessed from its cache: the
.cargo/config.toml of a cloned project may have brought any registry into that cache.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host import cargo_settings

if TYPE_CHECKING:
    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.host.preset_draft import PresetDraft

WHERE = "cargo's cache of the index"

_KEPT = ("RUSTUP_HOME", "RUSTUP_TOOLCHAIN")
_CONFIG_URL = re.compile(r"`(https://[^`\s]+/)config\.json`")
_HASHED = re.compile(r"(.+)-[0-9a-f]{16}")

MAX_CACHES = 256
"""Registries that are read from cargo's cache."""


class Downloads(Struct, frozen=True):
    """The URLs of an index's config.json: of crates, and of the API where there is one."""

    urls: tuple[str, ...]


def default_index(surroundings: HostEnvironment) -> str | None:
    """The URL of cargo's built-in index; nothing is sent to it.

    cargo is given a proxy of a kind that does not exist, and its error message names the URL that
    it could not reach. Its home is empty meanwhile, so that no setting has an effect.
    """
    cargo = surroundings.program("cargo")
    scratch = _scratch(surroundings)
    if cargo is None or scratch is None:
        return None
    with tempfile.TemporaryDirectory(prefix="keyhole-", dir=scratch) as empty:
        env = {
            "CARGO_HOME": empty,
            "CARGO_HTTP_PROXY": "none://keyhole",
            "CARGO_NET_RETRY": "0",
            # By default rustup keeps its toolchains under HOME, which stays.
            **surroundings.pick(_KEPT),
        }
        said = surroundings.ask(cargo, "search", "keyhole", env=env, complaint=True)
    found = _CONFIG_URL.search(said or "")
    return found[1] if found else None


def downloads(draft: PresetDraft, index: FetchLocation) -> Downloads | None:
    """The URL of the crates of a cached index; None if it was never used or is ambiguous."""
    found = {
        cached
        for path in _caches(cargo_settings.home(draft) / "registry" / "index")
        if _host_of(path.name) == index.pattern.host.name
        if (cached := _parse(draft.read(path / "config.json")))
    }
    # Two registries of one host look alike here, so neither is trusted.
    return found.pop() if len(found) == 1 else None


def _scratch(surroundings: HostEnvironment) -> Path | None:
    """A directory for temporary files in which the sandbox cannot leave settings."""
    usual = Path("/tmp")  # noqa: S108 - the directory made in it has a random name and mode 0700
    places = (Path(surroundings.env.get("TMPDIR", "")), usual)
    return next((p for p in places if surroundings.trusts(p) and p.is_dir()), None)


def _caches(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())[:MAX_CACHES]
    except OSError:
        return []


def _host_of(name: str) -> str | None:
    found = _HASHED.fullmatch(name)
    return found[1] if found else None


def _parse(text: str | None) -> Downloads | None:
    try:
        tree = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("dl"), str):
        return None
    # `dl` may be a template: https://host/crates/{crate}/{version}/download
    crates = tree["dl"].partition("{")[0]
    if crates != tree["dl"]:
        crates = crates.rpartition("/")[0]
    api = tree.get("api")
    return Downloads((crates, api) if isinstance(api, str) else (crates,))
