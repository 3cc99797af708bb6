"""The one TLS message that the gateway writes in the clear: a fatal alert (RFC 8446 §6)."""

from __future__ import annotations

ACCESS_DENIED = 49
DECODE_ERROR = 50
UNRECOGNIZED_NAME = 112
NO_APPLICATION_PROTOCOL = 120

_ALERT_RECORD = b"\x15\x03\x03\x00\x02"
_FATAL = b"\x02"


def fatal(description: int) -> bytes:
    """A fatal alert as a record."""
    return _ALERT_RECORD + _FATAL + bytes([description])
