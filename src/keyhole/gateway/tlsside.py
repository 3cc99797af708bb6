"""One end of an inspected connection: TLS in memory over a plain transport.

The client's end (`inspected.py`) and the origin's (`origin.py`) are subclasses and see plain bytes.
TLS is OpenSSL's, through memory buffers: the door peeks at the hello before TLS begins, and idle
connections keep no receive buffer of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, cast

from keyhole.gateway.side import reset
from keyhole.gateway.turn import UNBOUNDED, Turn

if TYPE_CHECKING:
    import socket

RECORD = 16 * 1024
"""Bytes of the largest TLS record; asking OpenSSL for less strands the rest of one inside it."""

WRITE_BUFFER = 64 * 1024
"""Bytes waiting for a slow reader at which the other side is no longer read from; what one read had
comes on top of it."""

MAX_UNSENT = 2 << 20
"""Bytes waiting for a peer at which OpenSSL's own words are no longer added: one that asks for new
keys again and again, and reads no answer, would fill the memory (I9)."""

SEND_AT_ONCE = 4 * RECORD - 256
"""Bytes encrypted before the transport gets them: what OpenSSL's buffers may grow to. With what TLS
adds to four records, they still fit the 64 KiB that one packet has on a loopback interface, as a
door's is; a few bytes more are a second packet, and a fifth more work for the kernel."""

RECORD_ROOM = 22
"""Bytes that TLS 1.3 adds to a record."""

PORTION = 15 * (RECORD + RECORD_ROOM)
"""Bytes decrypted at a time: a connection's own buffer of OpenSSL's grows with what it is given,
and stays so (I9). As many whole records as go on in four writes; with one more there would be a
fifth, of next to nothing."""

# All connections of the loop share one buffer each: what arrives is used up before the next read.
# A bulk transfer takes fewer turns the more is read in one.
_RECEIVED = memoryview(bytearray(2 * PORTION))
_PLAIN = memoryview(bytearray(17 * RECORD))
_PLAIN_FULL = len(_PLAIN) - RECORD

_LITTLE = _RECEIVED[:RECORD]
"""For a connection whose session has had its turn: what it reads is kept until the next one. And
for one of which little may be read at a time, since it may become much."""


