"""`keyhole up`: starts the gateway and returns when it is ready.

It starts itself again with `--foreground`, in a session of its own, which is the gateway. Service
managers start that themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO, cast

from keyhole import __version__
from keyhole.cli.gatewaylog import LogUnusable, LogWriter, last_lines, open_log
from keyhole.cli.main import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.notify import VARIABLE, WATCHDOG, WATCHDOG_PROCESS, Notifier
from keyhole.cli.paint import paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.cli.starting import NotStarted, Person, Starter, start
from keyhole.control.client import Client, ControlFailed, NoGateway
from keyhole.control.place import HELD, SOCKET
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keyhole.app.doorway import Expected
    from keyhole.app.places import Places
    from keyhole.control.values import Status
    from keyhole.vault.stored import Ask

PROGRAM: tuple[str, ...] = (sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "keyhole")
"""This very Keyhole. Never looked for in the directory that it was typed in (I11)."""

LAST_WORDS = 10
"""Lines of the log that are shown of a gateway that died."""

OTHER_SECONDS = 20.0
"""How long a gateway that somebody else is starting may take to answer."""
_LOOK_SECONDS = 0.05


def run(options: argparse.Namespace) -> int:
    """Start it, or be it."""
    places = find_places()
    expected = _expected(options, places)
    if options.foreground:
        return _serve(places, options.line, expected)
    client = Client(places.runtime)
    try:
        return _already(client.status(), places, as_json=options.json)
    except NoGateway:
        pass
    except ControlFailed as error:
        raise CliError(visible(str(error))) from None
    return _start(places, client, as_json=options.json)


def _expected(options: argparse.Namespace, places: Places) -> Expected | None:
    """A sandbox that others make, and its policy accepted: by whoever typed this (I11)."""
    flags = (options.door, options.furnish, options.policy)
    if not any(flags):
        return None
    if not all(flags) or not options.foreground:
        raise CliError("--door, --furnish and --policy go together, and with --foreground")
    from keyhole.app.catalogue import FileCatalogue
    from keyhole.app.doorway import Expected
    from keyhole.app.trust import TrustStore, examine
    from keyhole.cli.consent import obtain
    from keyhole.policy.fault import PolicyFaults

    try:
        file = read_policy(options.policy, places, FileCatalogue())
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("no gateway was started: the policy is not valid") from None
    dossier = examine(file, places.home, environment().get("PATH", ""))
    if not obtain(dossier, TrustStore(places.trust), options.trust, sys.stderr):
        raise CliError("no gateway was started: the policy is not accepted")
    return Expected(options.door.absolute(), options.furnish.absolute(), file.path)


# ── in the background ─────────────────────────────────────────────────────────────────────────────


def _already(status: Status, places: Places, *, as_json: bool) -> int:
    if as_json:
        _print_json(status.pid, places, started=False, notes=[])
        return EXIT_OK
    print(f"a gateway is up already, process {status.pid}; `keyhole status` says more")
    if status.version != __version__:
        print(
            f"it is of version {visible(status.version)}, and this is {__version__}:"
            " `keyhole down` and `keyhole up` replace it"
        )
    return EXIT_OK


def _start(places: Places, client: Client, *, as_json: bool) -> int:
    notes: list[str] = []

    def tell(line: str) -> None:
        notes.append(line)
        if not as_json:
            print(
                f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {visible(line)}", file=sys.stderr
            )

    try:
        log = open_log(places.gateway_log)
    except LogUnusable as error:
        raise CliError(f"no gateway was started: {visible(str(error))}") from None
    written = os.fstat(log).st_size
    try:
        words = (*PROGRAM, "up", "--foreground")
        pid = start(words, environment(), log, Person(tell, person_asked()))
    except NotStarted as error:
        other = _other(client, str(error))
        if other is None:
            raise _not_started(str(error), log, written, places) from None
        return _already(other, places, as_json=as_json)
    finally:
        os.close(log)
    if as_json:
        _print_json(pid, places, started=True, notes=notes)
    else:
        print(f"the gateway is up, process {pid}; `keyhole run` uses it, `keyhole down` ends it")
    return EXIT_OK


def _other(client: Client, words: str) -> Status | None:
    """The gateway that was started at the same time and was quicker; it may not answer yet."""
    deadline = time.monotonic() + OTHER_SECONDS
    while True:
        try:
            return client.status()
        except ControlFailed:
            if HELD not in words or time.monotonic() > deadline:
                return None
        time.sleep(_LOOK_SECONDS)


def _not_started(words: str, log: int, written: int, places: Places) -> CliError:
    """Its own words; where it had none, the end of what it wrote."""
    path = visible(str(places.gateway_log))
    if words:
        return CliError(f"no gateway was started: {visible(words)}")
    for line in last_lines(log, written, LAST_WORDS):
        print(f"  {line}", file=sys.stderr)
    return CliError(f"no gateway was started: it ended before it was ready; its log is {path}")


def _print_json(pid: int, places: Places, *, started: bool, notes: list[str]) -> None:
    print_json(
        {
            "running": True,
            "started": started,
            "pid": pid,
            "socket": str(places.runtime / SOCKET),
            "log": str(places.gateway_log),
            "notes": notes,
        }
    )


def person_asked() -> Callable[[bool], bytes] | None:
    """How the passphrase is asked for, where there is a terminal to ask on."""
    from keyhole.cli.secret import has_terminal, type_passphrase
    from keyhole.vault.memory import guard_memory

    if not has_terminal():
        return None

    def ask(again: bool) -> bytes:
        guard_memory()
        return type_passphrase(again)

    return ask


# ── in the foreground ─────────────────────────────────────────────────────────────────────────────


def _serve(places: Places, line: int | None, expected: Expected | None) -> int:
    """Be the gateway until it is told to end. `line` leads to the `keyhole up` that waits."""
    from keyhole.app.daemon import DaemonFailed, Serving, serve

    env = environment()
    notifier = Notifier(env)
    for name in (VARIABLE, WATCHDOG, WATCHDOG_PROCESS):
        os.environ.pop(name, None)
    if line is None:
        try:
            serving = Serving(
                places, env, notifier.ready, _report, _ask_here(), expected, notifier.turned
            )
            code: int = serve(serving)
        except DaemonFailed as error:
            raise CliError(f"no gateway was started: {visible(str(error))}") from None
        finally:
            notifier.close()
        return code
    try:
        starter = Starter(line)
    except OSError:
        raise CliError("--line is for `keyhole up` itself; type `keyhole up`") from None
    log = LogWriter(os.dup(2))
    sys.stdout = sys.stderr = cast("TextIO", log)
    log.report(f"keyhole {__version__} starts as process {os.getpid()}")

    def ready() -> None:
        log.report("ready")
        starter.ready()

    def report(text: str) -> None:
        log.report(text)
        starter.say(text)

    try:
        code = serve(Serving(places, env, ready, report, starter.ask))
    except DaemonFailed as error:
        log.report(f"not started: {error}")
        starter.failed(str(error))
        return EXIT_UNUSABLE
    log.report("ended")
    return code


def _report(line: str) -> None:
    """On standard error, where a service manager's log takes it from."""
    with contextlib.suppress(OSError, ValueError):  # its reader is gone, and sessions go on
        print(f"keyhole: {visible(line)}", file=sys.stderr, flush=True)


def _ask_here() -> Ask | None:
    from keyhole.cli.secret import ask_passphrase, has_terminal

    return ask_passphrase if has_terminal() else None
