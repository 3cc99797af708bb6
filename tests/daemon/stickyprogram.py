"""`keyhole`, whose data plane gets stuck on one path: run as a program, never imported.

The head of a request that has STICKY in it is matched against a pattern that takes longer than
anybody lives, which holds the interpreter lock: what a parser with a fault would do. Only the
processes that this program starts have it; the product has no such hook.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from keyhole.app import companion  # noqa: E402
from keyhole.cli import main, up  # noqa: E402

STICKY = "/v1/sticky"

STICK = f"""\
import re
from keyhole.wire.httprequest import RequestReader
parse = RequestReader.parse
def stick(self, head, *more):
    if b"{STICKY}" in head:
        re.match(rb"(a|a)*b", b"a" * 200)
    return parse(self, head, *more)
RequestReader.parse = stick
"""

if __name__ == "__main__":
    first, found, rest = companion._PROGRAM.partition("from {module}")
    companion._PROGRAM = first + STICK + found + rest
    up.PROGRAM = (sys.executable, "-I", __file__)
    main.entry()
