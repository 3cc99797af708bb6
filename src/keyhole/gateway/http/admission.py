"""The limits that a request must pass before it is sent, and its place among the requests under
way.

Rates and the number of requests at once are the session's and the gateway's; a service may have
limits of its own, which its meter counts (`budgets.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.budgets import body_limit
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.policy.budget import PLACE_WAIT

if TYPE_CHECKING:
    from keyhole.gateway.http.stream import Stream
    from keyhole.gateway.session import SessionState
    from keyhole.policy.budget import Meter
    from keyhole.policy.limit import TokenBucket

BODY_LIMIT = "limits.body"

_ALLOW = Verdict.ALLOW
_TOO_MANY = Decision(reason=Reason.OVER_LIMIT, rule="limits.concurrent_requests")

LimitRefusal = tuple[Decision, float]
"""Why a request is refused, and the seconds after which it may be repeated; 0: never in this
session."""


def check_rates(
    state: SessionState, common: TokenBucket | None, now: float, *, index: bool = False
) -> LimitRefusal | None:
    """Count a request against the rates of the session and of the gateway. `index` is whether its
    host is a package index and nothing else."""
    own = state.fetches if index else state.requests
    limited = own.take(now)
    if limited.verdict is not _ALLOW:
        return limited, own.wait(now)
    if common is not None and (limited := common.take(now)).verdict is not _ALLOW:
        return limited, common.wait(now)
    if state.busy >= state.limits.concurrent_requests:
        return _TOO_MANY, PLACE_WAIT
    return None


def hold_place(stream: Stream) -> None:
    """Take a place for a request that waits for a person, before its service counts it."""
    if not stream.admitted:
        stream.admitted = True
        stream.connection.state.busy += 1


def enter(stream: Stream, service: str) -> LimitRefusal | None:
    """Take a place among the requests under way, and count it to its service."""
    state, head = stream.connection.state, stream.head
    if stream.admitted:
        leave(stream)  # judged again
        stream.body_rule = BODY_LIMIT
    hold_place(stream)
    stream.body_limit = state.limits.body
    meter = state.meters.get(service)
    if meter is None:
        return None
    size = len(head.raw)
    refused = meter.admit(stream.began, size + max(0, head.length))
    if refused is not None:
        return refused
    stream.meter = meter
    meter.count_up(size)
    if head.length:
        most = body_limit(meter, head.word, head.path)
        if most is not None:
            stream.body_limit, stream.body_rule = most, f"services.{service}.bodies"
    return None


def leave(stream: Stream) -> None:
    """Release the place. Further calls do nothing."""
    if stream.admitted:
        stream.admitted = False
        stream.connection.state.busy -= 1
        meter = stream.meter
        if meter is not None:
            stream.meter = None
            meter.leave()


def join_meter(stream: Stream, service: str) -> Meter | None:
    """Count a request under way to a new budget: a WebSocket may last for days."""
    meter = stream.connection.state.meters.get(service)
    if meter is not None and stream.meter is None and stream.admitted:
        meter.join()
        stream.meter = meter
    return stream.meter


def name_rule(stream: Stream, decision: Decision) -> Decision:
    """The decision on a body that is too large, with the rule that limits it."""
    if stream.body_rule == BODY_LIMIT:
        return decision
    return Decision(reason=decision.reason, rule=stream.body_rule)
