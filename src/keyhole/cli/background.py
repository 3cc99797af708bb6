"""Helps verbs that leave a process in the background: a gateway, or the supervisor of a sandbox."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_UNUSABLE
from keyhole.cli.gateway_log import LogWriter, last_lines
from keyhole.cli.passphrase import has_terminal, type_passphrase
from keyhole.cli.startup_channel import StartupChannel
from keyhole.model.errors import KeyholeError
from keyhole.vault.memory_guard import guard_memory

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM: tuple[str, ...] = (sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "keyhole")
"""Starts this installation of Keyhole. -P and -I keep Python from importing out of the current
directory, which a sandbox may have written (I11)."""

LAST_WORDS = 10
"""Lines of the log that are shown when a process ended before it was ready."""


def person_asked() -> Callable[[bool], bytes] | None:
    """A function that asks for the store's passphrase; None without a terminal."""
    if not has_terminal():
        return None

    def ask(again: bool) -> bytes:
        guard_memory()
        return type_passphrase(again)

    return ask


def show_last_lines(log: int, written: int) -> None:
    """Print the last lines that the process wrote to its log after `written` bytes."""
    for line in last_lines(log, written, LAST_WORDS):
        print(f"  {line}", file=sys.stderr)


class BackgroundProcess:
    """This process, for the verb that started it and waits: its lines go to that and to the log."""

    def __init__(self, line: int, verb: str, first: str) -> None:
        """`line` is the socket to the verb; `first` is the log's first line of this process."""
        try:
            self._starter = StartupChannel(line)
        except OSError:
            name = " ".join(verb.split()[:2])
            raise CliError(f"--line is for `{name}` itself; type `{verb}`") from None
        self.log = LogWriter(os.dup(2))
        sys.stdout = sys.stderr = cast("TextIO", self.log)
        self.ask = self._starter.ask
        self.log.report(first)

    def ready(self, words: str) -> None:
        """Let the verb return."""
        self.log.report(words)
        self._starter.ready()

    def report(self, text: str) -> None:
        """Write a line, and send it to the person."""
        self.log.report(text)
        self._starter.say(text)

    def serve(self, work: Callable[[], int], failed: str) -> int:
        """Do the work until it ends. If it fails, `failed` is written with the reason, which the
        verb gets too."""
        try:
            return work()
        except (KeyholeError, OSError) as error:
            self.log.report(f"{failed}: {error}")
            self._starter.failed(str(error))
            return EXIT_UNUSABLE
