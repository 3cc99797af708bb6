"""A further command in a running sandbox: started by the engine, within the same walls.

The engine gives it the container's user, network, filter and limits, and no capability;
`entrypoint.py` asserts that, loads the exact filter and becomes the command. Called by `keyhole
exec`. The sandbox itself belongs to its supervisor.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.containers import container_spec
from keyhole.sandbox.containers.engine_client import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.sandbox.containers.console import ContainerConsole
    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.engine_values import ExecState

_SETTLE_SECONDS = 10.0
"""How long an engine may take to report that a command runs, or how it ended."""
_ASK_SECONDS = 0.01


class ContainerExec:
    """One further command in a sandbox."""

    def __init__(self, engine: Engine, id_: str, pid: int) -> None:
        """`pid` is 0 when a short command has already ended."""
        self._engine = engine
        self._id = id_
        self._process = -1
        if pid:
            with contextlib.suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)

    def forward(self, number: int) -> None:
        """Forward a signal to the command."""
        if self._process >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, number)

    def wait(self) -> int:
        """Wait for its exit code; processes that it left inside go on. Raises EngineFailed when the
        command is lost."""
        if self._process >= 0:
            select.select([self._process], [], [])
            os.close(self._process)
            self._process = -1
        return _until(lambda: _code(self._engine.state_joined(self._id)))


def _code(state: ExecState) -> int | None:
    return None if state.running else state.code


def _process(state: ExecState) -> int | None:
    """The command's process id, 0 when it has ended, or None while it has not started."""
    if state.code is not None and not state.running:
        return 0
    return state.pid or None


def _until(ask: Callable[[], int | None]) -> int:
    """Poll until the engine reports a result: it sends no event for it."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (answer := ask()) is None:
        if time.monotonic() > deadline:
            raise EngineFailed("the engine does not say what became of the command")
        time.sleep(_ASK_SECONDS)
    return answer


def exec_in_container(
    engine: Engine,
    container: str,
    console: ContainerConsole,
    directory: str,
    environment: Mapping[str, str],
    command: Sequence[str],
) -> ContainerExec:
    """Start a command in a container, its streams at this console. EngineFailed when it cannot."""
    said = [f"{name}={value}" for name, value in environment.items()]
    words = [*container_spec.ENTRY, directory, *said, "--", *command]
    terminal = console.interactive
    id_ = engine.join(container, words, terminal=terminal)
    stream = engine.start_joined(id_, terminal=terminal)
    joined = ContainerExec(engine, id_, _until(lambda: _process(engine.state_joined(id_))))
    other = engine.another()

    def resized(rows: int, columns: int) -> None:
        with contextlib.suppress(EngineFailed):
            other.resize_joined(id_, rows, columns)

    console.connect(stream, resized, lambda: joined.forward(signal.SIGPIPE))
    return joined
