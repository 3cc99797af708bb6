"""Reads apt's sources, in the one-line and in the deb822 form, into URIs.

Called by `debian`. See sources.list(5); disabled entries, and files that apt itself ignores, are
left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_LINE = re.compile(r"deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)\s")
# apt's StringToBool; anything else leaves an entry on.
_OFF = frozenset({"no", "false", "without", "off", "disable", "0"})
# sources.list(5): other names are ignored, such as those that dpkg and upgrades leave.
_FILE_NAME = re.compile(r"[A-Za-z0-9_.-]+\.(list|sources)")


def reads(name: str) -> bool:
    """Whether apt reads a file of this name in sources.list.d."""
    return _FILE_NAME.fullmatch(name) is not None


def uris(name: str, text: str) -> tuple[str, ...]:
    """The URIs of a file, in the form that its name says."""
    return tuple(_deb822(text) if name.endswith(".sources") else _one_line(text))


def _one_line(text: str) -> Iterator[str]:
    for line in text.splitlines():
        found = _ONE_LINE.match(line.partition("#")[0].strip() + " ")
        if found:
            yield found[1].strip('"')


def _deb822(text: str) -> Iterator[str]:
    # A comment ends neither a stanza nor an entry of several lines.
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", lines):
        fields = _fields(stanza)
        if fields.get("enabled", "yes").strip().lower() not in _OFF:
            yield from fields.get("uris", "").split()


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1].isspace():
            if name:
                fields[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value
    return fields
