"""The list of all verbs, and a suggestion for one that does not exist.

Imported by `parser.py` when one of them is shown: no other command line needs what wraps text.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
import textwrap
from typing import TYPE_CHECKING

from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "keyhole"

MIN_TEXT = 24
"""Columns of a verb's text in the help, however narrow the terminal is."""

_DESCRIPTION = "Run untrusted code with your services but without your credentials."
_MORE = "`keyhole help VERB` shows the flags of a verb, `keyhole -V` the version."
_EXAMPLES = """\
examples:
  keyhole run claude                        an agent by its name, with your login
  keyhole run -- CMD…                       any command, without your credentials
  keyhole init                              write a policy for this project
  keyhole check                             is keyhole.toml valid, and what does it grant?
  keyhole why https://api.github.com/user   what would happen, and by which rule?
  keyhole why git push URL agent/x          the same for a push
  keyhole new NAME                          a sandbox that stays; `exec`, `attach`, `stop`
  keyhole up                                one gateway for many sandboxes
  keyhole ps                                list what runs; `keyhole revoke --all` cuts it off
  keyhole demo                              what Keyhole does, in a minute
"""


def describe_verbs(groups: Mapping[str, Mapping[str, str]], columns: int | None = None) -> str:
    """The usage, every verb with its text, and examples, in so many columns or the terminal's."""
    columns = columns or shutil.get_terminal_size().columns
    width = max(len(name) for verbs in groups.values() for name in verbs)
    parts = [f"usage: {PROGRAM} VERB …", textwrap.fill(_DESCRIPTION, columns)]
    for title, verbs in groups.items():
        rows = [_row(name, text, width, columns) for name, text in verbs.items()]
        parts.append("\n".join([f"{title}:", *rows]))
    parts.append(textwrap.fill(_MORE, columns))
    return "\n\n".join([*parts, _EXAMPLES])


def _row(name: str, text: str, width: int, columns: int) -> str:
    """A verb and its text, which is wrapped below itself on a narrow terminal."""
    head = f"  {name.ljust(width)}  "
    room = max(columns - len(head) - 1, MIN_TEXT)
    lines = textwrap.wrap(text, room, break_on_hyphens=False)
    return head + f"\n{' ' * len(head)}".join(lines)


def suggest_verb(typed: str, known: list[str], prog: str) -> str:
    """The words to type instead of a verb or action that does not exist."""
    # A path is a command, not a mistyped verb.
    close = [] if "/" in typed else difflib.get_close_matches(typed, known, n=1)
    what = "verb" if prog == PROGRAM else "action"
    said = f"there is no {what} '{visible(typed)}'"
    if close:
        return f"{said}; did you mean `{prog} {close[0]}`?"
    if prog == PROGRAM:
        return (
            f"{said}; `keyhole help` lists the verbs, and `keyhole run -- "
            f"{visible(shlex.quote(typed))}` runs a command"
        )
    return f"{said}; {prog} has {', '.join(known)}"
