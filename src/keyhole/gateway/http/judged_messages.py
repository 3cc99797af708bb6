"""Judges the messages of a client's WebSocket like bodies, one after the other.

Made by `stream.py` for a WebSocket whose handshake was judged. A message waits until it is complete
and judged, and then passes unchanged. The first refused message closes the WebSocket; a client that
repeats it as a request gets the full reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.gateway.http.judged_body import each_turn
from keyhole.gateway.http.record import record_judged, record_notes
from keyhole.gateway.http.states import Stage
from keyhole.gateway.refusal_messages import close_reason
from keyhole.gateway.request_facts import make_facts
from keyhole.model.errors import Malformed, OverLimit
from keyhole.policy.body import NOT_TEXT, read_facts
from keyhole.wire.client_messages import ClientMessages, write_text
from keyhole.wire.strict_json import is_quick, read_json_in_slices

if TYPE_CHECKING:
    from keyhole.gateway.http.stream import Stream
    from keyhole.gateway.requests import AuthorizedRequest, BodyJudging
    from keyhole.policy.body import BodyFacts, BodyJudgement
    from keyhole.wire.client_messages import ClientMessage

MAX_MESSAGE = 16 << 20
"""Bytes of one message: Codex sends a whole conversation in its first."""

FRAMES_OF_A_TURN = 256
"""Messages and control frames that are handled in one turn of the loop. Attack: one read with
40,000 pings (I12)."""


class JudgedMessages:
    """The messages of one stream."""

    __slots__ = ("_busy", "_counted", "_facts", "_judge", "_reader", "_stream")

    def __init__(self, stream: Stream, request: AuthorizedRequest, judging: BodyJudging) -> None:
        self._stream = stream
        self._facts = make_facts(request, judging)
        self._judge = judging.judge
        self._reader = ClientMessages(min(MAX_MESSAGE, judging.judge.most))
        self._busy = False
        """Whether a task is judging the collected bytes."""
        self._counted = 0

    def take(self, data: bytes) -> None:
        """Bytes of the client. Raises Malformed or OverLimit."""
        self._reader.feed(data)
        self._count()
        if self._busy:
            self._stream.connection.hold(self._stream)
        else:
            self._go_on()

    def forget(self) -> None:
        """Release the memory."""
        self._stream.connection.state.gather(-self._counted)
        self._counted = 0

    def _count(self) -> None:
        held = self._reader.held
        self._stream.connection.state.gather(held - self._counted)
        self._counted = held

    def _go_on(self) -> None:
        """Judge the collected bytes, until none are left or a long message needs a task."""
        for _ in range(FRAMES_OF_A_TURN):
            found = self._reader.take()
            if found is None:
                self._count()
                return
            if found.control:
                self._stream.upload(found.wire)
            elif is_quick(found.payload):
                self._obey(found, self._judge.judge_message(self._read(found)))
            else:
                self._wait(found)
                return
            if self._stream.stage is not Stage.RELAY:
                return
        self._wait(None)

    def _wait(self, found: ClientMessage | None) -> None:
        self._busy = True
        self._stream.wait(self._work_apart(found))

    async def _work_apart(self, found: ClientMessage | None) -> None:
        """Judge a long message in slices, then continue in another turn of the loop."""
        stream, said = self._stream, None
        connection = stream.connection
        if found is None:
            await asyncio.sleep(0)
        else:
            places, state = connection.shared.bodies, connection.state
            try:
                await places.take(state)
            except OverLimit as error:
                stream.cut(error.reason)
                return
            try:
                said = await self._judge_apart(found)
            finally:
                places.leave(state)
        self._busy = False
        with connection.resuming(stream):
            if found is not None and said is not None:
                self._obey(found, said)
            if stream.stage is Stage.RELAY:
                self._go_on()

    async def _judge_apart(self, found: ClientMessage) -> BodyJudgement:
        facts = replace(self._facts, size=len(found.payload), flaw="" if found.text else NOT_TEXT)
        if found.text:
            slices = read_json_in_slices(found.payload, self._judge.kept_text)
            try:
                facts = replace(facts, json=await each_turn(slices))
            except Malformed as error:
                facts = replace(facts, flaw=error.why)
        return await each_turn(self._judge.judge_message_in_slices(facts))

    def _read(self, found: ClientMessage) -> BodyFacts:
        if not found.text:
            return replace(self._facts, body=found.payload, flaw=NOT_TEXT)
        return read_facts(replace(self._facts, flaw=""), found.payload)

    def _obey(self, found: ClientMessage, said: BodyJudgement) -> None:
        stream = self._stream
        record_notes(stream, self._judge)
        if said.allowed:
            stream.upload(found.wire if said.body is None else write_text(said.body))
            return
        record_judged(stream, said)
        connection, head = stream.connection, stream.head
        connection.state.reports.request(
            head.word, connection.name, head.path, said.decision.reason, said.why
        )
        stream.close_relay(close_reason(said.why))
