"""Conversations in which the client speaks HTTP/2, and the origin, too, if the test says so.

Frames are written by hand (`tests/rigs/http/http2.py`); what each side hears are a few words for
each frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.rigs.gateway.conversation import Channel, Conversation
from tests.rigs.http.http2 import PREFACE, Listener, settings

if TYPE_CHECKING:
    from keyhole.gateway.http.http2 import Http2Connection


@dataclass
class Http2Talk(Conversation):
    """A client of HTTP/2. Its origin speaks HTTP/1.1, unless it is told otherwise."""

    protocol: str = "h2"
    quiet: bool = True
    """Whether windows and acknowledgements of the gateway's are not reported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._listeners: dict[Channel, Listener] = {}
        self.client.says(PREFACE + settings())
        assert "SETTINGS ACK" in self._hears(self.client)
        self.origin_hears(self.origin)

    @property
    def http2(self) -> Http2Connection:
        return cast("Http2Connection", self.http)

    def says(self, *frames: bytes) -> list[str]:
        """The client says this in one piece; what it hears."""
        self.client.says(b"".join(frames))
        return self.hears()

    def hears(self) -> list[str]:
        """What the client has got since it was asked last."""
        return self._hears(self.client)

    def origin_says(self, *frames: bytes) -> list[str]:
        """The newest connection of the origin says this; what the client hears."""
        self.origins[-1].says(b"".join(frames))
        return self.hears()

    def origin_hears(self, origin: Channel | None = None) -> list[str]:
        """What an origin of HTTP/2 has got, by its newest connection."""
        return self._hears(origin or self.origins[-1])

    def _hears(self, channel: Channel) -> list[str]:
        if channel is not self.client and channel.protocol != "h2":
            return []
        listener = self._listeners.setdefault(channel, Listener())
        words = listener.hears(channel.heard().removeprefix(PREFACE))
        if self.quiet:
            return [each for each in words if not each.startswith("0 WINDOW")]
        return words

    def is_at_rest(self) -> bool:
        """Whether the gateway holds nothing of any request."""
        http, machine = self.http2, self.http2.machine
        return not (
            self.state.busy
            or self.state.gathered
            or http.streams
            or http._clocks
            or http._unread
            or machine.streams
            or machine._count_held
        )
