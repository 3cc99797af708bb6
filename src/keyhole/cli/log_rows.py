"""An event of the audit log as a line for people, or as a row of CSV.

Used by `log.py`. Texts of an event come from the sandbox: control characters are made visible, and
no cell of a row can be a formula.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.paint import paint
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.audit.log_line import LogRecord

CSV_HEAD = (
    "ts", "session", "kind", "verdict", "reason", "rule", "host", "port", "times", "details",
)  # fmt: skip

HOST_COLUMNS = 32
"""Columns of a host where the terminal is wide, or there is none."""

_FIXED_COLUMNS = 60
"""Columns of the other parts of a short line, about."""
_MIN_HOST = 12
_MIN_ROOM = 24
_INDENT = "    "

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


def text_row(record: LogRecord) -> str:
    """One event for a person. On a terminal it is wrapped between words; in a pipe it is one
    line."""
    at = datetime.fromtimestamp(record.at).strftime("%Y-%m-%d %H:%M:%S")
    details = dict(record.details)
    port = details.pop("port", None)
    host = record.host if port is None or not record.host else f"{record.host}:{port}"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    columns = max(_MIN_HOST, min(HOST_COLUMNS, width - _FIXED_COLUMNS)) if width else HOST_COLUMNS
    colour = "red" if record.denied else "green"
    parts = [
        (at, "dim"),
        (visible(record.session[:8] or "-").ljust(8), ""),
        (visible(record.verdict).ljust(5), colour),
        (visible(record.kind).ljust(8), ""),
        (visible(host or "-").ljust(columns), ""),
        (visible(record.reason), ""),
        (visible(f"[{record.rule}]"), "dim"),
    ]
    if record.folded:
        parts.append((f"({record.folded} times)", "yellow"))
    parts += [(visible(f"{name}={_quoted(value)}"), "dim") for name, value in details.items()]
    return _wrapped(parts, width) if width else "  ".join(_painted(*part) for part in parts)


def _quoted(value: object) -> object:
    """A hostile text cannot look like the next detail."""
    between = isinstance(value, str) and "=" in value and " " in value
    return json.dumps(value, ensure_ascii=False) if between else value


def _wrapped(parts: list[tuple[str, str]], width: int) -> str:
    """The parts in lines of at most `width`, the later ones indented."""
    lines: list[str] = []
    line, used = "", 0
    for text, style in parts:
        if line and used + 2 + len(text.rstrip()) > width:
            lines.append(line.rstrip())
            line, used = "", 0
        room = max(width - len(_INDENT), _MIN_ROOM)
        pieces = textwrap.wrap(text, room) if len(text) > room else [text]
        lines += [_INDENT + _painted(piece, style) for piece in pieces[:-1]]
        start = "  " if line else _INDENT if lines else ""
        line += start + _painted(pieces[-1], style)
        used += len(start) + len(pieces[-1])
    return "\n".join([*lines, line.rstrip()])


def _painted(text: str, style: str) -> str:
    return paint(text, style) if style else text


def print_csv_head() -> None:
    """The names of the columns."""
    csv.writer(sys.stdout, lineterminator="\n").writerow(CSV_HEAD)


def print_csv_row(record: LogRecord) -> None:
    """One event as a row. Attack: a name such as `=cmd()`, which a spreadsheet would compute."""
    details = dict(record.details)
    port = details.pop("port", "")
    cells = (
        record.ts, record.session, record.kind, record.verdict, record.reason, record.rule,
        record.host, port, record.folded or 1, json.dumps(details) if details else "",
    )  # fmt: skip
    csv.writer(sys.stdout, lineterminator="\n").writerow(map(_safe, cells))


def _safe(cell: object) -> str:
    text = visible(str(cell))
    return f"'{text}" if text.startswith(_FORMULA) else text
