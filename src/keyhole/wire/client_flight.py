"""Judges everything that a TLS client sends in the clear: its hello, and the hello after a retry
(I4).

Called by the gateway's TLS gate. Attack: a first hello with the allowed name and a key share that
the origin cannot use; the origin answers HelloRetryRequest, and the second hello, still in the
clear, names another host. So records are followed until no second hello can come.
"""

from __future__ import annotations

from collections.abc import Callable

from keyhole.model.decision import Decision
from keyhole.wire.client_hello import (
    ClientHello,
    HelloIncomplete,
    HelloMalformed,
    HelloNotTls,
    HelloReader,
)
from keyhole.wire.stream_step import StreamStep

HELLO_MALFORMED = "hello-malformed"
NOT_TLS = "not-tls"

_HEADER = 5
_CHANGE_CIPHER_SPEC = 20
_ALERT = 21
_HANDSHAKE = 22
_APPLICATION_DATA = 23
_CLIENT_HELLO = 1

HelloDecider = Callable[[ClientHello], Decision]
"""Decides on a hello: it must name the connection's own host."""


class ClientFlight:
    """Follows one client's side of a handshake."""

    __slots__ = (
        "_early", "_head", "_held", "_hellos", "_judge", "_reader", "_required", "_skip", "is_tls"
    )  # fmt: skip

    def __init__(self, judge: HelloDecider, *, required: bool = True) -> None:
        self._judge = judge
        self._required = required
        self._reader: HelloReader | None = HelloReader()
        self._held = bytearray()
        self._hellos = 0
        self._early = False
        self._head = b""
        self._skip = 0
        self.is_tls = False
        """Whether the client began with a hello, or with a part of one."""

    @property
    def begun(self) -> bool:
        """Whether some of a hello is held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> StreamStep:
        """Judge the next bytes."""
        if self._reader is not None:
            return self._hello(data, b"")
        return self._follow(data, b"")

    def _hello(self, data: bytes, before: bytes) -> StreamStep:
        """Continue reading a hello; `before` counts bytes of this call that already passed."""
        reader = self._reader = self._reader or HelloReader()
        self._held += data
        found = reader.feed(data)
        self.is_tls = bool(self._hellos) or not isinstance(found, HelloNotTls)
        if isinstance(found, HelloIncomplete):
            return StreamStep(before)
        if isinstance(found, HelloNotTls):
            if not self._required and not self._hellos:
                return StreamStep(bytes(self._held), free=True)
            return StreamStep(refusal=NOT_TLS)
        if isinstance(found, HelloMalformed):
            return StreamStep(refusal=HELLO_MALFORMED)
        decision = self._judge(found)
        if not decision.allowed:
            return StreamStep(refusal=decision.reason)
        rest = reader.rest
        cleared = before + bytes(self._held[: len(self._held) - len(rest)])
        self._reader = None
        self._held.clear()
        self._hellos += 1
        self._early = self._early or found.early_data
        if self._hellos > 1:
            # RFC 8446 §4.1.4: a second retry is an error at the client and at the server.
            return StreamStep(cleared + rest, free=True)
        return self._follow(rest, cleared)

    def _follow(self, data: bytes, before: bytes) -> StreamStep:
        """Walk over the records after a hello until one shows that no other hello follows."""
        at = self._skip
        if self._head:
            data, self._head = self._head + data, b""
        while at < len(data):
            head = data[at : at + _HEADER + 1]
            if len(head) < _HEADER or (head[0] == _HANDSHAKE and len(head) == _HEADER):
                # Held until its type shows that it is not another hello.
                self._head, self._skip = head, 0
                return StreamStep(before + data[:at])
            kind, length = head[0], int.from_bytes(head[3:5], "big")
            if kind == _HANDSHAKE and not length:
                return StreamStep(refusal=HELLO_MALFORMED)
            if kind == _HANDSHAKE and head[_HEADER] == _CLIENT_HELLO:
                self._skip = 0
                return self._hello(data[at:], before + data[:at])
            if kind == _HANDSHAKE or (kind == _APPLICATION_DATA and not self._early):
                # TLS 1.2 goes on with its key exchange, 1.3 is encrypted from here.
                return StreamStep(before + data, free=True)
            if kind not in (_CHANGE_CIPHER_SPEC, _ALERT, _APPLICATION_DATA):
                return StreamStep(refusal=NOT_TLS)
            # With early data the origin may skip all of it and still ask for a second hello.
            at += _HEADER + length
        self._skip = at - len(data)
        return StreamStep(before + data)
