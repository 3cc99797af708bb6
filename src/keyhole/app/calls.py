"""What the control process asks of the data plane, and the shapes of what that answers.

The control process (`operations.py`, by way of `planes.py`) sends calls: JSON in one message each,
with a door's sockets beside it. The data plane (`daemonplane.py`) answers in JSON on a stream, and
tells of events in between. The data plane reads bytes of sandboxes and origins, so it is the less
trusted of both: what it says is bounded and read by the shapes below, and what has another shape
ends it. In the other direction the sender is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.ending import Ending
from keyhole.control.prometheus import MAX_SAMPLES, Family, Sample
from keyhole.control.shape import Choice, Field, Flag, ListOf, Parsed, Record, Text, Whole
from keyhole.control.table import (
    GRANT_VIEW,
    HEALTH,
    MAX_SESSIONS_SHOWN,
    OPENED,
    RELOADED,
    SESSION_VIEW,
    STATUS,
)
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.control.values import BudgetView, Check, GrantView, Protection

MAX_CALL = 192 * 1024
"""Bytes of one call: a request on the control socket has a third of it."""

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of one answer: a full page of sessions with every list full has half of it."""

MAX_DOOR = 3
"""Sockets beside a call: the line to the supervisor stays with the control process."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A session as the data plane knows it; the control process knows the rest."""

    id: str
    expires: int | None
    connections: int
    requests: int
    denied: int
    up: int
    down: int
    stored: tuple[str, ...]
    secrets: tuple[str, ...]
    grants: tuple[GrantView, ...]
    budgets: tuple[BudgetView, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """Those sessions that were asked for and are there."""

    sessions: tuple[Figures, ...]


@dataclass(frozen=True, slots=True)
class Provided:
    """A session that may get its door."""

    ca: str
    notes: tuple[str, ...]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Facts:
    """The data plane as a whole."""

    connections: int
    admitting: bool
    keeper: bool
    """Whether the keeper answers."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What sandboxes need, as far as the data plane can tell."""

    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A session whose last line is written: the digest of that line."""

    head: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The first thing that a data plane says: it is locked down and serves."""

    sessions: int
    """How many there may be at a time."""
    protections: tuple[Protection, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """One number of a metric, with labels as `name=value`."""

    value: float
    labels: tuple[str, ...]
    suffix: str


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and its numbers."""

    name: str
    kind: str
    help: str
    samples: tuple[Counted, ...]


@dataclass(frozen=True, slots=True)
class Metered:
    """All metrics."""

    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """An event: a session's door was closed."""

    session: str
    why: Ending


@dataclass(frozen=True, slots=True)
class Said:
    """An event: a line for the person in front of a session; without one, for the gateway's log."""

    session: str
    text: str


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


_ID = SESSION_VIEW.fields["id"]
_ANY_ID = Text("[0-9a-f]{0,12}", 12, "an id, or nothing")
_LINE = Text("[^\\u0000-\\u001f\\u007f]*", 4000, "one line of at most 4000 characters")
_HEAD = Text("[ -~]*", 128, "a digest")
_METRIC = Text("[a-z_]+", 64, "a metric's name")
_SUFFIX = Text("[a-z_]*", 16, "a suffix")
_VALUE = Parsed(Text("-?[0-9.]+(?:e[+-]?[0-9]+)?", 32, "a number"), _number)
_LABEL = Text("[a-z_]+=[ -~]*", 256, "a label")
_KIND = Choice(("counter", "gauge", "histogram"))
_ENDING = Choice(tuple(Ending), Ending)
_MAX_METRICS = 64

FIGURES = Record(
    Figures,
    {
        name: SESSION_VIEW.fields[name]
        for name in (
            "id", "expires", "connections", "requests", "denied", "up", "down", "stored",
            "secrets", "grants", "budgets",
        )
    },
)  # fmt: skip
_COUNTED = Record(
    Counted,
    {
        "value": Field(_VALUE, "the number"),
        "labels": Field(ListOf(_LABEL, 8), "name=value"),
        "suffix": Field(_SUFFIX, "of a histogram"),
    },
)
_METERED = Record(
    Metric,
    {
        "name": Field(_METRIC, "which"),
        "kind": Field(_KIND, "of Prometheus"),
        "help": Field(_LINE, "what it counts"),
        "samples": Field(ListOf(_COUNTED, MAX_SAMPLES), "its numbers"),
    },
)
READY = Record(
    Ready,
    {
        "sessions": Field(Whole(0, 2**31), "at a time"),
        "protections": STATUS.fields["protections"],
    },
)
CLOSED = Record(Closed, {"session": _ID, "why": Field(_ENDING, "why")})
SAID = Record(
    Said, {"session": Field(_ANY_ID, "whose"), "text": Field(_LINE, "for a person to read")}
)

ANSWERS: dict[str, Record | None] = {
    "open": Record(
        Provided,
        {
            "ca": OPENED.fields["ca"],
            "notes": OPENED.fields["notes"],
            "figures": Field(FIGURES, "at its beginning"),
        },
    ),
    "door": None,
    "close": None,
    "finish": Record(Finished, {"head": Field(_HEAD, "of the log")}),
    "drop": None,
    "note": None,
    "list": Record(
        Listed, {"sessions": Field(ListOf(FIGURES, MAX_SESSIONS_SHOWN), "those that are known")}
    ),
    "grant": GRANT_VIEW,
    "reload": RELOADED,
    "secret_changed": None,
    "facts": Record(
        Facts,
        {
            "connections": STATUS.fields["connections"],
            "admitting": STATUS.fields["admitting"],
            "keeper": Field(Flag(), "whether it answers"),
        },
    ),
    "health": Record(Checked, {"checks": HEALTH.fields["checks"]}),
    "metrics": Record(Metered, {"metrics": Field(ListOf(_METERED, _MAX_METRICS), "all")}),
    "end": None,
}
"""Every call by its name, and the shape of its answer."""

ACKNOWLEDGED = frozenset({"close"})
"""Calls whose receipt is told at once, before they are done: a data plane that turns does that
within a blink, however many doors it then has to close."""


def as_metric(family: Family) -> Metric:
    """A metric for the way between the processes."""
    return Metric(
        family.name,
        family.kind,
        family.help,
        tuple(
            Counted(each.value, tuple(f"{n}={v}" for n, v in each.labels), each.suffix)
            for each in family.samples
        ),
    )


def as_family(metric: Metric) -> Family:
    """The inverse of `as_metric`."""
    samples = []
    for each in metric.samples:
        pairs = (label.partition("=") for label in each.labels)
        samples.append(Sample(each.value, tuple((n, v) for n, _, v in pairs), each.suffix))
    return Family(metric.name, metric.kind, metric.help, samples)
