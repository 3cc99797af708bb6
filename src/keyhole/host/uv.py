"""Reads uv's settings of the user and the system; those of a project are the project's.

Called by `python`. uv does not read pip's settings, and pip not uv's.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from keyhole.host.credential import Credential
from keyhole.host.indexes import Index, Indexes
from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.host.draft import Draft
    from keyhole.host.surroundings import Surroundings

_NAMED = re.compile(r"(?:([A-Za-z0-9._-]+)=)?(.+)")


def indexes(draft: Draft) -> Indexes:
    """The indexes of variables and files; the first that names a default wins."""
    main: list[Index] = []
    extra: list[Index] = []
    env = draft.surroundings.env
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        main += _of_variable(env.get(variable, ""), variable)
    for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        extra += _of_variable(env.get(variable, ""), variable)
    for path in _files(draft.surroundings):
        for index, is_main in _of_file(draft, path):
            (main if is_main else extra).append(index)
    return Indexes(main[0] if main else None, tuple(extra))


def credential(surroundings: Surroundings, index: Index) -> Credential | None:
    """What `UV_INDEX_<NAME>_USERNAME` and `_PASSWORD` hold for an index."""
    stem = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", index.name.upper())
    user, password = (surroundings.env.get(f"{stem}_{x}", "") for x in ("USERNAME", "PASSWORD"))
    if not (index.name and password):
        return None
    try:
        return Credential.basic(user, password).found_in(f"{stem}_PASSWORD")
    except Unparsable:
        return None


def _of_variable(value: str, where: str) -> Iterator[Index]:
    for word in value.split():
        found = _NAMED.fullmatch(word)
        if found:
            yield Index(found[2], where, found[1] or "")


def _files(surroundings: Surroundings) -> tuple[Path, ...]:
    """uv's files, the strongest first (uv's documentation, "Configuration files")."""
    chosen = surroundings.env.get("UV_CONFIG_FILE", "")
    if chosen:
        return (surroundings.expand(chosen),)
    if surroundings.env.get("UV_NO_CONFIG", "").lower() in {"1", "true", "yes", "on"}:
        return ()
    directories = (surroundings.config_home(), *surroundings.config_dirs(), surroundings.at("/etc"))
    return tuple(directory / "uv" / "uv.toml" for directory in directories)


def _of_file(draft: Draft, path: Path) -> Iterator[tuple[Index, bool]]:
    """Each index of a file, and whether it is the default."""
    shown = draft.surroundings.shown(path)
    try:
        tree = tomllib.loads(draft.read(path) or "")
    except tomllib.TOMLDecodeError:
        draft.note(f"{shown} is not read: its syntax is off")
        return
    for table in _list(tree.get("index")):
        if isinstance(table, dict) and isinstance(table.get("url"), str):
            name = table.get("name")
            index = Index(table["url"], shown, name if isinstance(name, str) else "")
            yield index, table.get("default") is True
    section = tree.get("pip")
    for keys in (tree, section if isinstance(section, dict) else {}):
        if isinstance(keys.get("index-url"), str):
            yield Index(keys["index-url"], shown), True
        for url in _list(keys.get("extra-index-url")):
            if isinstance(url, str):
                yield Index(url, shown), False


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
