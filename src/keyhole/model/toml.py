"""TOML of bounded cost: tomllib, after a check of the one form for which it takes quadratic time.

Called by every room that reads TOML. Attack: one key of 30,000 dotted parts in the policy of a
cloned project, 64 KiB, keeps tomllib busy for 20 seconds before a person is asked anything (I9).
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 32
"""Parts of a dotted key or heading. The deepest key of a policy has four."""
LONG_KEY = f"a key has more than {MAX_KEY_PARTS} parts"

# The tokens of TOML, as far as needed to tell keys from texts and comments. tomllib reads a text
# from its beginning, too: where no token fits, it stops as well. (No possessive
# quantifiers: Python 3.11.2 misses matches with several of them.)
_TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r"|(?P<dot>\.)"
    r"""|(?P<part>[A-Za-z0-9_-]+|"(?!"")(?:[^"\\\n]|\\[^\n])*"|'(?!'')[^'\n]*')"""
    r"""|[^ \t.#"'A-Za-z0-9_-]+|#[^\n]*"""
    r'''|"""(?:(?!""")[^\\]|\\[\s\S])*"{3,5}'''
    r"""|'''(?:(?!''')[\s\S])*'{3,5}"""
)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError with the line and column, and RecursionError."""
    if text.count(".") >= MAX_KEY_PARTS:
        _check_keys(text)
    return tomllib.loads(text)


def _check_keys(text: str) -> None:
    parts, after_dot, at = 0, False, 0
    while (token := _TOKEN.match(text, at)) is not None:
        at = token.end()
        kind = token.lastgroup
        if kind == "part":
            parts = parts + 1 if after_dot else 1
            if parts > MAX_KEY_PARTS:
                line = text.count("\n", 0, at) + 1
                column = token.start() - text.rfind("\n", 0, token.start())
                raise ValueError(f"{LONG_KEY} (at line {line}, column {column})")
        after_dot = kind == "dot" or (kind == "space" and after_dot)


def toml_string(text: str) -> str:
    """A text as TOML writes it between double quotes."""
    # JSON's escapes are TOML's; JSON leaves DEL as it is, which TOML does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
