"""Reads pip's settings the way pip does, and the default that is built into it.

Called by `python`. It does not run pip: that would take seconds, and a `pip` on PATH is often the
one of a virtual environment. The default comes from pip's own code; this module names no index.
"""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.package_indexes import PackageIndex, PackageIndexes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.host.preset_draft import PresetDraft

_SECTIONS = ("global", "download", "install")
"""Sections for `pip install`; later ones win."""

_INDEX_MODULE = "pip._internal.models.index"
_ASK = (
    f"import json; from {_INDEX_MODULE} import PyPI; "
    "print(json.dumps([PyPI.simple_url, PyPI.file_storage_domain]))"
)


class BuiltinIndex(Struct, frozen=True):
    """The index that pip uses unless told otherwise, and the host of its files."""

    index: str
    files: str


def indexes(draft: PresetDraft) -> PackageIndexes:
    """The indexes of files and variables; a variable wins over any file."""
    files = [_read(draft, path) for path in _files(draft.surroundings)]
    found: dict[str, tuple[str, str]] = {}
    for section in _SECTIONS:
        for where, parser in files:
            found |= {key: (value, where) for key, value in _settings(parser, section)}
    for key in ("index-url", "extra-index-url", "find-links"):
        variable = "PIP_" + key.upper().replace("-", "_")
        value = draft.surroundings.env.get(variable, "")
        if value.strip():
            found[key] = (value, variable)

    def all_of(key: str) -> tuple[PackageIndex, ...]:
        value, where = found.get(key, ("", ""))
        return tuple(PackageIndex(url, where) for url in value.split())

    return PackageIndexes(
        next(iter(all_of("index-url")), None), all_of("extra-index-url"), all_of("find-links")
    )


def _files(surroundings: HostEnvironment) -> Iterator[Path]:
    """pip's files; later ones win (pip's documentation, "Configuration")."""
    chosen = surroundings.env.get("PIP_CONFIG_FILE", "")
    if chosen == "/dev/null":
        return
    for directory in surroundings.config_dirs():
        yield directory / "pip" / "pip.conf"
    yield surroundings.at("/etc/pip.conf")
    override = surroundings.expand(chosen) if chosen else None
    if override is None or not override.exists():
        yield surroundings.home / ".pip" / "pip.conf"
        yield surroundings.config_home() / "pip" / "pip.conf"
    environment = surroundings.env.get("VIRTUAL_ENV", "")
    if environment:
        # In the project's .venv the sandbox can write this file; `PresetDraft.read` leaves it out.
        yield Path(environment) / "pip.conf"
    if override is not None:
        yield override


def _read(draft: PresetDraft, path: Path) -> tuple[str, configparser.RawConfigParser]:
    shown = draft.surroundings.shown(path)
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(draft.read(path) or "")
    except configparser.Error:
        draft.note(f"{shown} is not read: its syntax is off")
        return shown, configparser.RawConfigParser()
    return shown, parser


def _settings(parser: configparser.RawConfigParser, section: str) -> Iterator[tuple[str, str]]:
    """One section's values by normalised key, without empty ones, which pip ignores."""
    for key, value in parser.items(section) if parser.has_section(section) else ():
        if value.strip():
            yield key.lower().replace("_", "-").removeprefix("--"), value


def builtin(surroundings: HostEnvironment) -> BuiltinIndex | None:
    """pip's default, from the pip beside Keyhole or else from another Python's."""
    return _own_builtin(surroundings) or _asked_builtin(surroundings)


def _own_builtin(surroundings: HostEnvironment) -> BuiltinIndex | None:
    spec = importlib.util.find_spec("pip")
    # Under `python -m keyhole` the current directory is searched first: a project with a `pip`
    # package would run its code here, outside the sandbox.
    if spec is None or spec.origin is None or not surroundings.trusts(Path(spec.origin)):
        return None
    try:
        index = importlib.import_module(_INDEX_MODULE).PyPI
        return _builtin(index.simple_url, index.file_storage_domain)
    except (ImportError, AttributeError):
        return None


def _asked_builtin(surroundings: HostEnvironment) -> BuiltinIndex | None:
    python = surroundings.program("python3")
    said = surroundings.ask(python, "-I", "-c", _ASK) if python else None
    try:
        index, files = json.loads(said or "")
    except (ValueError, TypeError):
        return None
    return _builtin(index, files)


def _builtin(index: object, files: object) -> BuiltinIndex | None:
    return BuiltinIndex(index, files) if isinstance(index, str) and isinstance(files, str) else None
