"""`keyhole`, whose data plane gets stuck on one path: run as a program, never imported.

The head of a request that has STICKY in it is matched against a pattern that takes longer than
anybody lives, which holds the interpreter lock: what a parser with a fault would do. Only the
processes that this program starts have it; the product has no such hook.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from keyhole.app.processes import child  # noqa: E402
from keyhole.cli import background, main  # noqa: E402

STICKY = "/v1/sticky"

STICK = f"""\
import re
from keyhole.http.request import RequestReader
parse = RequestReader.parse
def stick(self, head, *more):
    if b"{STICKY}" in head:
        re.match(rb"(a|a)*b", b"a" * 200)
    return parse(self, head, *more)
RequestReader.parse = stick
"""

if __name__ == "__main__":
    first, found, rest = child._PROGRAM.partition("from {module}")
    child._PROGRAM = first + STICK + found + rest
    background.PROGRAM = (sys.executable, "-I", __file__)
    main.entry()
