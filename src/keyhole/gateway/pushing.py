"""One push of a connection: from its list of commands to its answer, and what is written of it.

Made by `inspected.py` when the list is read. It decides nothing itself (`pushes.py` does) and has
no socket: the connection sends what it is told.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.pushes import Push, abandoned, events, objections, refused
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import replace
from keyhole.wire.receivepack import report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.gateway.errand import Errand
    from keyhole.gateway.inspected import Inspected
    from keyhole.gateway.pushbody import PushBody
    from keyhole.gateway.pushes import RefVerdict
    from keyhole.gateway.session import SessionState
    from keyhole.inject.scrub import Needles
    from keyhole.model.decision import Decision
    from keyhole.wire.receivepack import PushRequest


class Pushing:
    """A push whose commands are known."""

    __slots__ = ("_body", "_client", "_push", "_repository", "_request", "_state")

    def __init__(
        self,
        client: Inspected,
        state: SessionState,
        body: PushBody,
        request: PushRequest,
        push: Push,
    ) -> None:
        self._client = client
        self._state = state
        self._body = body
        self._request = request
        self._push = push
        self._repository = repository_of(body.asked.errand)

    async def run(self) -> None:
        """Judge it while its pack still comes, then send it on or say why not."""
        body, client = self._body, self._client
        if body.straight:
            verdicts = await self._push.foresee()
            if refused(verdicts):
                # Git must not be answered while it sends.
                body.read_anew(judged=False)
                client.read_again(body)
                await body.whole
        else:
            verdicts = await self._push.decide(body)
        client.go_on_with(partial(self._conclude, verdicts))

    def _conclude(self, verdicts: tuple[RefVerdict, ...], rest: bytes) -> bytes:
        body, client, repository = self._body, self._client, self._repository
        asked = body.asked
        for event in events(verdicts, client.host, asked.service, repository, body.size):
            client.note(event)
        words = refused(verdicts)
        if words:
            return self._refuse(verdicts, words, rest)
        asked = replace(asked, told=partial(self._told, verdicts))
        if body.straight:
            return client.send_on(asked, rest, None)
        spool = body.quarantine
        asked.head.length = spool.size if spool is not None else 0
        asked.head.expects_continue = False
        return client.send_on(asked, rest, spool)

    def _refuse(
        self, verdicts: tuple[RefVerdict, ...], words: Mapping[str, str], rest: bytes
    ) -> bytes:
        """In git's own form, where the client reads it."""
        client, asked, request = self._client, self._body.asked, self._request
        first = next(v.decision for v in verdicts if not v.decision.allowed)
        self._state.tell_refused_push(client.host, self._repository, words)
        if not request.wants_report:
            return client.refuse_request(asked.head, first, rest, why=next(iter(words.values())))
        client.note(request_event(self._body, client.host, first))
        return client.answer_push(self._body, report(request, words), rest)

    def _told(
        self, verdicts: tuple[RefVerdict, ...], results: Mapping[str, str], needles: Needles
    ) -> None:
        client = self._client
        for event in objections(verdicts, results, client.host, self._repository, needles):
            client.note(event)


def repository_of(errand: Errand | None) -> str:
    """The name by which it is written down."""
    return str(errand.repository) if errand is not None else ""


def request_event(body: PushBody, host: str, decision: Decision, reason: str = "") -> Event:
    """Of a push that is not sent on: the event of its request."""
    asked = body.asked
    details = (("method", asked.head.method), ("path", asked.head.path), ("service", asked.service))
    verdict = Verdict.DENY if reason else decision.verdict
    said = reason or decision.reason
    return Event(EventKind.REQUEST, verdict, said, decision.rule, host, details)


def abandoned_events(body: PushBody, host: str, reason: str) -> list[Event]:
    """Of one that ends before it was decided: what it wanted is written down all the same.

    Without a `reason`, which was written down of its request, its client is gone.
    """
    written, rule = [], body.asked.decision.rule
    if not reason:
        reason = refusal.CLIENT_LEFT
        written.append(request_event(body, host, body.asked.decision, reason))
    if body.request is not None:
        repository = repository_of(body.asked.errand)
        written += abandoned(body.request, reason, rule, host, repository)
    return written
