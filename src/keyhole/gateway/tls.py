"""TLS in memory over a plain transport: a connection reads and writes plain text.

Used by a client's connection (`http/connection.py`) and by an origin's (`upstream/origin.py`), each
of which is the channel's `user`. TLS is OpenSSL's, through memory buffers: the door reads the hello
before TLS begins, and idle connections keep no receive buffer of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from keyhole.gateway.sockets import is_there, reset
from keyhole.gateway.turn import UNBOUNDED, Turn
from keyhole.model.errors import Misuse
from keyhole.system.tls import insist_on_verifying

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from keyhole.gateway.channel_user import ChannelUser

RECORD = 16 * 1024
"""Bytes of the largest TLS record; asking OpenSSL for less strands the rest of one inside it."""

WRITE_BUFFER = 64 * 1024
"""Bytes waiting for a slow reader at which the other side is no longer read from; one more
read may come on top."""

MAX_UNSENT = 2 << 20
"""Bytes waiting for a peer at which OpenSSL's own words are no longer added: one that asks for new
keys again and again, and reads no answer, would fill the memory (I9)."""

SEND_AT_ONCE = 4 * RECORD - 256
"""Bytes encrypted before the transport gets them: the bound of OpenSSL's buffers. With what TLS
adds to four records, they still fit the 64 KiB that one packet has on a loopback interface, as a
door's is; a few bytes more are a second packet, and a fifth more work for the kernel."""

RECORD_ROOM = 22
"""Bytes that TLS 1.3 adds to a record."""

PORTION = 15 * (RECORD + RECORD_ROOM)
"""Bytes decrypted at a time: a connection's own buffer of OpenSSL's grows with what it is given,
and stays so (I9). As many whole records as go on in four writes; with one more there would be a
fifth, of next to nothing."""

MAX_LAST_READS = 64
"""Reads from a connection that was reset: no more than a kernel keeps for one."""

# All connections of the loop share one buffer each: bytes are consumed before the next read.
# A bulk transfer takes fewer turns the more is read in one.
_RECEIVED = memoryview(bytearray(2 * PORTION))
_PLAIN = memoryview(bytearray(17 * RECORD))
_PLAIN_FULL = len(_PLAIN) - RECORD

_LITTLE = _RECEIVED[:RECORD]
"""The buffer for a connection whose session has had its turn: its bytes are kept until the next
one. Also for one that reads little at a time, because few bytes may become many."""


_DUE: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Callable[[], None]]] = WeakKeyDictionary()
"""Callbacks for the end of a loop's turn."""


HTTP1, HTTP2 = "http/1.1", "h2"
"""The versions of HTTP by their names in ALPN."""

PROTOCOLS = (HTTP2, HTTP1)
"""Both, the one with many streams first."""


