"""The result of one step of a gate: how many of the bytes may pass."""

from __future__ import annotations

from msgspec import Struct


class StreamStep(Struct, frozen=True):
    """Bytes that may pass now, unchanged; the rest is held back, or the stream is refused."""

    forward: bytes = b""
    free: bool = False
    """Whether no later byte needs to be judged."""
    refusal: str | None = None
    """A stable reason code; nothing more may pass in this direction."""
