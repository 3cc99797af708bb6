"""`keyhole exec NAME -- CMD…`: a command in a sandbox that runs, as `keyhole run` has them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.ahead import FORWARDED
from keyhole.app.named import NotPossible, State, find
from keyhole.cli.asking import complain
from keyhole.cli.parser import CliError
from keyhole.cli.run import EXIT_REFUSED
from keyhole.cli.sandboxes import Sandbox
from keyhole.cli.setting import find_places
from keyhole.control.client import Client, ControlFailed
from keyhole.model.text import visible
from keyhole.sandbox.containers.console import Console
from keyhole.sandbox.containers.engine import Engine, EngineFailed
from keyhole.sandbox.containers.joining import join
from keyhole.sandbox.containers.spec import SESSION_LABEL

if TYPE_CHECKING:
    import argparse

    from keyhole.app.named import Life, Named, Record
    from keyhole.app.places import Places
    from keyhole.sandbox.containers.joining import Joined

_OF_THE_TERMINAL = ("TERM", "COLORTERM")
_MAX_VALUE = 256
"""Characters of a variable that says what the terminal is."""


def run(options: argparse.Namespace) -> int:
    """Run one command in it; its exit code is ours."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise CliError("what is to be run? `keyhole exec NAME -- CMD…`", EXIT_REFUSED)
    places = find_places()
    try:
        named = find(places.sandboxes, options.name)
        record, life = named.running()
        engine = open_engine(record, life)
        if not options.quiet and is_closed(named, places):
            complain(f"{named.name} is closed: nothing inside reaches anything any more")
        return _run(engine, record, life, command)
    except (NotPossible, EngineFailed) as error:
        raise CliError(f"nothing was run: {visible(str(error))}", EXIT_REFUSED) from None


def open_engine(record: Record, life: Life) -> Engine:
    """The engine of a sandbox that runs there, and is the very one that was started."""
    engine = Engine(record.engine)
    state = engine.state(life.container)
    if not state.running or state.labels.get(SESSION_LABEL) != life.session:
        raise NotPossible(f"{record.name} has just ended; `keyhole start {record.name}` starts it")
    return engine


def is_closed(named: Named, places: Places) -> bool:
    """Whether nobody serves its door any more."""
    found = Sandbox.of(named)
    if found.shared:
        try:
            found = found.at(Client(places.runtime).sessions())
        except ControlFailed:
            found = found.at(())
    return found.state is State.CLOSED


def _run(engine: Engine, record: Record, life: Life, command: list[str]) -> int:
    console = Console(0, 1, 2)
    joined = join(engine, life.container, console, _directory(record), _environment(), command)
    _hand_on_signals(joined, console)
    try:
        console.start(lambda: False)
        return joined.wait()
    finally:
        console.close()


def _directory(record: Record) -> str:
    """Where one is, if that is in the project, which has the same path inside."""
    here = Path.cwd()
    return str(here) if here.is_relative_to(Path(record.policy).parent) else record.directory


def _environment() -> dict[str, str]:
    """Of this terminal, which need not be that of whoever started it; all else is its own."""
    said = {name: os.environ.get(name, "") for name in _OF_THE_TERMINAL}
    return {n: v for n, v in said.items() if v and len(v) <= _MAX_VALUE and v.isprintable()}


def _hand_on_signals(joined: Joined, console: Console) -> None:
    """What is sent to us is meant for the command; a new size is its terminal's."""
    for number in FORWARDED:
        signal.signal(number, lambda number, _: joined.forward(number))
    signal.signal(signal.SIGWINCH, lambda *_: console.resize())
    sys.stdout.flush()
