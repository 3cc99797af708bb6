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

from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass

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

Scalar = str | int | float


@dataclass(frozen=True, slots=True)
class Fold:
    """Events that were counted instead of written: how many, and from when to when."""

    count: int
    first: float
    last: float


@dataclass(slots=True)
class Draft:
    """A line that has no place in the chain yet. `weight` is how many events it stands for."""

    at: float
    session: str
    body: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Record:
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
    details: dict[str, Scalar]
    folded: int

    @property
    def denied(self) -> bool:
        """Whether something was refused, or the log itself lost something."""
        return self.verdict != _ALLOWED

    @property
    def is_own(self) -> bool:
        """Whether the log speaks of itself: no session can."""
        return self.kind == EventKind.AUDIT and not self.session

    def text(self, name: str) -> str:
        """A detail as text, empty where there is none."""
        return str(self.details.get(name, ""))


def stamp(at: float) -> str:
    """A time as it is written: UTC, microseconds, sorts as text."""
    # Rounded once, or the second and its fraction could disagree.
    micros = round(at * 1_000_000)
    return f"{_second(micros // 1_000_000)}.{micros % 1_000_000:06d}Z"


@functools.lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:-6]


def draft(at: float, session: str, event: Event, fold: Fold | None = None) -> Draft:
    """The event as a line's body; never fails, whatever the texts hold."""
    body = _body(at, session, event, fold, MAX_TEXT)
    if len(body) > MAX_LINE - _CHAIN_ROOM:
        body = _body(at, session, event, fold, _SHORT_TEXT)
    return Draft(at, session, body, fold.count if fold else 1)


def chained(draft: Draft, seq: int, prev: str) -> bytes:
    """The draft as the line after the one whose digest is `prev`, without its newline."""
    return f'{{"seq":{seq},{draft.body[1:-1]},"prev":"{prev}"}}'.encode("ascii")


def digest(line: bytes) -> str:
    """What the next line's `prev` says of this one (without its newline)."""
    return hashlib.sha256(line).hexdigest()


def is_digest(text: str) -> bool:
    """Whether the text can be a line's digest."""
    return _DIGEST.fullmatch(text) is not None


def parse(line: bytes) -> Record | None:
    """The record in a line, or None where it is none: the file may be anyone's."""
    try:
        found = json.loads(line)
        at = datetime.fromisoformat(found["ts"])
        record = Record(
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
            and all(isinstance(value, Scalar) for value in record.details.values())
            and is_digest(record.prev)
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return record if well_formed else None


def own_event(reason: str, *, good: bool, details: Iterable[tuple[str, Scalar]]) -> Event:
    """An event of the log about itself."""
    verdict = Verdict.ALLOW if good else Verdict.DENY
    return Event(EventKind.AUDIT, verdict, reason, rule="audit", details=tuple(details))


def _body(at: float, session: str, event: Event, fold: Fold | None, longest: int) -> str:
    """Written piece by piece: every request of a sandbox becomes a line, at a third of the cost."""
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
                if not value.isascii():
                    value = _portable(value)
                label = _label(name)
                named[label] = label + _quote(value)
            else:
                label = _label(name)
                named[label] = label + _safe(value)
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
    """What the lines of many events share, and which of its texts were cut."""
    session, kind, reason, rule, host = (_safe(text[:longest]) for text in texts)
    named = zip(("session", "kind", "reason", "rule", "host"), texts, strict=True)
    return (
        f'"session":{session},"kind":{kind},"verdict":"{verdict}",'
        f'"reason":{reason},"rule":{rule},"host":{host}',
        tuple(name for name, text in named if len(text) > longest),
    )


@functools.lru_cache(maxsize=256)
def _label(name: str) -> str:
    """The name of a detail, up to its value."""
    return f"{_quote(_portable(name[:_SHORT_TEXT]))}:"


def _safe(value: object) -> str:
    """A value that is short enough, as JSON."""
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
