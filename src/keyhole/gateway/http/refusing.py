"""Refuses a request: records it, tells the user, and answers in the form that the client reads.

Called by `http1.py`, `http2.py`, `judging.py`, `collecting.py` and `stream.py`.
`gateway/refusal_messages.py` writes the texts for the client and the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import refusal_messages
from keyhole.gateway.http.admission import BODY_LIMIT, name_rule
from keyhole.gateway.http.record import record_judged, record_request, record_unsent
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from keyhole.gateway.http.http_connection import HttpConnection
    from keyhole.gateway.http.stream import Stream
    from keyhole.http.response import Reply
    from keyhole.model.errors import RequestUnfit
    from keyhole.policy.body import BodyJudgement


def refuse(
    stream: Stream, decision: Decision, *, reason: str = "", why: str = "", retry_after: int = 0
) -> None:
    """Refuse a request. The connection stays open if the request has no body."""
    connection, head = stream.connection, stream.head
    reason = reason or decision.reason
    word = head.word or head.method
    details = (("method", word), ("path", head.path))
    name, rule = connection.name, decision.rule
    connection.note(Event(EventKind.REQUEST, Verdict.DENY, reason, rule, name, details))
    form = stream.host.authorizer.form(head)
    stream.end()
    if reason not in (Reason.OVER_BUDGET, Reason.SPENDING_UNKNOWN):
        connection.state.reports.request(word, name, head.path, reason)
    why = why or refusal_messages.request_why(word, name, head.path, reason)
    reply = refusal_messages.http_reply(reason, rule, why, retry_after=retry_after, form=form)
    connection.reply(stream, reply, close=head.length != 0 or head.websocket)


def refuse_for_now(stream: Stream, decision: Decision, wait: float) -> None:
    """Refuse because of a limit. `wait` is the number of seconds after which the client may retry;
    0: never."""
    if wait:
        refuse(stream, decision, retry_after=1 + int(wait))
        return
    stream.connection.state.tell(decision.rule, 0, decision.reason)
    refuse(stream, decision, why=refusal_messages.budget_why(decision))


def refuse_large(stream: Stream, decision: Decision) -> None:
    """Refuse a body that is over its limit."""
    rule = stream.body_rule
    if rule != BODY_LIMIT:
        said, why = Decision(rule=rule), f"the body is over {rule}"
        refuse(stream, said, reason=Reason.BODY_TOO_LARGE, why=why)
    else:
        refuse(stream, decision, reason=Reason.BODY_TOO_LARGE)


def refuse_judged(stream: Stream, said: BodyJudgement, *, read: bool = True) -> None:
    """Refuse a request because of its body, or another finding of the judge. If the body was
    completely `read`, the connection stays open."""
    connection, head, decision = stream.connection, stream.head, said.decision
    record_judged(stream, said)
    form = stream.host.authorizer.form(head)
    stream.end()
    report_judged(stream, said)
    reply = refusal_messages.http_reply(decision.reason, decision.rule, said.why, form=form)
    connection.reply(stream, reply, close=head.websocket or not read)


def report_judged(stream: Stream, said: BodyJudgement) -> None:
    """Tell the person of a refusal because of a body."""
    connection, head = stream.connection, stream.head
    connection.state.reports.request(
        head.word, connection.name, head.path, said.decision.reason, said.why
    )


def refuse_unfit(stream: Stream, error: RequestUnfit, decision: Decision) -> None:
    """Refuse a request that the policy allows and that cannot be sent."""
    said = Decision(rule=error.rule) if error.rule else decision
    refuse(stream, said, reason=error.reason, why=error.message)


def note_malformed(connection: HttpConnection, why: str) -> Reply:
    """Record that bytes were not HTTP, and tell the user. Returns the reply."""
    reason, destination, name = Reason.HTTP_MALFORMED, connection.destination, connection.name
    rule = destination.decision.rule
    details = (("why", why),)
    connection.note(Event(EventKind.REQUEST, Verdict.DENY, reason, rule, name, details))
    connection.state.tell(name, destination.port, reason)
    return refusal_messages.http_reply(reason, rule, why)


def end_over_limit(connection: HttpConnection, stream: Stream | None, decision: Decision) -> None:
    """A limit on bytes is reached."""
    of_body = decision.rule == BODY_LIMIT
    if of_body and stream is not None:
        decision = name_rule(stream, decision)
    connection.state.over_limit(decision, connection.name)
    if of_body and stream is not None and stream.response is not None:
        why = f"the body is over {decision.rule}"
        stream.fail(Reason.BODY_TOO_LARGE, why, decision)
    elif of_body and stream is not None and stream.collecting is not None:
        stream.collecting.abandon(Reason.BODY_TOO_LARGE)
        refuse(stream, decision, reason=Reason.BODY_TOO_LARGE)
    else:
        if stream is not None and stream.response is not None:
            record_request(stream.response, connection.now(), decision.reason, decision)
        elif stream is not None:
            record_unsent(stream, decision.reason, decision.rule)
            stream.abandon(decision.reason)
        connection.cut(stream, decision.reason)
