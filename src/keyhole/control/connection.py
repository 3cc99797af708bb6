"""One connection to the control socket: one request in, one answer or a stream out, closed.

Made by `server.py` for a peer that may ask. Plain sockets and the loop's readers rather than a
transport, because transports drop descriptors that come along with bytes. Each turn of the loop
reads or writes one bounded piece, each phase has a deadline, and descriptors that came are closed
at the end in any case.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from keyhole.control.dispatch import OperationCall, begin_stream, perform
from keyhole.control.received_door import ANCILLARY, ReceivedDescriptors, ReceivedDoor
from keyhole.control.request import MAX_BODY, RequestBuffer
from keyhole.control.responses import ApiError, RequestRejected, error_response, stream_head
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.control.event_feed import EventFeed
    from keyhole.control.interface import Operations
    from keyhole.control.peer import Peer
    from keyhole.control.request import ControlRequest

RECEIVE_SECONDS = 5.0
"""How long a request may take to arrive; it comes from this host."""

WORK_SECONDS = 30.0
"""How long an operation may take: an `exec:` secret may have to be fetched for it."""

SEND_SECONDS = 10.0
"""How long an answer may take to be read."""

READ_AT_ONCE = MAX_BODY
"""Bytes read in one turn."""

WRITE_AT_ONCE = 256 * 1024
"""Bytes written in one turn."""


class ControlConnection:
    """A connection from its first byte to its last."""

    __slots__ = (
        "_answer", "_buffer", "_descriptors", "_door", "_ended", "_feed", "_loop", "_namespace",
        "_operations", "_reading", "_sock", "_task", "_timer", "_turns", "_writing", "peer",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: Peer,
        operations: Operations,
        namespace: bytes,
        ended: Callable[[ControlConnection], None],
        turns: asyncio.Semaphore,
    ) -> None:
        """`turns` is the semaphore that operations take unless they are urgent."""
        self.peer = peer
        self._loop = loop
        self._sock = sock
        self._operations = operations
        self._namespace = namespace
        self._ended = ended
        self._turns = turns
        self._buffer = RequestBuffer()
        self._descriptors = ReceivedDescriptors()
        self._door: ReceivedDoor | None = None
        self._answer = memoryview(b"")
        self._feed: EventFeed | None = None
        """The stream that is sent, if the peer asked for one."""
        self._task: asyncio.Task[bytes] | None = None
        self._writing = False
        self._reading = True
        self._timer = loop.call_later(
            RECEIVE_SECONDS, self._reject, RequestRejected(ApiError.TOO_LATE)
        )
        loop.add_reader(sock, self._readable)

    def abort(self) -> asyncio.Task[bytes] | None:
        """End the connection now; returns its task, which is cancelled."""
        task = self._task
        if task is not None:
            task.cancel()
        self._close()
        return task

    def stop(self) -> None:
        """The gateway is about to end: a request that is not complete is refused, a stream ends."""
        if self._feed is not None:
            self._close()
        elif self._reading:
            self._reject(RequestRejected(ApiError.STOPPING))

    # ── the request ───────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                READ_AT_ONCE, ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._close()
            return
        self._descriptors.take_in(ancillary, flags)
        try:
            if self._descriptors.too_many:
                raise RequestRejected(ApiError.MALFORMED, "more descriptors than a door has")
            if not data:
                if not self._buffer:
                    self._close()
                    return
                raise RequestRejected(ApiError.MALFORMED, "the request ends before it is whole")
            asked = self._buffer.feed(data)
            if asked is not None:
                self._begin(asked)
        except RequestRejected as rejected:
            self._reject(rejected)

    def _begin(self, asked: ControlRequest) -> None:
        self._door = self._take_door(asked)
        self._stop_reading()
        call = OperationCall(asked, self._door, self.peer)
        if asked.operation.stream:
            self._begin_stream(call)
            return
        self._timer = self._loop.call_later(WORK_SECONDS, self._give_up)
        self._task = self._loop.create_task(self._perform(call))
        self._task.add_done_callback(self._done)

    async def _perform(self, call: OperationCall) -> bytes:
        if call.asked.operation.urgent:
            return await perform(self._operations, call)
        async with self._turns:
            return await perform(self._operations, call)

    def _take_door(self, asked: ControlRequest) -> ReceivedDoor | None:
        if not asked.operation.descriptors:
            if self._descriptors:
                raise RequestRejected(ApiError.MALFORMED, "this takes no descriptors")
            return None
        names = asked.body.door
        if not names and not self._descriptors:
            return None
        try:
            return self._descriptors.as_door(names, self._namespace)
        except Refused as unfit:
            raise RequestRejected(ApiError.MALFORMED, unfit.message) from None

    def _begin_stream(self, call: OperationCall) -> None:
        """Send lines until the peer closes the connection. Raises RequestRejected."""
        feed = self._feed = begin_stream(self._operations, call)
        self._answer = memoryview(stream_head())
        # A peer that says more, or leaves, has had enough.
        self._loop.add_reader(self._sock, self._close)
        self._reading = True
        feed.attach(self._writable)
        self._writable()

    # ── the work ──────────────────────────────────────────────────────────────────────────────────

    def _give_up(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._reject(RequestRejected(ApiError.TOO_SLOW))

    def _done(self, task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            if self._task is task:
                self._reject(RequestRejected(ApiError.STOPPING))
            return
        raised = task.exception()
        current = self._task is task
        self._task = None
        if raised is not None and not isinstance(raised, RequestRejected):
            # Its text may hold anything: it goes to the loop's handler, not to the peer.
            context = {"message": "a control operation failed", "exception": raised}
            self._loop.call_exception_handler(context)
            raised = RequestRejected(ApiError.FAULT)
        if not current:
            return
        if isinstance(raised, RequestRejected):
            self._reject(raised)
        else:
            self._send(task.result())

    # ── the answer ────────────────────────────────────────────────────────────────────────────────

    def _reject(self, rejected: RequestRejected) -> None:
        self._send(error_response(rejected))

    def _send(self, answer: bytes) -> None:
        self._stop_reading()
        # Descriptors that were not taken are closed before the peer gets its answer.
        self._drop_descriptors()
        self._answer = memoryview(answer)
        self._timer = self._loop.call_later(SEND_SECONDS, self._close)
        self._writable()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._answer[:WRITE_AT_ONCE])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._close()
            return
        self._answer = self._answer[sent:]
        if not self._answer and self._feed is not None:
            self._answer = memoryview(self._feed.take(WRITE_AT_ONCE))
        if not self._answer:
            self._pause_or_close()
        elif not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock, self._writable)

    def _pause_or_close(self) -> None:
        """Everything was sent: wait for more of a stream, or end."""
        if self._feed is None or self._feed.over:
            self._close()
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _stop_reading(self) -> None:
        self._timer.cancel()
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _drop_descriptors(self) -> None:
        self._descriptors.close()
        if self._door is not None:
            self._door.close()

    def _close(self) -> None:
        if self._sock.fileno() < 0:
            return
        feed, self._feed = self._feed, None
        self._stop_reading()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
        self._task = None
        self._drop_descriptors()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self.peer.close()
        self._ended(self)
        if feed is not None:
            feed.attach(lambda: None)
            feed.close()
