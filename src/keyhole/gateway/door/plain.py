"""Judges plain HTTP requests to a host of a service: only reads, and without any credential (I6).

Used by the door for port 80 of a host that is inspected on 443. Such a request is passed on
unchanged or refused; nothing is added to it or removed from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.http.field import folded, overrides_method
from keyhole.http.plain import field_names
from keyhole.http.request import Treatment
from keyhole.inject.credential_stripper import CredentialStripper
from keyhole.model.decision import Decision, Reason
from keyhole.policy.request import RequestFacts, decide_request

if TYPE_CHECKING:
    from keyhole.gateway.context import Destination, DoorContext
    from keyhole.gateway.session import SessionState
    from keyhole.http.request import RequestHead


class PlainJudge:
    """Judges the requests of one connection."""

    __slots__ = ("_destination", "_shared", "_state", "_stripper")

    def __init__(self, shared: DoorContext, state: SessionState, destination: Destination) -> None:
        self._shared = shared
        self._state = state
        self._destination = destination
        self._stripper = CredentialStripper((), ())

    def __call__(self, head: RequestHead) -> Decision:
        """Decide a request."""
        state, stripper = self._state, self._stripper
        if head.method not in ("GET", "HEAD"):
            return Decision(reason=Reason.METHOD_REFUSED)
        if head.dns_message:
            return Decision(reason=Reason.DNS_OVER_HTTPS)
        # The bytes go on as they are, so fields that are removed elsewhere are refused here.
        sent = field_names(head.raw)
        names = {*sent, *map(folded, sent)}
        if any(map(overrides_method, names)):
            return Decision(reason=Reason.METHOD_OVERRIDE)
        query = head.query or ""
        removed = any(stripper.treat(name) is Treatment.DROP for name in names)
        if removed or stripper.query(query) != query:
            return Decision(reason=Reason.CREDENTIAL_IN_THE_CLEAR)
        state.requested += 1
        now = self._shared.loop.time()
        common = self._shared.commons.requests
        for bucket in (state.requests, common) if common is not None else (state.requests,):
            limited = bucket.take(now)
            if not limited.allowed:
                return limited
        if not state.session.admitting():
            return Decision(reason=Reason.NOT_ADMITTING)
        request = RequestFacts(head.word, head.path, query)
        host, port = self._destination.host, self._destination.port
        decision = decide_request(state.session.book, host, port, request)
        if not decision.allowed:
            return decision
        meter = state.meters.get(decision.service or "")
        refused = meter.pass_by(now) if meter is not None else None
        return refused if refused is not None else decision
