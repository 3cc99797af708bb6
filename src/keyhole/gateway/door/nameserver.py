"""DNS through the door, by UDP and by TCP. Every answer is made here; nothing is forwarded.

Called by the door's loop callbacks. Bounded: questions a second by policy, answers per tick here,
so that one sandbox's flood does not delay another's question.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from time import perf_counter
from typing import TYPE_CHECKING, cast

from keyhole.model.decision import DnsAnswer, Reason, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.policy.egress import TYPE_A, decide_dns
from keyhole.policy.learning_mode import MAX_LEARNT_NAMES
from keyhole.system import clock
from keyhole.wire import dns

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.gateway.door.synthetic import SyntheticNames
    from keyhole.gateway.session import SessionState
    from keyhole.gateway.turn import Turn
    from keyhole.policy.limit import TokenBucket

ANSWERS_PER_TICK = 16
"""Questions that one door may have answered before the loop looks at the others."""

MIN_PAUSE = 0.02
"""Seconds for which a door over its rate is not read, so that it then answers several at once."""

TCP_SILENCE = 10.0
"""Seconds that a DNS connection may be silent (RFC 7766 §6.2.3 asks for a few)."""

_TYPE_AAAA = 28
_SHOWN_NAME = 260
_IP_PKTINFO = 8
_PKTINFO = struct.Struct("@I4s4s")
_ANCILLARY = socket.CMSG_SPACE(_PKTINFO.size)


class NameServer:
    """Answers the questions of one session."""

    __slots__ = ("_common", "_loop", "_state", "_synthetic")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        synthetic: SyntheticNames,
        common: TokenBucket | None = None,
    ) -> None:
        """`common` is the rate of all sessions together."""
        self._loop = loop
        self._state = state
        self._synthetic = synthetic
        self._common = common

    @property
    def turn(self) -> Turn:
        """The session's share of the loop's time."""
        return self._state.turn

    def wait(self) -> float:
        """Seconds until the next question may be answered."""
        now = self._loop.time()
        wait = self._state.questions.wait(now)
        if wait:
            self._state.over_rate(self._state.questions, now)
            return max(MIN_PAUSE, wait)
        common = self._common
        if common is None or not (wait := common.wait(now)):
            return 0.0
        self._state.over_rate(common, now)
        return max(MIN_PAUSE, wait)

    def answer(self, data: bytes) -> bytes | None:
        """Decide one message, record the decision, and make the reply."""
        now = self._loop.time()
        self._state.questions.take(now)
        if self._common is not None:
            self._common.take(now)
        question = dns.parse(data)
        session = self._state.session
        if isinstance(question, dns.DnsMalformed):
            why = ("why", question.reason)
            self._state.record(
                Event(EventKind.DNS, Verdict.DENY, Reason.DNS_MALFORMED, details=(why,))
            )
            return question.reply
        name, kind = question.name, question.type_name
        if not session.admitting():
            self._record_failure(Reason.NOT_ADMITTING, name, kind)
            return dns.failure(question)
        now, grants = clock.now(), self._state.grants
        decision = decide_dns(
            session.book,
            name,
            question.record_type,
            question.record_class,
            lambda host: grants.rule_for_name(host, now) or self._rule_of_asked(host),
        )
        if decision.answer is not DnsAnswer.ADDRESS:
            self._state.record(Event.of(EventKind.DNS, decision, _shown(name), type=kind))
            if decision.answer is DnsAnswer.NXDOMAIN and question.record_type in (
                TYPE_A,
                _TYPE_AAAA,
            ):
                # The port is not known yet; the suggested grant is for 443.
                self._state.tell(_shown(name).lower(), DEFAULT_PORT, decision.reason)
            return dns.answer(question, decision.answer, None)
        host, known = Host.parse(name), self._synthetic
        learning = decision.reason is Reason.LEARNING
        full = learning and len(known) >= MAX_LEARNT_NAMES and host not in known
        address = None if full else known.address(host)
        if address is None:
            self._record_failure(Reason.TABLE_FULL, name, kind)
            self._state.tell("limits", 0, Reason.TABLE_FULL)
            return dns.failure(question)
        details = {"type": kind, "address": str(address)}
        self._state.record(Event.of(EventKind.DNS, decision, _shown(name), **details))
        return dns.answer(question, decision.answer, address)

    def _rule_of_asked(self, host: Host) -> str | None:
        """A name that a person may be asked about exists: resolvers do not wait for a person, and
        its connection does."""
        asking = self._state.asking
        return asking.rule_for_name(host) if asking is not None else None

    def _record_failure(self, reason: str, name: str, kind: str) -> None:
        details = (("type", kind),)
        self._state.record(
            Event(EventKind.DNS, Verdict.DENY, reason, host=_shown(name), details=details)
        )


def _shown(name: str) -> str:
    return name[:_SHOWN_NAME]


class UdpNameServer:
    """Reads questions from the door's UDP socket while the rate allows."""

    __slots__ = ("_closed", "_loop", "_put_off", "_server", "_sock", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, server: NameServer
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._put_off = False
        """Whether questions wait for the session's turn."""
        sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop reading; the socket is the door's to close."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock, self._readable)

    def _readable(self) -> None:
        turn = self._server.turn
        if turn.left > 0:
            began = perf_counter()
            self._answer_some()
            turn.spend(began)
        elif not self._put_off:
            # Behind what waits: connections that use up each turn must not keep names from others.
            self._put_off = True
            turn.later(self._answer_later)

    def _answer_later(self) -> None:
        self._put_off = False
        if not self._closed:
            self._answer_some()

    def _answer_some(self) -> None:
        for _ in range(ANSWERS_PER_TICK):
            wait = self._server.wait()
            if wait:
                # Waiting questions are bounded by the socket's buffer; the kernel drops the rest.
                self._loop.remove_reader(self._sock)
                self._timer = self._loop.call_later(wait, self._resume)
                return
            try:
                data, ancillary, _, peer = self._sock.recvmsg(dns.MAX_MESSAGE + 1, _ANCILLARY)
            except OSError:
                return
            reply = self._server.answer(data)
            if reply is not None:
                self._send(reply, ancillary, peer)

    def _send(
        self, reply: bytes, ancillary: list[tuple[int, int, bytes]], peer: tuple[str, int]
    ) -> None:
        """Answer from the address that was asked: a client drops an answer from another one."""
        asked = next((d for _, kind, d in ancillary if kind == _IP_PKTINFO), None)
        if asked is None or len(asked) != _PKTINFO.size:
            return
        source = _PKTINFO.pack(0, _PKTINFO.unpack(asked)[2], bytes(4))
        try:
            self._sock.sendmsg([reply], [(socket.IPPROTO_IP, _IP_PKTINFO, source)], 0, peer)
        except OSError:
            return  # the client is gone, or its buffer is full: it asks again


class TcpNameServer(asyncio.BufferedProtocol):
    """DNS over one TCP connection: length-prefixed messages, answered in order (RFC 7766)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: NameServer,
        closed: Callable[[TcpNameServer], None],
    ) -> None:
        self._loop = loop
        self._server = server
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._chunk = bytearray(dns.MAX_MESSAGE)
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._watch()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Read little at a time: a flood waits in the kernel, not here."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes."""
        began = perf_counter()
        self._buffer += self._chunk[:nbytes]
        self._work()
        self._server.turn.spend(began)

    def eof_received(self) -> bool:
        """Close after the last reply; replies are written at once."""
        return False

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the transport."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._timer = None
        self._closed(self)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its replies."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(TCP_SILENCE, self.abort)

    def _work(self) -> None:
        transport, buffer = self._transport, self._buffer
        if transport is None:
            return
        while len(buffer) >= 2:
            length = int.from_bytes(buffer[:2], "big")
            if length > dns.MAX_MESSAGE:
                transport.close()
                return
            if len(buffer) < 2 + length:
                break
            wait = self._server.wait()
            if wait:
                transport.pause_reading()
                self._timer = self._later(wait)
                return
            message = bytes(buffer[2 : 2 + length])
            del buffer[: 2 + length]
            reply = self._server.answer(message)
            if reply is None:
                transport.close()
                return
            transport.write(len(reply).to_bytes(2, "big") + reply)
        self._watch()

    def _later(self, wait: float) -> asyncio.TimerHandle:
        if self._timer is not None:
            self._timer.cancel()
        return self._loop.call_later(wait, self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
        self._work()
