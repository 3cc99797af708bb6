"""Collects a body that is needed before its request is sent: a fetch, a push, LFS, a signed body, a
judged body.

Made by `judging.py`; `stream.py` passes the body on as it arrives. When the body is complete and
judged, the stream sends the request or refuses it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from keyhole.gateway.bodies import BufferedBody
from keyhole.gateway.git.fetches import FetchBody
from keyhole.gateway.git.largefiles import LargeFileBody
from keyhole.gateway.git.push_body import PushBody
from keyhole.gateway.git.push_decision import PushDecider
from keyhole.gateway.git.push_exchange import PushExchange
from keyhole.gateway.git.remote import RemoteRepository
from keyhole.gateway.http.judged_body import JudgedBody
from keyhole.gateway.http.record import record_judged, record_notes, record_unsent
from keyhole.gateway.http.refusing import refuse, refuse_judged, refuse_unfit, report_judged
from keyhole.gateway.refusal_messages import phrase_of
from keyhole.gateway.upstream.inquiry import Questions
from keyhole.http.response import Reply
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import RequestUnfit
from keyhole.policy.asks import AskSubject
from keyhole.policy.forge import GitEndpoint
from keyhole.policy.schema import AskKind

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from keyhole.gateway.bodies import CollectedBody
    from keyhole.gateway.git.push_report import ReportCallback
    from keyhole.gateway.git.quarantine import Quarantine
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.gateway.http.http_connection import HttpConnection
    from keyhole.gateway.http.stream import Stream
    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.gateway.session import SessionState
    from keyhole.model.event import Event
    from keyhole.policy.body import BodyJudgement
    from keyhole.wire.receive_pack import PushRequest


def choose_body(
    request: AuthorizedRequest, state: SessionState, host: InspectedHost
) -> CollectedBody | None:
    """How to collect the body of a request; None if it is streamed."""
    operation = request.operation
    if request.unjudged is not None:
        return JudgedBody(request, state, host.interception.quarantine)
    if operation is not None:
        if operation.endpoint is GitEndpoint.FETCH:
            return FetchBody(request, state, operation.version, gzip=operation.gzip)
        if operation.endpoint is GitEndpoint.PUSH:
            return PushBody(request, state, host.interception.quarantine)
        large = operation.large
        if large is not None and large.wants_body(request.head.method):
            return LargeFileBody(request, state, host.outbound)
    return BufferedBody(request, state) if host.outbound.wants_body(request) else None


class Collecting:
    """The body of one stream, while it is collected and judged."""

    __slots__ = ("_connection", "_counted", "_host", "_push", "_stream", "body")

    def __init__(
        self,
        stream: Stream,
        connection: HttpConnection,
        host: InspectedHost,
        body: CollectedBody,
    ) -> None:
        self.body = body
        self._stream = stream
        self._connection = connection
        self._host = host
        self._counted = 0
        self._push: PushExchange | None = None
        if isinstance(body, PushBody):
            self._push = PushExchange(
                self, connection.state, connection.name, body, self._make_decider
            )

    def take(self, data: bytes) -> None:
        """Bytes of the body. Raises OverLimit or Malformed."""
        push = self._push
        try:
            if push is not None and not push.body.streamed:
                self._count_with_framing()
            self.body.take(data, self._stream.body_limit)
            if push is not None:
                push.progress()
                if not push.body.streamed and self._stream.collecting is self:
                    self._count_with_framing()  # it is not streamed after all
        except RequestUnfit as error:
            self._refuse_unfit(error)

    def _count_with_framing(self) -> None:
        """Count a push with its framing: a chunk of one byte takes six bytes on the wire (I9)."""
        size = self._connection.wire_size(self._stream)
        self._counted, counted = size, self._counted
        self._stream.count_up(size - counted)

    def end(self) -> None:
        """The body is complete: judge it, and send the request with it. Raises Malformed."""
        body, stream = self.body, self._stream
        try:
            if isinstance(body, PushBody):
                body.end()
                if self._push is not None:
                    self._push.progress()
            elif isinstance(body, JudgedBody):
                if body.is_quick:
                    self._obey(body, body.judge())
                else:
                    stream.wait(self._judge_apart(body))
            elif isinstance(body, FetchBody) and body.large:
                stream.wait(self._read_apart(body))
            elif isinstance(body, BufferedBody):
                stream.send(body.request, body.finish())
        except RequestUnfit as error:
            self._refuse_unfit(error)

    async def _read_apart(self, body: FetchBody) -> None:
        """Read a long fetch in a thread, where it delays no other session."""
        connection = self._connection
        try:
            collected = await body.finish_apart(connection.loop, connection.shared.fetches)
        except RequestUnfit as error:
            with connection.resuming(self._stream):
                self._refuse_unfit(error)
        else:
            with connection.resuming(self._stream):
                self._stream.send(body.request, collected)

    async def _judge_apart(self, body: JudgedBody) -> None:
        """Judge a long body in slices, between which other sessions are served."""
        connection = self._connection
        try:
            said = await body.judge_apart(connection.shared.bodies)
        except RequestUnfit as error:
            with connection.resuming(self._stream):
                self._refuse_unfit(error)
        else:
            with connection.resuming(self._stream):
                self._obey(body, said)

    def _obey(self, body: JudgedBody, said: BodyJudgement) -> None:
        """Send the body that was judged, answer, or refuse."""
        stream, spool = self._stream, body.spool
        record_notes(stream, body.judging.judge)
        if said.answer is not None:
            record_judged(stream, said)
            if said.answer and not said.decision.allowed:
                report_judged(stream, said)
            lines = (f"Content-Type: {said.media}\r\n".encode(),)
            stream.answer(Reply(said.status, phrase_of(said.status), lines, said.answer))
        elif not said.allowed:
            refuse_judged(stream, said)
        elif spool is not None and said.body is None:
            stream.send_spool(body.request, body.collected(), spool, said.reader)
        else:
            stream.send(body.request, body.collected(said.body), reader=said.reader)

    def _refuse_unfit(self, error: RequestUnfit) -> None:
        self.abandon(error.reason)
        refuse_unfit(self._stream, error, self.body.request.decision)

    def change(self, host: InspectedHost) -> bool:
        """Another policy is in force: whether it allows the request by the same grant."""
        again = host.authorizer.authorize_again(self.body.request)
        if again is None or (again.unjudged is not None) is not isinstance(self.body, JudgedBody):
            return False
        again.head.expects_continue = False
        self.body.request = again
        self._host = host
        return True

    def abandon(self, reason: str) -> None:
        """End the request before it is sent. `reason` is recorded; None: the client has left."""
        if self._push is not None:
            for event in self._push.abandoned(reason):
                self._connection.note(event)
        elif not reason:
            record_unsent(self._stream, Reason.CLIENT_LEFT, self.body.request.decision.rule)

    def close(self) -> None:
        """Release memory and disk."""
        self.body.forget()
        self._push = None

    # ── a push's calls ────────────────────────────────────────────────────────────────────────────

    def _make_decider(self, commands: PushRequest) -> PushDecider:
        """The decider of a push: by the grant, with the origin's facts about its repository."""
        request, host, connection = self.body.request, self._host, self._connection
        operation = request.operation
        if operation is None:
            raise RequestUnfit("", "not a push")
        outbound = host.outbound
        questions = Questions(
            lambda: connection.client.dial(host, host.origin),
            host.pool,
            outbound.question,
            outbound.catalogued,
            connection.state.turn,
        )
        remote = RemoteRepository(questions, host.abilities, request.service, operation.path)
        service = outbound.service(request.service)
        judge, grant = host.interception.judge, operation.grant
        repository = str(operation.repository)
        ask = partial(self._ask_push, repository) if self._asks_pushes else None
        return PushDecider(service, grant, commands, remote, judge, ask)

    @property
    def _asks_pushes(self) -> bool:
        asking = self._connection.state.asking
        return asking is not None and asking.asks_pushes

    async def _ask_push(self, repository: str, ref: str, change: str) -> Decision:
        """Ask a person about a ref; the push waits."""
        connection, service = self._connection, self.body.request.service
        asking, port = connection.state.asking, connection.destination.port
        if asking is None:
            return Decision()
        subject = AskSubject(
            AskKind.PUSHES, connection.name, port, service, change, repository, ref
        )
        said = await asking.wait(subject, connection.channel.is_there)
        return (connection.state.barred() if said.allowed else None) or said

    def note(self, event: Event) -> None:
        """Record an event."""
        self._connection.note(event)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the connection."""
        self._stream.start(work)

    def hold(self) -> None:
        """Stop reading: later bytes wait."""
        self._connection.hold(self._stream)

    def read_on(self) -> None:
        """Read again, beginning with the bytes that waited."""
        with self._connection.resuming(self._stream):
            self._count_with_framing()  # bytes that arrived before the push was judged

    def refuse(self, decision: Decision, *, reason: str = "", why: str = "") -> None:
        """Answer with a refusal."""
        with self._connection.resuming(self._stream):
            refuse(self._stream, decision, reason=reason, why=why)

    def answer(self, reply: Reply) -> None:
        """Answer with this; the request was read whole, so the connection goes on."""
        with self._connection.resuming(self._stream):
            self._stream.answer(reply)

    def send_push(self, on_report: ReportCallback, first: bytes, spool: Quarantine | None) -> None:
        """Send the push: from quarantine, or `first` and then the rest as it arrives."""
        body = self.body
        whole = isinstance(body, PushBody) and body.ended
        with self._connection.resuming(self._stream):
            self._stream.send_push(body.request, on_report, spool, first, whole=whole)
