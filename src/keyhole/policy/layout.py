"""Where the tables, pairs and values of a TOML file begin and end, as offsets into its text.

Used by `edit.py`. The scanner of `document.py` finds the places; this one also keeps where they
end.
"""

from __future__ import annotations

from typing import NamedTuple

from keyhole.policy.document import Path, TomlScanner


class TomlPair(NamedTuple):
    """A key with its value that stands on its own below a heading, not in an inline table."""

    path: Path
    section: Path
    """The heading that it stands below; empty: none."""
    start: int
    end: int


class TomlLayout(TomlScanner):
    """The places of a text that is known to be TOML."""

    def __init__(self, text: str) -> None:
        super().__init__(text, {}, {})
        self.headings: dict[Path, int] = {}
        """By table: where its heading ends."""
        self.pairs: list[TomlPair] = []
        self.extents: dict[Path, tuple[int, int]] = {}
        """By path: where a value begins and ends."""
        self._section: Path = ()
        self._depth = 0
        self.scan()

    def _header(self) -> Path:
        self._section = super()._header()
        self.headings[self._section] = self.at
        return self._section

    def _pair(self, prefix: Path) -> Path:
        start = self.at
        path = super()._pair(prefix)
        if not self._depth:
            self.pairs.append(TomlPair(path, self._section, start, self.at))
        return path

    def _sequence(self, end: str, path: Path) -> None:
        self._depth += 1
        super()._sequence(end, path)
        self._depth -= 1

    def _value(self, path: Path) -> None:
        start = self.at
        super()._value(path)
        self.extents[path] = (start, self.at)
