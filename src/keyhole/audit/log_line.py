"""One event as one line of ASCII, and back.

A line is a JSON object whose `prev` is the digest of the line before it. Texts come from the
sandbox: a newline, an escape sequence, a lone surrogate or U+2028 in one must neither end a line
nor start another (I8), and none makes a line longer than MAX_LINE (I9).
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEXT = 1024
"""Characters of one text: four times the longest DNS name, and most paths whole."""
MAX_DETAILS = 16
"""Details of one event; the gateway writes a handful."""
MAX_LINE = 16 * 1024
"""Bytes of one line, so that a reader needs no more memory than this for it."""

_CHAIN_ROOM = 256  # bytes of a line that `chained` adds
_SHORT_TEXT = 128
_MAX_INTEGER = 2**63
_EPOCH = datetime.fromtimestamp(0, UTC)
_TEXTS = ("ts", "session", "kind", "verdict", "reason", "rule", "host", "prev")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ALLOW = Verdict.ALLOW
_DENIED, _ALLOWED = (verdict.name.lower() for verdict in Verdict)
_quote = json.encoder.encode_basestring_ascii

DetailValue = str | int | float


class FoldedEvents(Struct, frozen=True):
    """Events that were counted instead of written: how many, and from when to when."""

    count: int
    first: float
    last: float


class LineDraft(Struct):
    """A line that is not in the chain yet. `weight` is the number of events it stands for."""

    at: float
    session: str
    body: str
    weight: int = 1


class LogRecord(Struct, frozen=True):
    """A line as it is read."""

    seq: int
    ts: str
    at: float
    session: str
    kind: str
    verdict: str
    reason: str
    rule: str
    host: str
    prev: str
    details: dict[str, DetailValue]
    folded: int

    @property
    def denied(self) -> bool:
        """Whether the event is a denial, or a loss of the log itself."""
        return self.verdict != _ALLOWED

    @property
    def is_own(self) -> bool:
        """Whether the log wrote it about itself, which no session can do."""
        return self.kind == EventKind.AUDIT and not self.session

    def text(self, name: str) -> str:
        """A detail as text, empty if missing."""
        return str(self.details.get(name, ""))


def stamp(at: float) -> str:
    """A time as it is written: UTC, microseconds, sorts as text."""
    # Rounded once, so that the second and its fraction agree.
    second, fraction = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(second)}.{fraction:06d}Z"


@functools.lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:-6]


def draft_line(
    at: float, session: str, event: Event, fold: FoldedEvents | None = None
) -> LineDraft:
    """The event as a line's body; never fails, whatever its texts are."""
    body = _body(at, session, event, fold, MAX_TEXT)
    if len(body) > MAX_LINE - _CHAIN_ROOM:
        body = _body(at, session, event, fold, _SHORT_TEXT)
    return LineDraft(at, session, body, fold.count if fold else 1)


def chain_line(draft: LineDraft, seq: int, prev: str) -> bytes:
    """The draft as the line after the one whose digest is `prev`, without its newline."""
    return f'{{"seq":{seq},{draft.body[1:-1]},"prev":"{prev}"}}'.encode("ascii")


def line_digest(line: bytes) -> str:
    """The digest of a line without its newline, which the next line has as `prev`."""
    return hashlib.sha256(line).hexdigest()


def is_digest(text: str) -> bool:
    """Whether the text can be a line's digest."""
    return _DIGEST.fullmatch(text) is not None


def parse_line(line: bytes) -> LogRecord | None:
    """The record in a line, or None if it is not one: the file may hold anything."""
    try:
        found = json.loads(line)
        at = datetime.fromisoformat(found["ts"])
        record = LogRecord(
            at=at.timestamp(),
            details=found.get("details", {}),
            folded=found.get("aggregate", {}).get("count", 0),
            seq=found["seq"],
            **{name: found[name] for name in _TEXTS},
        )
        well_formed = (
            at.utcoffset() is not None
            and at >= _EPOCH
            and type(record.seq) is type(record.folded) is int
            and all(isinstance(found[name], str) for name in _TEXTS)
            and all(isinstance(value, DetailValue) for value in record.details.values())
            and is_digest(record.prev)
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return record if well_formed else None


def own_event(reason: str, *, good: bool, details: Iterable[tuple[str, DetailValue]]) -> Event:
    """An event of the log about itself."""
    verdict = Verdict.ALLOW if good else Verdict.DENY
    return Event(EventKind.AUDIT, verdict, reason, rule="audit", details=tuple(details))


def _body(at: float, session: str, event: Event, fold: FoldedEvents | None, longest: int) -> str:
    """Written piece by piece, at a third of the cost of `json`: every request makes a line."""
    verdict = _ALLOWED if event.verdict is _ALLOW else _DENIED
    texts = session, event.kind, event.reason, event.rule, event.host
    common, cut = _common(texts, verdict, longest)
    text = f'{{"ts":"{stamp(at)}",{common}'
    details = event.details
    if len(details) > MAX_DETAILS or (details and longest != MAX_TEXT):
        details = details[:MAX_DETAILS] if longest == MAX_TEXT else ()
        cut += ("details",)
    if details:
        named = {}
        for name, value in details:
            if isinstance(value, str):
                if len(value) > longest:
                    value = value[:longest]
                    cut += (f"details.{name[:_SHORT_TEXT]}",)
                named[name] = _member(name, value)
            elif type(value) is int:
                named[name] = _member(name, value)
            else:
                named[name] = _label(name) + _safe(value)
        text += f',"details":{{{",".join(named.values())}}}'
    if fold:
        first, last = stamp(fold.first), stamp(fold.last)
        text += f',"aggregate":{{"count":{fold.count},"first":"{first}","last":"{last}"}}'
    if cut:
        text += f',"cut":[{",".join([_quote(_portable(name)) for name in cut])}]'
    # DEL is the one control character that JSON leaves as it is.
    return (text + "}").replace("\x7f", "\\u007f")


@functools.lru_cache(maxsize=256)
def _common(texts: tuple[str, ...], verdict: str, longest: int) -> tuple[str, tuple[str, ...]]:
    """The members that lines of many events share, and which of their texts were cut."""
    session, kind, reason, rule, host = (_safe(text[:longest]) for text in texts)
    named = zip(("session", "kind", "reason", "rule", "host"), texts, strict=True)
    return (
        f'"session":{session},"kind":{kind},"verdict":"{verdict}",'
        f'"reason":{reason},"rule":{rule},"host":{host}',
        tuple(name for name, text in named if len(text) > longest),
    )


@functools.lru_cache(maxsize=256, typed=True)
def _member(name: str, value: DetailValue) -> str:
    """A detail: most methods, services, paths and statuses are those of an event before."""
    return f"{_label(name)}{_safe(value)}"


@functools.lru_cache(maxsize=256)
def _label(name: str) -> str:
    """The name of a detail, up to its value."""
    return f"{_quote(_portable(name[:_SHORT_TEXT]))}:"


def _safe(value: object) -> str:
    """A value that is short enough, as JSON."""
    if type(value) is int and abs(value) < _MAX_INTEGER:
        return str(value)
    if isinstance(value, str):
        return _quote(value if value.isascii() else _portable(value))
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    # Only a type's name: a value that is not plain may hold a secret (I8).
    return f'"<{type(value).__name__}>"'


def _portable(text: str) -> str:
    r"""The text with lone surrogates as the letters `\udXXX`.

    RFC 8259, 8.2: what software does with them is "unpredictable". Attack: a name that makes a
    strict JSON reader drop the line that accuses it.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
