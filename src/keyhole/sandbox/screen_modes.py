"""Knows from a command's output whether a program has the whole screen, or the keyboard.

Used by `terminal.py` and `containers/console.py`: while it does, a line of Keyhole's would be
painted into the program's picture. The output is the sandbox's and may be anything; a wrong answer
only delays a line, and the end of the run shows it.
"""

from __future__ import annotations

import re

_MODES = re.compile(rb"\x1b\[\?([0-9;]{1,64})([hl])|\x1bc")
"""Private modes that are set or reset (DECSET, DECRST), and the terminal's full reset."""

_ALTERNATE = frozenset((b"47", b"1047", b"1049"))
_KEYBOARD = frozenset((b"1", b"1000", b"1002", b"1003", b"1004", b"2004"))
"""Application keys, mouse, focus and bracketed paste: set by editors, prompts and agents that read
keys one by one, and reset when a plain command runs."""
_CURSOR = b"25"

_MAX_CUT = 72
"""Bytes at the end of a piece that may be the beginning of a sequence."""


class ScreenModes:
    """Follows a command's output to a terminal, piece by piece."""

    def __init__(self) -> None:
        self._set: set[bytes] = set()
        self._cut = b""

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen is shown, as full-screen programs do."""
        return not self._set.isdisjoint(_ALTERNATE)

    @property
    def taken(self) -> bool:
        """Whether a program draws the screen or reads single keys, as far as its output tells."""
        return bool(self._set)

    def passed(self, data: bytes) -> None:
        """A piece of the output."""
        if self._cut:
            data = self._cut + data
            self._cut = b""
        if b"\x1b" not in data:
            return
        for found in _MODES.finditer(data):
            if found[1] is None:
                self._set.clear()
                continue
            for mode in found[1].split(b";"):
                self._change(mode, on=found[2] == b"h")
        at = data.rfind(b"\x1b", -_MAX_CUT)
        if at >= 0 and _MODES.match(data, at) is None:
            self._cut = data[at:]

    def _change(self, mode: bytes, *, on: bool) -> None:
        if mode == _CURSOR:
            on = not on  # a hidden cursor is the sign
        if mode != _CURSOR and mode not in _ALTERNATE and mode not in _KEYBOARD:
            return
        if on:
            self._set.add(mode)
        else:
            self._set.discard(mode)
