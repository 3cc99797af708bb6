"""Judges the TLS hello of a connection, which is sent in the clear (I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host
from keyhole.wire.client_hello import HelloIncomplete, HelloMalformed, HelloNotTls, HelloReader

if TYPE_CHECKING:
    from keyhole.wire.client_hello import ClientHello


_ALLOWED = Decision(Verdict.ALLOW, Reason.RULE)


def judge_tunnelled_hello(hello: ClientHello, host: Host) -> Decision:
    """Whether a hello may pass to the origin itself on a connection to `host`."""
    if hello.ech:
        # The origin goes by the name inside, which cannot be read here.
        return Decision(reason=Reason.ECH)
    return judge_hello(hello, host)


def judge_hello(hello: ClientHello, host: Host) -> Decision:
    """Whether a hello names `host`, for a connection whose TLS ends here.

    Encrypted Client Hello is ignored: this end has no key for it, and so goes by the name outside.
    Browsers and Bun send one that encrypts nothing (GREASE).
    """
    if hello.sni is None:
        return Decision(reason=Reason.SNI_MISSING)
    if hello.sni == host.name:
        return _ALLOWED  # spelled as the canonical name, which parses to itself
    try:
        named = Host.parse(hello.sni)
    except Unparsable:
        return Decision(reason=Reason.HELLO_MALFORMED)
    return _ALLOWED if named == host else Decision(reason=Reason.SNI_MISMATCH)


class HelloJudge:
    """Reads the hello of a client whose TLS ends here, and judges it when it is whole."""

    __slots__ = ("_host", "_reader", "data", "offered")

    def __init__(self, host: Host) -> None:
        self.data = b""
        """All bytes that were fed: TLS begins with them."""
        self.offered: tuple[bytes, ...] = ()
        """The protocols that the client offers (ALPN)."""
        self._host = host
        self._reader = HelloReader()

    def feed(self, data: bytes) -> Decision | None:
        """The decision; None while bytes are missing."""
        self.data += data
        found = self._reader.feed(data)
        if isinstance(found, HelloIncomplete):
            return None
        if isinstance(found, HelloNotTls):
            return Decision(reason=Reason.NOT_TLS)
        if isinstance(found, HelloMalformed):
            return Decision(reason=Reason.HELLO_MALFORMED)
        self.offered = found.alpn
        return judge_hello(found, self._host)
