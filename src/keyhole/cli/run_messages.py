"""The lines that `keyhole run` says on standard error, among the command's own output."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from keyhole.cli.paint import paint
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.app.run.run import RunOutcome
    from keyhole.app.run.run_findings import RunFindings
    from keyhole.sandbox.interface import Console


LOOK_SECONDS = 0.3
"""Seconds between two looks at a terminal that a program has to itself."""

MAX_SHOWN = 20
"""Lines that are shown at once when the program has given the terminal back."""


MAX_HELD = 500
"""Lines that wait: more than a session tells. A data plane that was taken over could send more
(I9)."""


class RunMessages:
    """Prints lines, also on a terminal that the command made raw.

    While a program has the screen or the keyboard to itself, lines wait until it gives them back.
    The log has the refusals meanwhile.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._held: dict[str, int] = {}
        """Lines that wait, and how often each came."""
        self._dropped = 0
        """Lines beyond `MAX_HELD`."""
        self._free = False
        """Whether the terminal was free at the last look."""
        self.terminal: Console | None = None

    def tell(self, line: str) -> None:
        """Print a line, even with `--quiet`."""
        if self._held or self._occupied():
            self._hold(line)
        else:
            self._print(line)

    def say(self, line: str) -> None:
        """Print a line, unless `--quiet` was given."""
        if not self._quiet:
            self.tell(line)

    def repeated(self, line: str, times: int) -> None:
        """A line that was told once stands for so many refusals."""
        if line in self._held:
            self._held[line] = times

    def release(self) -> None:
        """Print the lines that wait."""
        held, self._held = self._held, {}
        dropped, self._dropped = self._dropped, 0
        if not held:
            return
        if self.terminal is not None:
            self.terminal.make_room()
        self._print("while a program had the terminal:")
        for line, times in list(held.items())[:MAX_SHOWN]:
            self._print(f"{line} ({times} times)" if times > 1 else line)
        more = len(held) + dropped - MAX_SHOWN
        if more > 0:
            self._print(f"and {more} more lines; `keyhole log --denied` has all refusals")

    def _hold(self, line: str) -> None:
        if not self._held:
            self._free = False
            self._look_later()
        if line in self._held or len(self._held) < MAX_HELD:
            self._held[line] = self._held.get(line, 0) + 1
        else:
            self._dropped += 1

    def _look(self) -> None:
        """Print what waits when the terminal was free twice in a row: a program that goes from
        one mode to another leaves it for a moment."""
        was, self._free = self._free, not self._occupied()
        if was and self._free:
            self.release()
        elif self._held:
            self._look_later()

    def _look_later(self) -> None:
        import asyncio

        with contextlib.suppress(RuntimeError):  # before the loop, or after it
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _occupied(self) -> bool:
        return self.terminal is not None and self.terminal.occupied and os.isatty(2)

    def _print(self, line: str) -> None:
        raw = self.terminal is not None and self.terminal.raw and os.isatty(2)
        ending = "\r\n" if raw else "\n"
        text = f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {visible(line)}{ending}"
        # The reader may be gone (`2>&1 | head`): the command goes on all the same.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def tell_findings(findings: RunFindings, messages: RunMessages) -> None:
    """Print the files that the run left and the host may execute."""
    if findings.lines:
        if messages.terminal is not None:
            messages.terminal.make_room()
        messages.tell("files your host may execute, left or changed by this run:")
    for line in findings.lines:
        messages.tell(line)
    if findings.found:
        messages.tell("`keyhole findings` shows them again, until you dismiss them")


def tell_end(outcome: RunOutcome, messages: RunMessages) -> None:
    """Print how the run ended, and the head of its audit log."""
    if outcome.uncovered:
        messages.tell(
            f"{outcome.uncovered} was replaced on the host, which uncovered it inside: run ended"
        )
    # A gateway that died reports no head.
    head = f"audit head {outcome.head}" if outcome.head else "its gateway's log has no last line"
    messages.say(f"session {outcome.session}, {head}")