class TlsSide(asyncio.BufferedProtocol):
    """A protocol whose subclass is handed plain bytes and sends them."""

    __slots__ = (
        "_due", "_established", "_in", "_out", "_paused", "_put_off", "_soon", "_tls", "careful",
        "slow", "sock", "transport", "turn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.sock: socket.socket | None = None
        self.slow = False
        self._tls: ssl.SSLObject | None = None
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._established = False
        self._paused = False
        self._due = False
        """Whether small pieces wait for the end of this turn."""
        self._soon = asyncio.get_running_loop().call_soon
        self._put_off = b""
        """What came when the session had had its turn; nothing more is read meanwhile."""
        self.careful = False
        """Whether little is read at a time."""
        self.turn: Turn = UNBOUNDED
        """The session's share of the loop's time."""

    def __init_subclass__(cls) -> None:
        # CPython makes the code of a function fast for the class that it sees. Called for clients
        # and origins in turns it would stay slow: each class gets the busiest functions anew.
        busiest = (TlsSide.buffer_updated, TlsSide._take, TlsSide._read, TlsSide.send)
        for own in (*busiest, TlsSide.resume):
            code = own.__code__.replace()
            again = FunctionType(code, own.__globals__, own.__name__, own.__defaults__)
            setattr(cls, own.__name__, again)

    # ── for the subclass ──────────────────────────────────────────────────────────────────────────

    def secured(self) -> None:
        """The handshake is done."""

    def insecure(self, error: ssl.SSLError) -> None:
        """The handshake failed; the alert has been sent."""

    def received(self, view: memoryview) -> None:
        """Plain bytes; the view is good for this call alone."""

    def ended(self) -> None:
        """The other end has said its last, properly: a cut connection does not come here."""

    def unsecured(self, view: memoryview) -> None:
        """Bytes that came before TLS has begun, or after it was ended here."""

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone. Nothing is called after this."""

    def caught_up(self) -> None:
        """What was written has left; `slow` is False again."""

    # ── what it can do ────────────────────────────────────────────────────────────────────────────

    def alive(self) -> bool:
        """Whether bytes can still be sent."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def secure(self) -> bool:
        """Whether the handshake is done."""
        return self._established

    def begin(
        self, context: ssl.SSLContext, *, server_name: str | None = None, early: bytes = b""
    ) -> None:
        """Begin TLS: as the server, or as a client of `server_name`. `early` came before."""
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        if early:
            self._in.write(early)
        if self._handshake(self._tls):
            self._read(self._tls)

    def send(self, data: bytes | memoryview, before: bytes = b"") -> None:
        """Encrypt and send: what is large at once, what is small at the end of this turn of the
        loop, right before and behind the other connections'. A write wakes who waits for it, and
        that costs more than the write; spread over a turn, each finds them asleep again.

        What goes `before` a large piece is a record of its own, and no larger than one is; joining
        them would be a copy.
        """
        tls, transport = self._tls, self.transport
        if tls is None or transport is None or transport.is_closing():
            return
        out, size = self._out, len(data)
        if size <= RECORD:
            if not self._due:
                self._due = True
                self._soon(self._send_due)
            elif out.pending + size > SEND_AT_ONCE:
                transport.write(out.read())
            tls.write(data)
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

    def _send_due(self) -> None:
        """The turn is over: send what was small in it."""
        self._due = False
        transport, out = self.transport, self._out
        if out.pending and transport is not None and not transport.is_closing():
            transport.write(out.read())

    def pause(self) -> None:
        """Read no further for now."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self.transport is not None:
            self._paused = False
            if not self._put_off:
                self.transport.resume_reading()

    def close(self) -> None:
        """Say goodbye and close once all is sent."""
        transport, tls, self._tls = self.transport, self._tls, None
        if transport is None or transport.is_closing():
            return
        if tls is not None and self._established:
            self._say_goodbye(tls, transport)
        transport.close()

    def part(self) -> None:
        """Say goodbye, and throw away what still comes: a plain close would lose the last words."""
        transport, tls, self._tls = self.transport, self._tls, None
        if transport is None or transport.is_closing():
            return
        if tls is not None:
            self._say_goodbye(tls, transport)
        transport.write_eof()

    def abort(self) -> None:
        """Reset now, behind what was sent: a cut stream must not look like a finished one."""
        self._tls = None
        self._send_due()
        if self.transport is not None:
            if self.sock is not None:
                reset(self.sock)
            self.transport.abort()

    def _say_goodbye(self, tls: ssl.SSLObject, transport: asyncio.Transport) -> None:
        # `unwrap` raises since it wants the other's goodbye too, which nobody waits for.
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
        """End, and break the cycles with the transport and OpenSSL."""
        self.transport = self.sock = self._tls = None
        self.lost(exc)

    def eof_received(self) -> bool:
        """The end without TLS's goodbye: the transport closes, and `lost` follows."""
        self._send_due()
        return False

    def pause_writing(self) -> None:
        """This end is slow."""
        self.slow = True

    def resume_writing(self) -> None:
        """This end has caught up."""
        self.slow = False
        self.caught_up()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport puts what arrives."""
        return _LITTLE if self.careful or self.turn.left <= 0 else _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        turn = self.turn
        if turn.left > 0:
            began = perf_counter()
            self._take(nbytes)
            turn.spend(began)
        elif self.transport is not None:
            self._put_off = bytes(_RECEIVED[:nbytes])
            self.transport.pause_reading()
            turn.later(self._take_up)

    def _take_up(self) -> None:
        """It is the session's turn again."""
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
            self.unsecured(_RECEIVED[:nbytes])
            return
        for start in range(0, nbytes, PORTION):
            self._in.write(_RECEIVED[start : min(start + PORTION, nbytes)])
            if self._established or self._handshake(tls):
                self._read(tls)
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
            self.insecure(error)
            return False
        self._established = True
        self._flush()
        self.secured()
        return self._tls is not None

    def _read(self, tls: ssl.SSLObject) -> None:
        """Decrypt what has come, and hand it on in one piece."""
        filled, over = 0, False
        incoming = self._in
        try:
            # Nothing is left to decrypt when the buffer is empty: asking would raise.
            while incoming.pending:
                count: int = tls.read(RECORD, _PLAIN[filled:] if filled else _PLAIN)  # type: ignore[assignment]
                if not count:
                    over = True
                    break
                filled += count
                if filled > _PLAIN_FULL:
                    self.received(_PLAIN[:filled])
                    filled = 0
                    if self._tls is None:
                        return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # A forged or cut record: what came before it was whole.
            self.abort()
            return
        if filled:
            self.received(_PLAIN[:filled])
        if self._tls is not None:
            if self._out.pending:
                self._flush()
            if over:
                self.ended()

    def _flush(self) -> None:
        if self._out.pending and self.transport is not None:
            self.transport.write(self._out.read())
            if self.slow and self.transport.get_write_buffer_size() > MAX_UNSENT:
                self.abort()
