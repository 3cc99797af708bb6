"""Calls of the control process to the data plane, and the shapes of their results.

The control process (`gateway_operations.py`, through `data_plane_process.py`) sends each call as
one JSON message, with a door's sockets beside it. The data plane (`data_plane.py`) answers in JSON
on a stream, with events in between. It reads bytes of sandboxes and origins, so it is the less
trusted of the two: its messages are bounded and parsed by the shapes below, and any other message
ends it. In the other direction the sender is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.session.end_reason import EndReason
from keyhole.control.operation_table import (
    ASK_VIEW,
    GRANT_VIEW,
    HEALTH,
    MAX_SESSIONS_SHOWN,
    OPENED,
    RELOADED,
    SESSION_VIEW,
    STATUS,
)
from keyhole.control.prometheus import MAX_SAMPLES, Family, Sample
from keyhole.control.shapes import (
    BooleanShape,
    ChoiceShape,
    FieldShape,
    IntegerShape,
    ListShape,
    ParsedShape,
    RecordShape,
    TextShape,
)

if TYPE_CHECKING:
    from keyhole.control.values import BudgetView, GrantView, HealthCheck, Protection

MAX_CALL = 192 * 1024
"""Bytes of one call: a request on the control socket has a third of it."""

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of one answer: a full page of sessions with every list full has half of it."""

MAX_DOOR = 3
"""Sockets beside a call. The channel to the supervisor stays with the control process."""


class SessionCounters(Struct, frozen=True):
    """The data plane's facts about a session; the control process knows the others."""

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
    spent: int
    unpriced: int
    frozen: bool


class SessionCounterList(Struct, frozen=True):
    """The sessions that were asked for and exist."""

    sessions: tuple[SessionCounters, ...]


class SessionProvisioned(Struct, frozen=True):
    """A session that may get its door."""

    ca: str
    notes: tuple[str, ...]
    figures: SessionCounters


class DataPlaneStatus(Struct, frozen=True):
    """The data plane as a whole."""

    connections: int
    admitting: bool
    keeper: bool
    """Whether the keeper answers."""
    frozen: int


class DataPlaneHealth(Struct, frozen=True):
    """The data plane's part of the gateway's health."""

    checks: tuple[HealthCheck, ...]


class SessionFinished(Struct, frozen=True):
    """A session's last audit line is written: the digest of that line."""

    head: str


class LimitUse(Struct, frozen=True):
    """The use of one limit that all workers have together."""

    name: str
    used: int
    lacking: bool
    """Whether it refused since the last call."""


class LimitUses(Struct, frozen=True):
    """The use of all such limits."""

    limits: tuple[LimitUse, ...]

    def by_name(self) -> dict[str, tuple[int, bool]]:
        """The use, and whether it refused, by the limit's name."""
        return {each.name: (each.used, each.lacking) for each in self.limits}


class LogEnded(Struct, frozen=True):
    """An event: the data plane's audit log is closed, with this digest."""

    head: str


class DataPlaneReady(Struct, frozen=True):
    """The first message of a data plane: it is locked down and serves."""

    protections: tuple[Protection, ...]


class MetricSample(Struct, frozen=True):
    """One number of a metric, with labels as `name=value`."""

    value: float
    labels: tuple[str, ...]
    suffix: str


class Metric(Struct, frozen=True):
    """A metric and its numbers."""

    name: str
    kind: str
    help: str
    samples: tuple[MetricSample, ...]


class MetricsReport(Struct, frozen=True):
    """All metrics."""

    metrics: tuple[Metric, ...]


class DoorClosed(Struct, frozen=True):
    """An event: a session's door was closed."""

    session: str
    why: EndReason


class SessionMessage(Struct, frozen=True):
    """An event: a line for the person at a session's terminal; without a session, for the gateway's
    log."""

    session: str
    text: str
    times: int = 0
    """At the session's end: how often a line came that was sent once; 0 for a new line."""


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


_ID = SESSION_VIEW.fields["id"]
_ANY_ID = TextShape("[0-9a-f]{0,12}", 12, "an id, or nothing")
_LINE = TextShape("[^\\u0000-\\u001f\\u007f]*", 4000, "one line of at most 4000 characters")
_HEAD = TextShape("[ -~]*", 128, "a digest")
_METRIC = TextShape("[a-z_]+", 64, "a metric's name")
_SUFFIX = TextShape("[a-z_]*", 16, "a suffix")
_VALUE = ParsedShape(TextShape("-?[0-9.]+(?:e[+-]?[0-9]+)?", 32, "a number"), _number)
_LABEL = TextShape("[a-z_]+=[ -~]*", 256, "a label")
_KIND = ChoiceShape(("counter", "gauge", "histogram"))
_ENDING = ChoiceShape(tuple(EndReason), EndReason)
_MAX_METRICS = 64

