"""Keeps the account of what a run spends, in a thread of its own: a slow disk must not hold the
terminal.

Made by `own_gateway.py` in the process that holds the sandbox.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from keyhole.app.session.session_spending import SessionSpending
from keyhole.app.setup.spending_ledger import SpendingLedger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.app.setup.period_spending import SpendingReport
    from keyhole.policy.policy import Policy

LOOK_SECONDS = 1.0
"""Between two looks at what other sessions have spent."""


class RunSpending:
    """The account of one run, on a loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        policy: Callable[[], Policy],
        tell: Callable[[SpendingReport], None],
    ) -> None:
        """`tell` is called on the loop with what all sessions have spent."""
        self._loop = loop
        self._policy = policy
        self._tell = tell
        self._ledger = SpendingLedger(directory)
        self._spending = SessionSpending(self._ledger)
        self._working = False
        self._timer: asyncio.TimerHandle | None = loop.call_later(LOOK_SECONDS, self._look)

    def heard(self, said: Mapping[str, object]) -> None:
        """The data plane reports what its services have cost so far."""
        if self._spending.hear(self._policy(), said):
            self._start()

    def close(self) -> None:
        """Write what was reported last."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._spending.unwritten:
            self._spending.settle(self._policy())

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if self._spending.is_behind(self._policy(), self._ledger.stamp()):
            self._start()

    def _start(self) -> None:
        """Work in a thread, one at a time; not in an executor, because the loop waits for its
        threads at the end."""
        if self._working:
            return
        self._working = True
        policy = self._policy()

        def run() -> None:
            told = self._spending.settle(policy)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._done, told)

        threading.Thread(target=run, daemon=True).start()

    def _done(self, told: SpendingReport) -> None:
        self._working = False
        if told:
            self._tell(told)
        if self._spending.unwritten and self._timer is not None:
            self._start()  # more was said meanwhile
