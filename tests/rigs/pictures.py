"""The pictures of the documents, taken by the tests that see them.

`make pictures` writes them (`PICTURES=write`). Every other run looks whether they are current: ids
and times differ from run to run, so what is compared are the words that Keyhole's own page or
screen has, its headings and buttons, not those of events. They travel inside the file.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.chromium import Page
    from tests.rigs.tmux import TmuxScreen

DOCS = Path(__file__).parents[2] / "docs"

LARGEST = 64 * 1024
"""Bytes of one picture: a page with three of them opens at once."""

_OWN_WORDS = (
    "[...(document.querySelector('dialog[open]') ?? document)"
    ".querySelectorAll('nav a, h2, label, .card button, dialog[open] button')]"
    ".map(e => (e.firstChild ?? e).textContent.trim()).filter(t => t)"
)
_PNG = b"\x89PNG\r\n\x1a\n"
_AFTER_HEAD = 33
"""Bytes of a PNG's signature and first chunk."""
_KEY = b"Description"


def picture_page(page: Page, name: str, size: tuple[int, int], *, dark: bool = False) -> None:
    """A picture of what a page shows."""
    page.resize(*size, dark=dark)
    words = re.sub(r"\d+", "0", "\n".join(dict.fromkeys(page.run(_OWN_WORDS))))
    _keep(DOCS / name, words, lambda: _with_words(page.picture(), words))


def picture_screen(screen: TmuxScreen, name: str, title: str) -> None:
    """A picture of what a terminal shows; its last line names the keys."""
    words = " ".join(re.findall(r"[a-z/]+", screen.text().rstrip().splitlines()[-1].lower()))
    _keep(DOCS / name, words, lambda: _drawn(screen.text("-e", "-N"), title, words))


def _keep(file: Path, words: str, draw: Callable[[], bytes]) -> None:
    if os.environ.get("PICTURES") == "write":
        file.write_bytes(draw())
    kept = file.read_bytes()
    assert len(kept) <= LARGEST, f"{file} has {len(kept)} bytes"
    said = f"{file} is not current: run `make pictures`; it has {words_of(kept)!r}, now {words!r}"
    assert words_of(kept) == words, said


def words_of(picture: bytes) -> str:
    """The words that a picture carries; empty if it was made by something else."""
    if picture.startswith(_PNG):
        size = struct.unpack_from(">I", picture, _AFTER_HEAD)[0]
        chunk = picture[_AFTER_HEAD + 4 : _AFTER_HEAD + 8 + size]
        return chunk.removeprefix(b"iTXt" + _KEY + bytes(5)).decode()
    found = re.search(rb"<desc>(.*?)</desc>", picture, re.DOTALL)
    return found[1].decode() if found else ""


def _with_words(picture: bytes, words: str) -> bytes:
    """The PNG with a chunk of text (iTXt, not compressed, no language) behind its head."""
    data = b"iTXt" + _KEY + bytes(5) + words.encode()
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return picture[:_AFTER_HEAD] + chunk + picture[_AFTER_HEAD:]


def _drawn(shown: str, title: str, words: str) -> bytes:
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown), end="")
    picture = console.export_svg(title=title)
    # Without fonts of other sites, which a reader's browser would fetch.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"<!--.*?-->", "", picture, flags=re.DOTALL)
    return re.sub(r"(<svg[^>]*>)", rf"\1<desc>{escape(words)}</desc>", picture, count=1).encode()