FIGURES = RecordShape(
    SessionCounters,
    {
        name: SESSION_VIEW.fields[name]
        for name in (
            "id", "expires", "connections", "requests", "denied", "up", "down", "stored",
            "secrets", "grants", "budgets", "spent", "unpriced",
        )
    }
    | {"frozen": FieldShape(BooleanShape(), "whether nothing passes until it is resumed")},
)  # fmt: skip
_COUNTED = RecordShape(
    MetricSample,
    {
        "value": FieldShape(_VALUE, "the number"),
        "labels": FieldShape(ListShape(_LABEL, 8), "name=value"),
        "suffix": FieldShape(_SUFFIX, "of a histogram"),
    },
)
_METERED = RecordShape(
    Metric,
    {
        "name": FieldShape(_METRIC, "which"),
        "kind": FieldShape(_KIND, "of Prometheus"),
        "help": FieldShape(_LINE, "what it counts"),
        "samples": FieldShape(ListShape(_COUNTED, MAX_SAMPLES), "its numbers"),
    },
)
READY = RecordShape(DataPlaneReady, {"protections": STATUS.fields["protections"]})
CLOSED = RecordShape(DoorClosed, {"session": _ID, "why": FieldShape(_ENDING, "why")})
SAID = RecordShape(
    SessionMessage,
    {
        "session": FieldShape(_ANY_ID, "whose"),
        "text": FieldShape(_LINE, "for a person to read"),
        "times": FieldShape(IntegerShape(0, 2**62), "how often it came, at the end"),
    },
)
LOG_ENDED = RecordShape(LogEnded, {"head": FieldShape(_HEAD, "of the log")})
_LIMIT_USE = RecordShape(
    LimitUse,
    {
        "name": FieldShape(_METRIC, "which"),
        "used": FieldShape(IntegerShape(0, 2**53), "now, or since the last call"),
        "lacking": FieldShape(BooleanShape(), "whether it refused since then"),
    },
)

ANSWERS: dict[str, RecordShape[Any] | None] = {
    "open": RecordShape(
        SessionProvisioned,
        {
            "ca": OPENED.fields["ca"],
            "notes": OPENED.fields["notes"],
            "figures": FieldShape(FIGURES, "at its beginning"),
        },
    ),
    "door": None,
    "close": None,
    "finish": RecordShape(SessionFinished, {"head": FieldShape(_HEAD, "of the log")}),
    "drop": None,
    "note": None,
    "list": RecordShape(
        SessionCounterList,
        {"sessions": FieldShape(ListShape(FIGURES, MAX_SESSIONS_SHOWN), "those that are known")},
    ),
    "grant": GRANT_VIEW,
    "resume": None,
    "answer": ASK_VIEW,
    "watched": None,
    "reload": RELOADED,
    "secret_changed": None,
    "facts": RecordShape(
        DataPlaneStatus,
        {
            "connections": STATUS.fields["connections"],
            "admitting": STATUS.fields["admitting"],
            "keeper": FieldShape(BooleanShape(), "whether it answers"),
            "frozen": STATUS.fields["frozen"],
        },
    ),
    "health": RecordShape(DataPlaneHealth, {"checks": HEALTH.fields["checks"]}),
    "metrics": RecordShape(
        MetricsReport, {"metrics": FieldShape(ListShape(_METERED, _MAX_METRICS), "all")}
    ),
    "share": RecordShape(
        LimitUses, {"limits": FieldShape(ListShape(_LIMIT_USE, 16), "those that are bounded")}
    ),
    "end": None,
}
"""Every call by its name, and the shape of its answer."""

ACKNOWLEDGED = frozenset({"close"})
"""Calls that are confirmed at once, before they are done: a data plane that works confirms within
milliseconds, however many doors it then has to close."""


def as_metric(family: Family) -> Metric:
    """The metric as a message between the processes."""
    return Metric(
        family.name,
        family.kind,
        family.help,
        tuple(
            MetricSample(each.value, tuple(f"{n}={v}" for n, v in each.labels), each.suffix)
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
