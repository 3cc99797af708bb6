"""Judges a request in numbered steps, from its parsed head until it can be sent.

Called by `http1.py` and `http2.py` when a head was read, and again when the policy has changed.
`authorize.py` decides by policy; nothing here talks to an origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.budgets import tally_for
from keyhole.gateway.http.admission import check_rates, enter, hold_place, join_meter
from keyhole.gateway.http.collecting import Collecting, choose_body
from keyhole.gateway.http.refusing import (
    refuse,
    refuse_for_now,
    refuse_judged,
    refuse_large,
    refuse_unfit,
)
from keyhole.gateway.http.states import Stage
from keyhole.gateway.http.websocket import FrameCanary
from keyhole.gateway.session import DECOY_RULE
from keyhole.gateway.upstream.minting import Minting
from keyhole.inject.canary import CanaryScanner
from keyhole.model.decision import Decision, Reason, RequestDecision, Verdict
from keyhole.model.errors import CredentialUnusable, RequestUnfit
from keyhole.model.rule import WORDS
from keyhole.policy.asks import budget_subject
from keyhole.system.dialler import still_allowed

if TYPE_CHECKING:
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.gateway.http.outbound import OutboundRequest
    from keyhole.gateway.http.stream import Stream
    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.policy.asks import AskSubject

_ALLOW = Verdict.ALLOW
_JUDGE, _TOKEN, _COLLECT, _CONNECT, _EXCHANGE, _RELAY, _ASK, _OVER = Stage


def judge_request(stream: Stream) -> None:
    """Judge the request, and send or refuse it."""
    connection, head = stream.connection, stream.head
    authorizer = stream.host.authorizer
    # 1. Authorise. The head was parsed by the one strict reader (I4).
    for owner in authorizer.decoys(head.raw):
        connection.state.note_decoy(owner, connection.name)
    if connection.state.frozen:
        refuse(stream, Decision(rule=DECOY_RULE), reason=Reason.FROZEN)
        return
    common = connection.shared.commons.requests
    limited = check_rates(connection.state, common, stream.began, index=authorizer.index)
    if limited is not None:
        refuse_for_now(stream, *limited)
        return
    # Attack: fill the disk with the log, and then use open connections without a trace (I8).
    if not connection.state.session.admitting():
        refuse(stream, Decision(), reason=Reason.NOT_ADMITTING)
        return
    if stream.host.http is not None and not stream.host.takes((connection.protocol,)):
        refuse(stream, Decision(rule=stream.host.http_rule), reason=Reason.HTTP_VERSION)
        return
    decision = authorizer.decide(head)
    if decision.verdict is not _ALLOW:
        subject = _subject(stream, decision)
        if subject is None:
            refuse(stream, decision)
            return
        # Nothing more is read of a waiting request, and nothing of it was sent.
        known = _earlier_answer(stream, subject)
        if known is None:
            # A waiting request counts against the limit, so that answers cannot exceed it (I9).
            hold_place(stream)
            stream.move(_ASK)
            stream.wait(_ask(stream, subject))
            return
        if not known.allowed:
            refuse(stream, known)
            return
        decision = known
    _admit(stream, decision)


def _admit(stream: Stream, decision: RequestDecision, *, may_spend: bool = False) -> None:
    """Continue with a request that a rule or a person allows. `may_spend`: the person allows to
    spend more than the share of a budget at which they are asked."""
    authorizer, head = stream.host.authorizer, stream.head
    if not may_spend and _asks_to_spend(stream, decision):
        return
    limited = enter(stream, decision.service or "")
    if limited is not None:
        refuse_for_now(stream, *limited)
        return
    # 2. Validate.
    if head.length > stream.body_limit:
        refuse_large(stream, decision)
        return
    if authorizer.canary and head.websocket:
        stream.canary = FrameCanary(authorizer.canary)
    elif authorizer.canary and head.length != 0:
        stream.canary = CanaryScanner(authorizer.canary)
    # 3. Touch: strip the client's credentials, and inject ours (I6).
    _authorize(stream, decision)


# ── a person is asked ─────────────────────────────────────────────────────────────────────────────


def _asks_to_spend(stream: Stream, decision: RequestDecision) -> bool:
    """Hold or refuse a request if the share of a budget is spent at which a person is asked. False:
    the request may continue."""
    state, service = stream.connection.state, decision.service or ""
    meter, asking = state.meters.get(service), state.asking
    line = meter.soft_line() if meter is not None else None
    if meter is None or line is None or meter.spent() is not None:
        return False  # the hard line refuses by itself
    if asking is None:
        refuse_for_now(stream, Decision(reason=Reason.OVER_BUDGET, rule=line.rule), 0.0)
        return True
    connection = stream.connection
    subject = budget_subject(connection.name, connection.destination.port, service, line)
    known = asking.settled(subject)
    if known is None:
        hold_place(stream)
        stream.move(_ASK)
        stream.wait(_ask(stream, subject, decision))
        return True
    if not known.allowed:
        refuse(stream, Decision(reason=known.reason, rule=line.rule))
        return True
    return False


def _subject(stream: Stream, decision: RequestDecision) -> AskSubject | None:
    """The question about a request that no rule names; None: no question is allowed about it."""
    connection, head = stream.connection, stream.head
    asking = connection.state.asking
    if asking is None or head.word not in WORDS:
        return None
    port, service = connection.destination.port, decision.service or ""
    return asking.request_subject(connection.name, port, head.word, head.path, decision, service)


def _earlier_answer(stream: Stream, subject: AskSubject) -> RequestDecision | None:
    """The decision by an earlier answer; None if the person must be asked."""
    asking = stream.connection.state.asking
    known = asking.settled(subject) if asking is not None else None
    return None if known is None else _answered(known, subject)


def _answered(said: Decision, subject: AskSubject) -> RequestDecision:
    return RequestDecision(said.verdict, said.reason, said.rule, subject.service)


async def _ask(stream: Stream, subject: AskSubject, before: RequestDecision | None = None) -> None:
    """`before` is the decision on the request itself, if the question is about a budget."""
    connection = stream.connection
    asking = connection.state.asking
    if asking is None:
        return
    said = await asking.wait(subject, connection.channel.is_there)
    with connection.resuming(stream):
        _go_on_answered(stream, _answered(said, subject), subject, before)


def _go_on_answered(
    stream: Stream, said: RequestDecision, subject: AskSubject, before: RequestDecision | None
) -> None:
    """Continue after a person's answer. The policy may have changed meanwhile, so the head is read
    and judged again. The answer counts only if still no rule of the same service names the request,
    or for the service's budget."""
    host = stream.connection.host
    if host is not stream.host:
        stream.host = host
        stream.head = host.authorizer.reader.parse(stream.head.raw)
    stream.move(_JUDGE)
    barred = stream.connection.state.barred()
    if barred is not None:
        refuse(stream, barred, reason=barred.reason)
        return
    decision = host.authorizer.decide(stream.head)
    spends = before is not None
    if decision.reason is Reason.NO_RULE and decision.service == said.service:
        decision = said if before is None else before
    if not decision.allowed:
        refuse(stream, decision)
    elif spends and not said.allowed:
        refuse(stream, Decision(reason=said.reason, rule=subject.rule))
    else:
        _admit(stream, decision, may_spend=spends and decision.service == said.service)


