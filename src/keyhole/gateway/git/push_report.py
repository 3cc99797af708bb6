"""Reads the origin's report on a push while it passes to the client.

Made by `http/outbound.py` as the reader of the response to a push that was sent. The report is
handed to `push_exchange.py`, which records each ref that the origin refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keyhole.inject.scrub import Needles
from keyhole.wire.receive_pack import ReportReader

ReportCallback = Callable[[Mapping[str, str], Needles], None]
"""Called with the origin's report for each ref, `ok` or the reason, and the needles to redact."""


class PushReport:
    """Reads the origin's report on a push, which passes unchanged."""

    __slots__ = ("_needles", "_on_report", "_reader")

    def __init__(self, on_report: ReportCallback, needles: Needles) -> None:
        self._reader = ReportReader()
        self._on_report = on_report
        self._needles = needles

    def feed(self, data: bytes) -> bytes:
        """Returns all bytes unchanged."""
        self._reader.feed(data)
        return data

    def end(self) -> bytes:
        """The response has ended: hand the report over."""
        self._on_report(self._reader.results(), self._needles)
        return b""
