"""Sends decisions of a data plane to those who watch, at a rate that costs it little (I12).

The audit log has every decision; what is left out here is counted, and the count is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.session.ask_board import ASK_REPORT, DECISION_REPORT, AskReport, DecisionReport
from keyhole.app.session.control_views import ask_view, decision_view
from keyhole.model.errors import Unparsable
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.gateway.asking import AskNotice
    from keyhole.model.event import Event

PER_SECOND = 200
"""Decisions that are sent: more than a person reads, and under a hundredth of the loop's time."""


class WatchReporter:
    """Reports of one data plane, as JSON values for `send`."""

    def __init__(
        self, send: Callable[[str, object], None], now: Callable[[], float], workers: int = 1
    ) -> None:
        """`send` takes a kind and a value: `asked`, `decided` or `unsent`. `workers` have the rate
        together."""
        self._send = send
        self._now = now
        self._rate = TokenBucket.full("watched", PER_SECOND / workers, now())
        self._unsent = 0

    def asked(self, session: str, notice: AskNotice) -> None:
        """Report a question."""
        report = AskReport(
            ask_view(session, notice), notice.reason, notice.answer, notice.by, notice.via
        )
        self._send("asked", ASK_REPORT.write(report, "asked"))

    def decided(self, session: str, event: Event) -> None:
        """Report a decision, unless there are too many."""
        if not self._rate.take(self._now()).allowed:
            self._unsent += 1
            return
        if self._unsent:
            count, self._unsent = self._unsent, 0
            self._send("unsent", count)
        report = DecisionReport(session, decision_view(event))
        try:
            self._send("decided", DECISION_REPORT.write(report, "decided"))
        except Unparsable:
            self._unsent += 1  # the log has it