def _authorize(stream: Stream, decision: RequestDecision) -> None:
    authorizer, connection = stream.host.authorizer, stream.connection
    try:
        request = authorizer.authorize(stream.head, decision)
    except RequestUnfit as error:
        refuse_unfit(stream, error, decision)
        return
    if isinstance(request, Minting):
        if stream.stage is _TOKEN:
            _refuse_without_token(stream, decision, "the token ends as soon as it is there")
            return
        stream.move(_TOKEN)
        stream.wait(_fetch_token(stream, request, decision))
        return
    if request.by_head is not None and not request.by_head.allowed:
        refuse_judged(stream, request.by_head, read=stream.head.length == 0)
        return
    if authorizer.mints:
        aging = authorizer.aging_token(request.service)
        if aging is not None:
            aging.renew(connection.shared.upstream, stream.host.interception.trust)
    credential = request.credential
    signs = credential is not None and credential.signer is not None
    if request.operation is None and request.unjudged is None and not signs:
        stream.send(request)
    else:
        _look_at_body(stream, request)


async def _fetch_token(stream: Stream, minting: Minting, decision: RequestDecision) -> None:
    connection = stream.connection
    try:
        await minting.fetch(connection.shared.upstream, stream.host.interception.trust)
    except CredentialUnusable as error:
        failed = str(error)
    else:
        failed = ""
    with connection.resuming(stream):
        _go_on_with_token(stream, decision, failed)


