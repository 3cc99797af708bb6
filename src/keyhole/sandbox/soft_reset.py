"""Restores the user's terminal to a state in which Keyhole's own lines can be read (I11).

Used by `terminal.py` and `containers/console.py`. A command may leave a scroll region, another
screen or character set, colours that hide text, or half of an escape sequence, which would garble
or hide the report of findings. The screen is not cleared.
"""

from __future__ import annotations

import re

_END_OF_SEQUENCE = b"\x18\x1b\\\x1b[m"
"""Cancels a control sequence, ends a string (OSC, DCS …) and resets colours, without visible
output."""

_RESET = b"".join(
    (
        b"\x18\x1b\\",  # a control sequence or string that was left open
        b"\x1b[4i\x1b[?4i",  # output goes to the screen, not to a printer
        b"\x1b<",  # out of VT52 mode, in which nothing below would be understood
        b"\x1b\x03\x18",  # out of Tektronix mode
        b"\x1b[?2026l",  # end of a synchronised update
        # Back to the shell's screen. 1049 restores the cursor that was saved on that screen; a
        # terminal that is already on it restores the one that is saved here.
        b"\x1b7\x1b[?1049l",
        b"\x1b7\x1b[?69l\x1b[r\x1b8",  # margins; setting them moves the cursor
        b"\x1b[!p",  # soft reset: origin mode and the rest, without moving the cursor
        b"\x1b[2;4;20l\x1b[12h",  # keyboard unlocked, no insertion, plain line ends, no local echo
        b"\x1b[?1;5;9;1000;1001;1002;1003;1004;1005;1006;1015;1016;2004l",  # mouse, focus, paste
        b"\x1b7\x1b[=0;1u\x1b[>4m\x1b>",  # plain keys
        b"\x1b[?7;25h\x1b[0 q",  # lines wrap, and the cursor is seen
        b"\x1b(B\x1b)B\x1b*B\x1b+B\x0f",  # ASCII
        b'\x1b]8;;\x1b\\\x1b[0"q\x1b[m',  # no hyperlink, protection, colour
    )
)
_PALETTE = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b]R\x1b\\"
"""The terminal's own colours. Attack: text in the colour of the background."""
_BOTTOM = b"\x1b[?6l\x1b[999;1H\r\n"
"""A new line below everything on the screen. Positions count from its top, because not every
terminal's soft reset restores that."""

_HARMLESS = re.compile(rb"\x1b\[[0-9;:]{0,64}[mK]")
"""Colours and clearing the rest of a line, as in ordinary output."""
_HARMLESS_STRING = re.compile(rb"\x1b\](?:[01278]|9|52|133|633|777|1337|1[0-2];\?);?")
"""Titles, links, marks and questions: strings that change no colour."""
_ODD = re.compile(rb"[\x0e\x1b]|\xc2(?:[\x80-\x9f]|\Z)")
"""Any other escape, its eight-bit form in UTF-8, and a shift to another character set."""


class SoftReset:
    """Follows a command's output to a terminal, and knows which modes to reset after it."""

    def __init__(self) -> None:
        self._odd = False
        self._recoloured = False

    def passed(self, data: bytes) -> None:
        """A piece of the command's output. A sequence that is cut at its end counts as odd."""
        if self._odd and self._recoloured:
            return
        if b"\x1b" not in data and b"\x0e" not in data and b"\xc2" not in data:
            return
        rest = _HARMLESS.sub(b"", data)
        self._odd = self._odd or _ODD.search(rest) is not None
        if self._odd:
            strings = _HARMLESS_STRING.sub(b"", rest)
            cut = rest.endswith((b"\x1b", b"\xc2")) or b"\x1b]" in rest[-16:]
            self._recoloured = self._recoloured or cut or b"\x1b]" in strings or b"\xc2\x9d" in rest

    def sequence(self) -> bytes:
        """The bytes to write when the command has ended."""
        if not self._odd:
            return _END_OF_SEQUENCE
        return _RESET + _PALETTE if self._recoloured else _RESET

    def room(self) -> bytes:
        """The bytes to write before a message: the command may have left the cursor in the middle
        of other text."""
        return _BOTTOM if self._odd else b""
