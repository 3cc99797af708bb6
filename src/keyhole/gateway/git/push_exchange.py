"""One push: judged while its pack still arrives, then sent on or refused, and recorded.

Made by `http/collecting.py` for a push that policy allows as a request. `push_decision.py` decides;
this module calls it, and instructs the stream. It has no socket.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway import refusal_messages
from keyhole.gateway.git.push_decision import refused
from keyhole.gateway.git.push_events import abandoned_events, decision_events, objection_events
from keyhole.model.decision import Reason, Verdict
from keyhole.model.errors import Malformed
from keyhole.model.event import Event, EventKind
from keyhole.wire.pkt_line import FLUSH
from keyhole.wire.receive_pack import refusal_report

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from keyhole.gateway.git.push_body import PushBody
    from keyhole.gateway.git.push_decision import PushDecider, RefVerdict
    from keyhole.gateway.git.push_report import ReportCallback
    from keyhole.gateway.git.quarantine import Quarantine
    from keyhole.gateway.session import SessionState
    from keyhole.http.response import Reply
    from keyhole.inject.scrub import Needles
    from keyhole.model.decision import Decision
    from keyhole.wire.receive_pack import PushRequest


class PushStream(Protocol):
    """The stream that a push came on."""

    def note(self, event: Event) -> None:
        """Record an event."""

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the stream."""

    def hold(self) -> None:
        """Read no further: later bytes wait."""

    def read_on(self) -> None:
        """Read again, beginning with the bytes that waited."""

    def refuse(self, decision: Decision, *, reason: str = "", why: str = "") -> None:
        """Answer with a refusal."""

    def answer(self, reply: Reply) -> None:
        """Answer with this; the request was read whole."""

    def send_push(self, on_report: ReportCallback, first: bytes, spool: Quarantine | None) -> None:
        """Send the push: from quarantine, or `first` and then the rest as it arrives."""


class PushExchange:
    """A push from its first byte to its answer."""

    __slots__ = ("_host", "_make_decider", "_started", "_state", "_stream", "body")

    def __init__(
        self,
        stream: PushStream,
        state: SessionState,
        host: str,
        body: PushBody,
        make_decider: Callable[[PushRequest], PushDecider],
    ) -> None:
        self.body = body
        self._stream = stream
        self._state = state
        self._host = host
        self._make_decider = make_decider
        self._started = False

    @property
    def repository(self) -> str:
        """The repository's name for the audit log."""
        operation = self.body.request.operation
        return str(operation.repository) if operation is not None else ""

    def progress(self) -> None:
        """More of the body has come. Raises Malformed or RequestUnfit.

        The push is judged as soon as its list of commands is here; its pack may come meanwhile.
        """
        body, commands = self.body, self.body.commands
        if commands is None:
            return
        if commands.is_probe:
            if body.ended:
                self._answer_probe()
            return
        if self._started:
            return
        self._started = True
        if body.streamed and (commands.shallow or not commands.has_pack):
            # A shallow push must be looked at, and nothing may follow a list without a pack.
            body.judge_pack()
        if body.streamed:
            self._stream.hold()
        self._stream.start(self._run(self._make_decider(commands)))

    def _answer_probe(self) -> None:
        """Answer an empty list of commands, which git sends before a large push to test the
        connection."""
        body = self.body
        if body.size != len(FLUSH):
            raise Malformed("something follows an empty list of commands")
        self._stream.note(self._request_event(body.request.decision))
        self._stream.answer(refusal_messages.push_reply(b""))

    async def _run(self, decider: PushDecider) -> None:
        """Judge the push while its pack still arrives, then send or refuse it."""
        body, stream = self.body, self._stream
        if not body.streamed:
            verdicts = await decider.decide(body)
        else:
            verdicts = await decider.decide_by_names()
            if refused(verdicts):
                # Git must not be answered while it sends.
                body.discard()
                stream.read_on()
                await body.whole
        self._conclude(verdicts)

    def _conclude(self, verdicts: tuple[RefVerdict, ...]) -> None:
        body, stream, repository = self.body, self._stream, self.repository
        service = body.request.service
        for event in decision_events(verdicts, self._host, service, repository, body.size):
            stream.note(event)
        words = refused(verdicts)
        if words:
            self._refuse(verdicts, words)
            return
        stream.send_push(
            partial(self._note_objections, verdicts), body.take_first(), body.quarantine
        )

    def _refuse(self, verdicts: tuple[RefVerdict, ...], words: Mapping[str, str]) -> None:
        """Refuse in git's own form, which the client shows."""
        stream, commands = self._stream, self.body.commands
        first = next(v.decision for v in verdicts if not v.decision.allowed)
        self._state.tell_refused_push(self._host, self.repository, words)
        if commands is None or not commands.wants_report:
            stream.refuse(first, why=next(iter(words.values())))
            return
        stream.note(self._request_event(first))
        stream.answer(refusal_messages.push_reply(refusal_report(commands, words)))

    def _note_objections(
        self, verdicts: tuple[RefVerdict, ...], results: Mapping[str, str], needles: Needles
    ) -> None:
        """Record the refs that the origin has refused."""
        for event in objection_events(verdicts, results, self._host, self.repository, needles):
            self._stream.note(event)

    def _request_event(self, decision: Decision, reason: str = "") -> Event:
        """The event of a request that is not sent on."""
        request = self.body.request
        details = (
            ("method", request.head.method),
            ("path", request.head.path),
            ("service", request.service),
        )
        verdict = Verdict.DENY if reason else decision.verdict
        said = reason or decision.reason
        return Event(EventKind.REQUEST, verdict, said, decision.rule, self._host, details)

    def abandoned(self, reason: str) -> list[Event]:
        """The events of a push that ends before it was decided.

        `reason` is the recorded one of its request; without it, the client has gone.
        """
        written, decision = [], self.body.request.decision
        if not reason:
            reason = Reason.CLIENT_LEFT
            written.append(self._request_event(decision, reason))
        if self.body.commands is not None:
            written += abandoned_events(
                self.body.commands, reason, decision.rule, self._host, self.repository
            )
        return written
