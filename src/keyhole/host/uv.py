"""Reads uv's settings of the user and the system; a project's settings are not trusted.

Called by `python`. uv does not read pip's settings, nor pip uv's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from keyhole.host.found_credential import FoundCredential
from keyhole.host.package_indexes import PackageIndex, PackageIndexes
from keyhole.model.errors import Unparsable
from keyhole.model.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.host.preset_draft import PresetDraft

_NAMED = re.compile(r"(?:([A-Za-z0-9._-]+)=)?(.+)")


def indexes(draft: PresetDraft) -> PackageIndexes:
    """The indexes of variables and files; the first that names a default wins."""
    main: list[PackageIndex] = []
    extra: list[PackageIndex] = []
    env = draft.surroundings.env
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        main += _of_variable(env.get(variable, ""), variable)
    for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        extra += _of_variable(env.get(variable, ""), variable)
    for path in _files(draft.surroundings):
        for index, is_main in _of_file(draft, path):
            (main if is_main else extra).append(index)
    return PackageIndexes(main[0] if main else None, tuple(extra))


def credential(surroundings: HostEnvironment, index: PackageIndex) -> FoundCredential | None:
    """The credential in `UV_INDEX_<NAME>_USERNAME` and `_PASSWORD` of an index."""
    stem = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", index.name.upper())
    user, password = (surroundings.env.get(f"{stem}_{x}", "") for x in ("USERNAME", "PASSWORD"))
    if not (index.name and password):
        return None
    try:
        return FoundCredential.basic(user, password).found_in(f"{stem}_PASSWORD")
    except Unparsable:
        return None


def _of_variable(value: str, where: str) -> Iterator[PackageIndex]:
    for word in value.split():
        found = _NAMED.fullmatch(word)
        if found:
            yield PackageIndex(found[2], where, found[1] or "")


def _files(surroundings: HostEnvironment) -> tuple[Path, ...]:
    """uv's files; the first wins (uv's documentation, "Configuration files")."""
    chosen = surroundings.env.get("UV_CONFIG_FILE", "")
    if chosen:
        return (surroundings.expand(chosen),)
    if surroundings.env.get("UV_NO_CONFIG", "").lower() in {"1", "true", "yes", "on"}:
        return ()
    directories = (surroundings.config_home(), *surroundings.config_dirs(), surroundings.at("/etc"))
    return tuple(directory / "uv" / "uv.toml" for directory in directories)


def _of_file(draft: PresetDraft, path: Path) -> Iterator[tuple[PackageIndex, bool]]:
    """Each index of a file, and whether it is the default."""
    shown = draft.surroundings.shown(path)
    try:
        tree = parse_toml(draft.read(path) or "")
    except (ValueError, RecursionError):
        draft.note(f"{shown} is not read: its syntax is off")
        return
    for table in _list(tree.get("index")):
        if isinstance(table, dict) and isinstance(table.get("url"), str):
            name = table.get("name")
            index = PackageIndex(table["url"], shown, name if isinstance(name, str) else "")
            yield index, table.get("default") is True
    section = tree.get("pip")
    for keys in (tree, section if isinstance(section, dict) else {}):
        if isinstance(keys.get("index-url"), str):
            yield PackageIndex(keys["index-url"], shown), True
        for url in _list(keys.get("extra-index-url")):
            if isinstance(url, str):
                yield PackageIndex(url, shown), False


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
