"""The audit events of a request (I8): with its status, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.gateway.http.response import Response
    from keyhole.gateway.http.stream import Stream
    from keyhole.model.decision import Decision
    from keyhole.policy.body import BodyJudge, BodyJudgement

_REQUEST = EventKind.REQUEST

MAX_WHY = 300
"""Characters of the words for a body's refusal in the log; a client's own may be in them."""

MAX_NOTES = 64
"""Notes of one call of a judge that are written down (I9)."""


def record_request(
    response: Response, now: float, reason: str = "", decision: Decision | None = None
) -> None:
    """Record the request's event, unless it was recorded."""
    if response.recorded:
        return
    response.recorded = True
    stream, allowed = response.stream, response.decision
    said = allowed if decision is None else decision
    head, transfer = stream.head, response.outbound.transfer
    details: tuple[tuple[str, str | int], ...] = (
        ("method", head.word),
        ("path", head.path),
        ("service", allowed.service or ""),
    )
    if transfer is not None:
        large = transfer.large
        details += (("storage", transfer.host.name), ("oid", large.oid), ("size", large.size))
    if response.status:
        took = int((now - stream.began) * 1000)
        details += (("status", response.status), ("ms", took))
    connection, reason = stream.connection, reason or said.reason
    connection.state.record(
        Event(_REQUEST, said.verdict, reason, said.rule, connection.name, details)
    )


def record_unsent(stream: Stream, reason: str, rule: str = "") -> None:
    """Write the event of a request that ended before it was sent on or refused."""
    connection, head = stream.connection, stream.head
    details = (("method", head.word or head.method), ("path", head.path))
    connection.note(Event(_REQUEST, Verdict.DENY, reason, rule, connection.name, details))


def record_judged(stream: Stream, said: BodyJudgement) -> None:
    """Write the event of a request that was refused, or answered here, because of its body."""
    connection, head, decision = stream.connection, stream.head, said.decision
    details = (("method", head.word), ("path", head.path), ("why", visible(said.why)[:MAX_WHY]))
    connection.note(
        Event(_REQUEST, decision.verdict, decision.reason, decision.rule, connection.name, details)
    )


def record_notes(stream: Stream, judge: BodyJudge) -> None:
    """Write what a judge has found beside its decision."""
    connection, head = stream.connection, stream.head
    notes, judge.notes = judge.notes, []
    tell = connection.state.session.tools
    for note in notes if tell is not None else ():
        if note.seen is not None and tell is not None:
            tell(note.decision.service or "", note.seen)
    for note in notes[:MAX_NOTES]:
        said = note.decision
        details = (("path", head.path), ("what", visible(note.what)[:MAX_WHY]))
        connection.note(
            Event(EventKind.BODY, said.verdict, said.reason, said.rule, connection.name, details)
        )


def record_further(response: Response, reason: str, verdict: Verdict) -> None:
    """Record one more event of a request that already has its own."""
    stream = response.stream
    connection, head, rule = stream.connection, stream.head, response.decision.rule
    details = (("method", head.word), ("path", head.path))
    connection.note(Event(_REQUEST, verdict, reason, rule, connection.name, details))
