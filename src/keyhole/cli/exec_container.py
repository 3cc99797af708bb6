"""`keyhole exec` for a sandbox that is a container: its engine starts the command."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.run.early_start import FORWARDED
from keyhole.cli.errors import CliError
from keyhole.cli.gateway_client import complain, find_gateways
from keyhole.cli.running_sandbox import is_closed, open_engine
from keyhole.control.client import ControlFailed
from keyhole.control.endpoints import ask_all
from keyhole.control.values import SessionPhase
from keyhole.model.errors import Refused
from keyhole.sandbox.containers.console import ContainerConsole
from keyhole.sandbox.containers.container_exec import exec_in_container
from keyhole.sandbox.containers.container_target import find_sandbox_container

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.containers.named_sandbox import NamedSandbox
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import SessionView
    from keyhole.sandbox.containers.container_exec import ContainerExec
    from keyhole.sandbox.containers.engine import Engine


def exec_in_container_sandbox(
    named: NamedSandbox,
    places: HostPaths,
    command: tuple[str, ...],
    environment: dict[str, str],
    *,
    quiet: bool,
) -> int:
    """Run one command; returns its exit code. Raises Refused."""
    record, life = named.running()
    engine = open_engine(record, life)
    if not quiet and is_closed(named, places):
        complain(f"{named.name} is closed: nothing inside reaches anything any more")
    directory = _directory(Path(record.policy).parent, record.directory)
    return _run(engine, life.container, directory, command, environment)


def exec_in_container_session(
    text: str, command: tuple[str, ...], environment: dict[str, str], host: Mapping[str, str]
) -> int | None:
    """Run one command in the container of the run whose id begins with this text; None if there is
    none. `host` has this process's variables. Raises Refused."""
    sessions = _sessions_that_begin(text)
    if len(sessions) > 1:
        raise CliError(f"{len(sessions)} sandboxes begin with {text}; type more of the id")
    for session in sessions:
        found = find_sandbox_container(host, session.id)
        if found is not None:
            if session.state is SessionPhase.REVOKED:
                raise Refused("its session is closed (revoked)")
            engine, container = found
            project = Path(session.policy).parent
            return _run(engine, container, _directory(project, str(project)), command, environment)
    return None


def _sessions_that_begin(text: str) -> list[SessionView]:
    """Sessions of this user, whichever gateway has them: another user's have no id for us."""
    found: list[SessionView] = []
    with find_gateways() as endpoints:
        for _, answer in ask_all(endpoints, lambda each: each.sessions()):
            if not isinstance(answer, ControlFailed):
                found += [each for each in answer if text and each.id.startswith(text)]
    return found


def _run(
    engine: Engine,
    container: str,
    directory: str,
    command: tuple[str, ...],
    environment: dict[str, str],
) -> int:
    console = ContainerConsole(0, 1, 2)
    joined = exec_in_container(engine, container, console, directory, environment, command)
    _hand_on_signals(joined, console)
    try:
        console.start(lambda: False)
        return joined.wait()
    finally:
        console.close()


def _directory(project: Path, otherwise: str) -> str:
    """The current directory if it is in the project, whose path is the same inside."""
    here = Path.cwd()
    return str(here) if here.is_relative_to(project) else otherwise


def _hand_on_signals(joined: ContainerExec, console: ContainerConsole) -> None:
    """Forward signals to the command, and the terminal's new size to its terminal."""
    for number in FORWARDED:
        signal.signal(number, lambda number, _: joined.forward(number))
    signal.signal(signal.SIGWINCH, lambda *_: console.resize())
    sys.stdout.flush()