class TlsChannel(asyncio.BufferedProtocol):
    """One connection's TLS."""

    __slots__ = (
        "_decrypt", "_due", "_due_together", "_encrypt", "_established", "_in", "_late", "_out",
        "_paused", "_put_off", "_queue", "_soon", "_tls", "careful", "slow", "sock", "transport",
        "turn", "user",
    )  # fmt: skip

    def __init__(self, user: ChannelUser, sock: socket.socket | None = None) -> None:
        self.user: ChannelUser | None = user
        self.transport: asyncio.Transport | None = None
        self.sock = sock
        self.slow = False
        """Whether the peer takes bytes slower than they are written."""
        self._tls: ssl.SSLObject | None = None
        self._decrypt: Callable[[int, memoryview], int] = _without_tls
        self._encrypt: Callable[[bytes | memoryview], int] = _without_tls
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._established = False
        self._paused = False
        self._due = False
        """Whether small pieces wait for the end of this turn."""
        self._late = False
        """Whether the queue waits for it, too."""
        self._queue: list[bytes | memoryview] = []
        loop = asyncio.get_running_loop()
        self._soon = loop.call_soon
        self._due_together = _DUE.setdefault(loop, deque())
        self._put_off = b""
        """Bytes that came when the session had had its turn; nothing more is read meanwhile."""
        self.careful = False
        """Whether it reads little at a time."""
        self.turn: Turn = UNBOUNDED
        """The session's share of the loop's time."""

    def __init_subclass__(cls) -> None:
        # CPython makes the code of a function fast for the class that it sees. Called for clients
        # and origins in turns it stays slow, so each class has a copy of the busiest functions.
        busiest = (TlsChannel.buffer_updated, TlsChannel._take, TlsChannel._read, TlsChannel.send)
        sending = (TlsChannel.flush, TlsChannel._send_soon, TlsChannel._send_due)
        for own in (*busiest, *sending, TlsChannel.resume):
            code = own.__code__.replace()
            again = FunctionType(code, own.__globals__, own.__name__, own.__defaults__)
            setattr(cls, own.__name__, again)

    # ── what it can do ────────────────────────────────────────────────────────────────────────────

    def is_open(self) -> bool:
        """Whether bytes can still be sent."""
        return self.transport is not None and not self.transport.is_closing()

    def is_there(self) -> bool:
        """Whether the peer has not left, as far as the kernel knows: a connection that waits may
        not be read, and then its end is not seen."""
        return self.is_open() and (self.sock is None or is_there(self.sock.fileno()))

    def is_quiet(self) -> bool:
        """Whether bytes can be sent, and none have come that wait for the session's next turn."""
        transport = self.transport
        return transport is not None and not self._put_off and not transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def write_plain(self, data: bytes) -> None:
        """Write outside TLS: an alert before it has begun."""
        if self.transport is not None:
            self.transport.write(data)

    def read_rest(self) -> None:
        """Read bytes that arrived before a reset that a write met first. Called when the connection
        is lost."""
        self._take_put_off()
        sock, buffer = self.sock, self.get_buffer(0)
        for _ in range(MAX_LAST_READS):
            try:
                count = sock.recv_into(buffer) if sock is not None else 0
            except OSError:
                return
            if not count:
                return
            self._take(count)

    @property
    def secure(self) -> bool:
        """Whether the handshake is done."""
        return self._established

    @property
    def protocol(self) -> str:
        """The protocol that TLS has negotiated (ALPN); empty where none was."""
        return (self._tls.selected_alpn_protocol() or "") if self._tls is not None else ""

    def begin(
        self,
        context: ssl.SSLContext,
        protocols: Sequence[str],
        *,
        server_name: str | None = None,
        early: bytes = b"",
    ) -> None:
        """Begin TLS: as the server, or as a client of `server_name`. `early` came before.

        The `protocols` are offered (ALPN), the first one rather than the next.
        """
        # It is read when the connection is made, or with the hello, which is in `early`.
        context.set_alpn_protocols(protocols)
        if server_name is not None:
            insist_on_verifying(context)
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        # The methods of an SSLObject only call those of the object within it: without this detour,
        # each read and write is a call less.
        within: Any = getattr(self._tls, "_sslobj", self._tls)
        self._decrypt, self._encrypt = within.read, within.write
        if early:
            self._in.write(early)
        if self._handshake(self._tls):
            self._read()

    def send(self, data: bytes | memoryview, before: bytes = b"") -> None:
        """Encrypt and send: large pieces at once, small ones at the end of this turn of the loop,
        together with those of the other connections. A write wakes its reader, which costs more
        than the write; spread over a turn, each write would find the reader asleep again.

        The bytes `before` a large piece are a record of their own, and no larger than one record;
        joining them would be a copy.
        """
        tls, transport = self._tls, self.transport
        if tls is None or transport is None or transport.is_closing():
            return
        if self._late:
            self._flush_late()
        out, size = self._out, len(data)
        if size <= RECORD:
            if not self._due:
                self._send_soon()
            elif out.pending + size > SEND_AT_ONCE:
                transport.write(out.read())
            self._encrypt(data)
            return
        if out.pending:
            transport.write(out.read())
        view, done = memoryview(data), 0
        if before:
            tls.write(before)
            done = tls.write(view[: SEND_AT_ONCE - len(before) - RECORD_ROOM])
            transport.write(out.read())
        while done < size:
            # OpenSSL makes records of it by itself; a call for each would cost a twentieth more.
            done += tls.write(view[done : done + SEND_AT_ONCE])
            transport.write(out.read())

    def queue(self, data: bytes | memoryview) -> None:
        """Send these bytes with the next flush, before the callback returns."""
        self._queue.append(data)

    def flush(self) -> None:
        """Send the queued bytes as one."""
        queue = self._queue
        if queue:
            data, before = queue[-1], b""
            if len(queue) > 1:
                if len(data) > RECORD and sum(map(len, queue)) - len(data) <= RECORD:
                    before = b"".join(queue[:-1])
                else:
                    data = b"".join(queue)
            queue.clear()
            self.send(data, before)

    def flush_late(self) -> None:
        """Send the queued bytes at the end of this turn, so that all of it is one record. Nothing
        queued may be a view: other connections use the same buffer."""
        if self._queue and not self._late:
            self._late = True
            if not self._due:
                self._send_soon()

    def _flush_late(self) -> None:
        self._late = False
        self.flush()

    def _send_soon(self) -> None:
        self._due = True
        together = self._due_together
        if not together:
            self._soon(_send_all, together)
        together.append(self._send_due)

    def drop_queue(self) -> None:
        """Drop the queued bytes."""
        self._queue.clear()

    def _send_due(self) -> None:
        """The turn is over: send its small pieces."""
        if self._late:
            self._flush_late()
        self._due = False
        transport, out = self.transport, self._out
        if out.pending and transport is not None and not transport.is_closing():
            transport.write(out.read())

    def pause(self) -> None:
        """Stop reading for now."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self.transport is not None:
            self._paused = False
            if not self._put_off:
                self.transport.resume_reading()

    def close(self) -> None:
        """End TLS, and close once all is sent."""
        if self._late:
            self._flush_late()
        transport, tls, self._tls = self.transport, self._tls, None
        if transport is None or transport.is_closing():
            return
        if tls is not None and self._established:
            self._say_goodbye(tls, transport)
        transport.close()

    def part(self) -> None:
        """End TLS, and drop bytes that still arrive: a plain close would lose the last bytes
        sent."""
        if self._late:
            self._flush_late()
        transport, tls, self._tls = self.transport, self._tls, None
        if transport is None or transport.is_closing():
            return
        if tls is not None:
            self._say_goodbye(tls, transport)
        transport.write_eof()

    def abort(self) -> None:
        """Reset now, behind what was sent: a cut stream must not look like a finished one."""
        if self._late:
            self._flush_late()
        self._tls = None
        self._send_due()
        if self.transport is not None:
            if self.sock is not None:
                reset(self.sock)
            self.transport.abort()

    def _say_goodbye(self, tls: ssl.SSLObject, transport: asyncio.Transport) -> None:
        # `unwrap` raises since it expects the peer's close_notify too, which is not waited for.
        with contextlib.suppress(ssl.SSLError):
            tls.unwrap()
        if self._out.pending:
            transport.write(self._out.read())

    # ── the transport's calls ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and break the cycles with the transport, OpenSSL and the user."""
        user = self.user
        try:
            if user is not None and exc is not None:
                user.broken()
        finally:
            # Also after a fault of ours: what waits for this end would wait for ever (I8).
            self.transport = self.sock = self._tls = self.user = None
            self._decrypt = self._encrypt = _without_tls
            if user is not None:
                user.lost(exc)

    def eof_received(self) -> bool:
        """The connection ended without the end of TLS: the transport closes, and `lost` follows."""
        self._send_due()
        return False

    def pause_writing(self) -> None:
        """This end is slow."""
        self.slow = True

    def resume_writing(self) -> None:
        """This end has caught up."""
        self.slow = False
        if self.user is not None:
            self.user.caught_up()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for arriving bytes."""
        return _LITTLE if self.careful or self.turn.left <= 0 else _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        turn = self.turn
        if turn.left > 0:
            began = perf_counter()
            self._take(nbytes)
            turn.spend(began)
            if turn.left <= 0 and nbytes >= RECORD and self.transport is not None:
                # The transport reads on at once after a read that has filled the buffer: a little,
                # which is copied and kept, and goes on in writes of its own.
                self.transport.pause_reading()
                turn.later(self._take_up)
        elif self.transport is not None:
            self._put_off = bytes(_RECEIVED[:nbytes])
            self.transport.pause_reading()
            turn.later(self._take_up)

    def _take_up(self) -> None:
        """The session has its turn again."""
        if self.transport is None or self.transport.is_closing():
            self._put_off = b""
            return
        if not self._paused:
            self.transport.resume_reading()
        self._take_put_off()

    def _take_put_off(self) -> None:
        data, self._put_off = self._put_off, b""
        if data:
            _RECEIVED[: len(data)] = data
            self._take(len(data))

    def _take(self, nbytes: int) -> None:
        tls = self._tls
        if tls is None:
            if self.user is not None:
                self.user.unsecured(_RECEIVED[:nbytes])
            return
        if nbytes <= PORTION and self._established:
            self._in.write(_RECEIVED[:nbytes])
            self._read()
            return
        for start in range(0, nbytes, PORTION):
            self._in.write(_RECEIVED[start : min(start + PORTION, nbytes)])
            if self._established or self._handshake(tls):
                self._read()
            if self._tls is None:
                return

    def _handshake(self, tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()
            if self.user is not None:
                self.user.insecure(error)
            return False
        self._established = True
        self._flush()
        if self.user is not None:
            self.user.secured()
        return self._tls is not None

    def _read(self) -> None:
        """Decrypt the bytes that arrived, and hand them on in one piece."""
        filled, over = 0, False
        incoming, decrypt, user = self._in, self._decrypt, self.user
        if user is None:
            return
        try:
            # Nothing is left to decrypt when the buffer is empty: asking would raise.
            while incoming.pending:
                count = decrypt(RECORD, _PLAIN[filled:] if filled else _PLAIN)
                if not count:
                    over = True
                    break
                filled += count
                if filled > _PLAIN_FULL:
                    user.received(_PLAIN[:filled])
                    filled = 0
                    if self._tls is None:
                        return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # A forged or cut record: the bytes before it were whole.
            self.abort()
            return
        if filled:
            user.received(_PLAIN[:filled])
        if self._tls is not None:
            if self._out.pending:
                self._flush()
            if over:
                user.ended()

    def _flush(self) -> None:
        if self._out.pending and self.transport is not None:
            self.transport.write(self._out.read())
            if self.slow and self.transport.get_write_buffer_size() > MAX_UNSENT:
                self.abort()


def _without_tls(*_: object) -> int:
    raise Misuse("TLS has not begun, or is over")


def _send_all(together: deque[Callable[[], None]]) -> None:
    """The turn is over: call all channels of a loop together, which costs less than a callback
    each."""
    try:
        while together:
            together.popleft()()
    finally:
        if together:  # a fault in one of them
            asyncio.get_running_loop().call_soon(_send_all, together)


class ClientChannel(TlsChannel):
    """TLS with a client in the sandbox."""


class OriginChannel(TlsChannel):
    """TLS with an origin."""