def _go_on_with_token(stream: Stream, decision: RequestDecision, failed: str) -> None:
    host = stream.connection.host
    if host is not stream.host:
        # The policy has changed meanwhile: the head is read and judged again.
        stream.host = host
        stream.head = host.authorizer.reader.parse(stream.head.raw)
        stream.move(_JUDGE)
        judge_request(stream)
    elif failed:
        _refuse_without_token(stream, decision, failed)
    else:
        _authorize(stream, decision)


def _refuse_without_token(stream: Stream, decision: RequestDecision, why: str) -> None:
    refuse(stream, decision, reason=Reason.CREDENTIAL_UNAVAILABLE, why=why)


def _look_at_body(stream: Stream, request: AuthorizedRequest) -> None:
    """Send a git request, a signed one or a judged one, or collect its body first."""
    head, operation, host = stream.head, request.operation, stream.host
    body = choose_body(request, stream.connection.state, host)
    judge = host.interception.judge
    if operation is not None and operation.announces_push and judge is not None:
        judge.prepare()
    if head.expects_continue and (operation is not None or body is not None):
        # The gateway sends its own request to the origin, so it answers the expectation itself.
        stream.connection.send_continue(stream)
        head.expects_continue = False
    if body is None:
        stream.send(request)
        return
    stream.move(_COLLECT)
    stream.collecting = Collecting(stream, stream.connection, host, body)
    if head.length == 0:
        stream.collecting.end()


# ── another policy ────────────────────────────────────────────────────────────────────────────────


def judge_again(stream: Stream, host: InspectedHost) -> None:
    """Judge an open request by the new policy: it continues only with the same service and
    destination."""
    response, collecting = stream.response, stream.collecting
    if response is not None:
        outbound = response.outbound
        stays = _may_stay(stream, host, outbound)
        if not stays or not response.search_for(host.outbound.needles()):
            stream.fail(Reason.POLICY_CHANGED, "", Decision())
            return
        meter = join_meter(stream, outbound.service)
        if meter is not None and response.tally is None:
            service = outbound.service
            tally = tally_for(meter, host.usage(service), stream.note_usage(service))
            if tally is not None:
                tally.join(stream.uploaded)
                response.tally = tally
    elif collecting is not None:
        if collecting.change(host):
            stream.host = host
            stream.head = collecting.body.request.head
            join_meter(stream, collecting.body.request.service)
            return
        collecting.abandon(Reason.POLICY_CHANGED)
        refuse(stream, Decision(), reason=Reason.POLICY_CHANGED)


def _may_stay(stream: Stream, host: InspectedHost, outbound: OutboundRequest) -> bool:
    before = stream.response.decision if stream.response is not None else Decision()
    decision = host.authorizer.decide_again(stream.head, outbound.service, before)
    if not decision.allowed or decision.service != outbound.service:
        return False
    grant = outbound.grant
    if grant is not None and host.authorizer.service(outbound.service).git != grant:
        return False
    judging = host.authorizer.find_judging(stream.head, decision, outbound.service)
    judge = judging.judge if judging is not None else None
    if outbound.judge is not judge and not (stream.sent and outbound.unread):
        return False
    place, origin = host.origin_of(outbound.transfer), stream.origin
    book = stream.connection.state.session.book
    return origin is None or still_allowed(book, place.host, place.port, origin.address)
