"""What a judge of a byte stream says about the bytes it was fed."""

from __future__ import annotations

from keyhole.model.value import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes that may go on now, unchanged; the rest is held back, or the stream is refused."""

    forward: bytes = b""
    free: bool = False
    """Nothing that comes later needs to be judged."""
    refusal: str | None = None
    """A stable reason code; nothing more may pass in this direction."""
