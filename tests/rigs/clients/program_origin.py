"""An origin that is a program of the clients' interpreter, on loopback."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.rigs.clients.services import CLIENTS, PROGRAMS
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTHON = CLIENTS / "bin/python"


@dataclass(frozen=True)
class ProgramOrigin:
    """A running program, by the address that is dialled."""

    address: str
    process: subprocess.Popen[str]

    def end(self) -> str:
        """End its input; what it has printed at its end."""
        return self.process.communicate(timeout=PATIENCE)[0]


@contextlib.contextmanager
def running_program(name: str, chain: Path, key: Path) -> Iterator[ProgramOrigin]:
    """Run a program that prints its port and serves until its input ends."""
    command = [str(PYTHON), str(PROGRAMS / name), str(chain), str(key)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        origin = ProgramOrigin(f"127.0.0.1:{int(process.stdout.readline())}", process)
        try:
            yield origin
        finally:
            if process.poll() is None:
                origin.end()
