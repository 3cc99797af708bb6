"""What cargo itself knows: its default index, and where registries that it has used keep crates.

Called by `cargo`. Which host is the default is asked of cargo, not guessed from its cache: a cloned
project's .cargo/config.toml can have brought any registry into that cache.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host import cargosettings
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.host.draft import Draft
    from keyhole.host.location import Location
    from keyhole.host.surroundings import Surroundings

WHERE = "cargo's cache of the index"

_KEPT = ("RUSTUP_HOME", "RUSTUP_TOOLCHAIN")
_CONFIG_URL = re.compile(r"`(https://[^`\s]+/)config\.json`")
_HASHED = re.compile(r"(.+)-[0-9a-f]{16}")

MAX_CACHES = 256
"""Registries looked at in cargo's cache."""


@dataclass(frozen=True, slots=True)
class Downloads:
    """The URLs of an index's config.json: of crates, and of the API where there is one."""

    urls: tuple[str, ...]


def default_index(surroundings: Surroundings) -> str | None:
    """The URL of cargo's built-in index; nothing is sent to it.

    cargo is told to use a proxy of a kind that does not exist, and names in its complaint the URL
    that it did not reach. Its home is empty meanwhile, so that no setting takes part.
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


def downloads(draft: Draft, index: Location) -> Downloads | None:
    """Where the cached index of this host says its crates are; None if never used or in doubt."""
    found = {
        cached
        for path in _caches(cargosettings.home(draft) / "registry" / "index")
        if _host_of(path.name) == index.pattern.host.name
        if (cached := _parse(draft.read(path / "config.json")))
    }
    # Two registries of one host look alike here: believe neither rather than the wrong one.
    return found.pop() if len(found) == 1 else None


def _scratch(surroundings: Surroundings) -> Path | None:
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
