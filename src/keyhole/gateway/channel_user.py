"""The calls that a TLS channel (`tls.py`) makes on the connection that it belongs to.

Implemented by a client's connection (`http/connection.py`, `http/http_connection.py`) and by an
origin's (`upstream/origin.py`, `upstream/http2.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl


class ChannelUser(Protocol):
    """The connection that a channel belongs to."""

    def secured(self) -> None:
        """The handshake is done."""

    def insecure(self, error: ssl.SSLError) -> None:
        """The handshake failed; the alert has been sent."""

    def received(self, view: memoryview) -> None:
        """Decrypted bytes; the view is valid during this call only."""

    def ended(self) -> None:
        """The peer has ended TLS properly; a cut connection does not come here."""

    def unsecured(self, view: memoryview) -> None:
        """Bytes that came before TLS has begun, or after it was ended here."""

    def broken(self) -> None:
        """The connection was reset; `lost` follows."""

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone. Nothing is called after this."""

    def caught_up(self) -> None:
        """The peer has taken the written bytes; `slow` is False again."""


class SecuredUser:
    """A user that gets its channel after the handshake, from the connection that made it."""

    __slots__ = ()

    def secured(self) -> None:
        """Not called: the handshake was done before."""

    def insecure(self, error: ssl.SSLError) -> None:
        """Not called: the handshake was done before."""

    def unsecured(self, view: memoryview) -> None:
        """Ignore bytes that arrive after TLS was ended here."""

    def broken(self) -> None:
        """Do nothing before `lost`."""
