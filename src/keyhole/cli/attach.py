"""`keyhole attach NAME`: the terminal of what a sandbox runs, until its end or Ctrl-P Ctrl-Q."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from keyhole.app.named import NotPossible, find
from keyhole.cli.asking import complain
from keyhole.cli.exec import is_closed, open_engine
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.cli.run import EXIT_REFUSED
from keyhole.cli.setting import find_places
from keyhole.model.text import visible
from keyhole.sandbox.containers.console import Console
from keyhole.sandbox.containers.engine import THE_USUAL_KEYS, EngineFailed

if TYPE_CHECKING:
    import argparse

    from keyhole.app.named import Named
    from keyhole.sandbox.containers.engine import Engine

_END_SECONDS = 15.0
"""How long the supervisor may take to say how a command ended that has ended."""
_LOOK_SECONDS = 0.05


def run(options: argparse.Namespace) -> int:
    """Be its terminal; the command's exit code, or 0 when it was left."""
    places = find_places()
    if not (os.isatty(0) and os.isatty(1)):
        raise CliError("a terminal is attached to a terminal; for pipes there is `keyhole exec`")
    try:
        named = find(places.sandboxes, options.name)
        record, life = named.running()
        if not record.command:
            raise NotPossible(
                f"{named.name} was given no command; `keyhole exec {named.name} -- sh` enters it"
            )
        engine = open_engine(record, life)
        if is_closed(named, places):
            complain(f"{named.name} is closed: nothing inside reaches anything any more")
        complain(f"this is the terminal of {named.name}; Ctrl-P Ctrl-Q leaves it")
        _attach(engine, life.container)
        return _ended(named, engine, life.container)
    except (NotPossible, EngineFailed) as error:
        raise CliError(visible(str(error)), EXIT_REFUSED) from None


def _attach(engine: Engine, container: str) -> None:
    console = Console(0, 1, 2)
    other = engine.another()

    def resized(rows: int, columns: int) -> None:
        with contextlib.suppress(EngineFailed):
            other.resize(container, rows, columns)

    console.connect(engine.attach(container, THE_USUAL_KEYS), resized, lambda: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: console.hang_up())
    signal.signal(signal.SIGWINCH, lambda *_: console.resize())
    # Another size than it will have: what runs there draws itself again.
    resized(*_OTHER_SIZE)
    try:
        console.start(lambda: False)
        console.wait()
    finally:
        console.close()


_OTHER_SIZE = (25, 79)


def _ended(named: Named, engine: Engine, container: str) -> int:
    with contextlib.suppress(EngineFailed):
        if engine.state(container).running:
            complain(f"left; {named.name} goes on")
            return EXIT_OK
    deadline = time.monotonic() + _END_SECONDS
    while named.is_held() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    code = named.life().code
    complain(f"{named.name} has ended" + ("" if code is None else f", exit code {code}"))
    return EXIT_REFUSED if code is None else code
