"""An estate whose data planes can be made to stick, and the two ways to do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.rigs.daemon import stickyprogram
from tests.rigs.daemon.estate import HOST, Estate
from tests.rigs.daemon.stickyprogram import STICKY
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.daemon.estate import Inside

PROGRAM = Path(stickyprogram.__file__)
KILL_SWITCH_SECONDS = 0.2
"""What `keyhole revoke --all` may take, whatever the data plane does."""


class Sticky(Estate):
    """An estate whose gateway can be made to stick by a request."""

    def up_sticky(self, workers: int = 1) -> None:
        words = [sys.executable, "-I", str(PROGRAM), "up", "--workers", str(workers)]
        env = self.project.env | self.env
        ran = subprocess.run(words, env=env, capture_output=True, check=False, timeout=PATIENCE)
        assert ran.returncode == 0, ran

    def until_serving(self) -> None:
        until(lambda: {p.name: p.on for p in self.client.status().protections}["data-plane"])


def stop(estate: Estate, hostile: Inside) -> None:
    os.kill(worker_of(estate, hostile), signal.SIGSTOP)


def stick(estate: Estate, hostile: Inside) -> None:
    plane = worker_of(estate, hostile)
    begun = used(plane)
    hostile.say(f"curl -sS -m 60 https://{HOST}{STICKY} >/dev/null 2>&1 &")
    until(lambda: used(plane) > begun + 30)  # it works, though nobody else asks it anything


def worker_of(estate: Estate, inside: Inside) -> int:
    """The process that has the sandbox's door."""
    (number,) = [s.worker for s in estate.client.sessions() if s.pid == inside.process.pid]
    return estate.workers[number - 1]


def used(pid: int) -> int:
    """Ticks of the processor that it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.monotonic()
    result = work()
    return time.monotonic() - begun, result
