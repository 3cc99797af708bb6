"""A proxy of someone else's as a process: on one core, gone when we are, its words kept for us."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PEERS = Path(__file__).resolve().parents[2] / ".venv-peers"
"""Where `scripts/setup peers` installs what Keyhole is compared with."""

MISSING = "{} is not installed: scripts/setup peers"

PATIENCE = 60.0
"""Seconds until a proxy must be ready."""


def dying_with_us() -> list[str]:
    """What to put before a command, so that nothing is left behind however a measurement ends."""
    return [str(shutil.which("setpriv")), "--pdeathsig", "KILL"]


class Program:
    """A running one."""

    def __init__(
        self,
        command: Sequence[str],
        core: int,
        directory: str,
        descriptors: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._said = Path(directory) / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603 - installed from our own lock
                [*dying_with_us(), *command],
                pass_fds=list(descriptors),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=directory,
                env=env,
                start_new_session=True,
            )
        self.pid = self._process.pid
        # Before it has any thread: threads inherit it.
        os.sched_setaffinity(self.pid, {core})

    def wait_until_it_says(self, words: str) -> None:
        """Come back when it is ready."""
        end = time.monotonic() + PATIENCE
        while words not in self._said.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self._said.read_text(errors="replace")[-4000:])
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
