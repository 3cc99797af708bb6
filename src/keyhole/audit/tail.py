"""The lines of one file, read in pieces.

No descriptor is held between pieces, so that thousands of files can be merged or followed, and no
line takes more memory than the longest that Keyhole writes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.audit.log_line import MAX_LINE

if TYPE_CHECKING:
    from keyhole.audit.log_directory import LogDirectory

PIECE = 256 * 1024
"""Bytes that are read at once."""


class LogLine(Struct, frozen=True):
    """A line with its number; `data` is None if it is longer than Keyhole writes."""

    number: int
    data: bytes | None


class FileTail:
    """The part of a file that has not been read yet."""

    def __init__(self, directory: LogDirectory, name: str, offset: int = 0) -> None:
        """From an offset on, lines are counted from there; the rest of a line is returned as one,
        and is no event."""
        self.name = name
        self._directory = directory
        self._offset = offset
        self._number = 0
        self._rest = b""
        self._overlong = False

    @property
    def torn(self) -> bool:
        """Whether the part that was read ends within a line."""
        return bool(self._rest) or self._overlong

    @property
    def offset(self) -> int:
        """Bytes that were read."""
        return self._offset

    @property
    def whole(self) -> int:
        """Bytes up to the end of the last whole line that was read."""
        return self._offset - len(self._rest)

    def more(self) -> list[LogLine]:
        """The next lines; none at the present end of the file. OSError if the file is gone."""
        while True:
            descriptor = self._directory.read(self.name)
            try:
                piece = os.pread(descriptor, PIECE, self._offset)
            finally:
                os.close(descriptor)
            if not piece:
                return []
            self._offset += len(piece)
            lines = self._split(piece)
            if lines:
                return lines

    def _split(self, piece: bytes) -> list[LogLine]:
        first, *others = piece.split(b"\n")
        self._rest += first
        lines = []
        for part in others:
            self._number += 1
            too_long = self._overlong or len(self._rest) > MAX_LINE
            lines.append(LogLine(self._number, None if too_long else self._rest))
            self._rest, self._overlong = part, False
        if len(self._rest) > MAX_LINE:
            self._rest, self._overlong = b"", True
        return lines
