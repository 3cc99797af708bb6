"""`keyhole up`: starts the gateway, and returns when it is ready.

It runs `keyhole up --foreground` in a session of its own, which is the gateway. Service managers
run that command themselves.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole import __version__
from keyhole.app.containers.door_receiver_client import ExpectedSandbox
from keyhole.app.daemon.workers import DEFAULT_MOST, MOST, default_workers
from keyhole.app.remote.receiver_client import ListenAddress
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli import background
from keyhole.cli.background import person_asked, show_last_lines
from keyhole.cli.consent import require_accepted
from keyhole.cli.desktop_start import start_desktop
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_trust_flag, duration_between
from keyhole.cli.gateway_log import open_log
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import notice, print_json
from keyhole.cli.startup_channel import StartingUser, start
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.client import ControlClient, ControlFailed, NoGateway
from keyhole.control.socket_directory import HELD, SOCKET
from keyhole.model.errors import SetupFailed
from keyhole.model.quantity import format_duration
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import Status

OTHER_SECONDS = 20.0
"""How long a gateway that another `keyhole up` is starting may take to answer."""
_LOOK_SECONDS = 0.05

LEAST_LIFETIME, MOST_LIFETIME = 2, 3600
"""Seconds that a remote sandbox's certificate may be valid; the most is the default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="run the gateway in this process, for service managers",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_worker_count,
        help="number of processes that share the sessions (default: one for each core, at most"
        f" {DEFAULT_MOST})",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_listen_address,
        help="listen there for sandboxes of other machines, which `keyhole invite` lets in",
    )
    parser.add_argument(
        "--certificate-lifetime",
        metavar="D",
        type=duration_between(LEAST_LIFETIME, MOST_LIFETIME),
        help="how long the certificate of such a sandbox is valid before it must be renewed, from"
        f" {LEAST_LIFETIME}s to 1h (default: 1h)",
    )
    expected = parser.add_argument_group("a sandbox that others make, as compose does")
    expected.add_argument(
        "--door",
        metavar="DIR",
        type=Path,
        help="expect such a sandbox; its holder registers its door in this directory",
    )
    expected.add_argument(
        "--furnish",
        dest="files",
        metavar="DIR",
        type=Path,
        help="write `etc` and `kit` of that sandbox here, for it to mount read-only",
    )
    expected.add_argument("--policy", metavar="FILE", type=Path, help="policy of that sandbox")
    add_trust_flag(expected)
    # The descriptor by which the gateway speaks to the `keyhole up` that started it.
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Start the gateway, or be the gateway."""
    places = find_host_paths()
    expected, listen = _expected(options, places), _listen(options)
    if options.foreground:
        from keyhole.cli.up_foreground import serve_foreground

        return serve_foreground(places, options.line, expected, _workers(options), listen)
    client = ControlClient(places.runtime)
    try:
        return _already(client.status(), places, as_json=options.json)
    except NoGateway:
        pass
    words = ["--workers", str(_workers(options))]
    if options.listen is not None:
        words += ["--listen", f"[{options.listen.host}]:{options.listen.port}"]
        if options.certificate_lifetime is not None:
            words += ["--certificate-lifetime", format_duration(options.certificate_lifetime)]
    return _start(places, client, words, as_json=options.json)


def _listen_address(text: str) -> ListenAddress:
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError("an address is HOST:PORT")
    return ListenAddress(host.strip("[]"), int(port))


def _listen(options: argparse.Namespace) -> ListenAddress | None:
    listen: ListenAddress | None = options.listen
    if listen is None:
        if options.certificate_lifetime is not None:
            raise CliError("--certificate-lifetime goes with --listen")
        return None
    if options.certificate_lifetime is None:
        return listen
    return replace(listen, lifetime=int(options.certificate_lifetime))


def _worker_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MOST}")
    return int(text)


def _workers(options: argparse.Namespace) -> int:
    """As many as were asked for; by default one for each core, and one for a single sandbox."""
    if options.workers is not None:
        return int(options.workers)
    return 1 if options.door else default_workers()


def _expected(options: argparse.Namespace, places: HostPaths) -> ExpectedSandbox | None:
    """The sandbox that compose or others make, once its policy is accepted here (I11)."""
    flags = (options.door, options.files, options.policy)
    if not any(flags):
        return None
    if not all(flags) or not options.foreground:
        raise CliError("--door, --furnish and --policy go together, and with --foreground")
    file = read_policy(options.policy, places, FileCatalogue())
    require_accepted(file, places, options.trust, "no gateway was started")
    return ExpectedSandbox(options.door.absolute(), options.files.absolute(), file.path)


def _already(status: Status, places: HostPaths, *, as_json: bool) -> int:
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


def _start(places: HostPaths, client: ControlClient, flags: list[str], *, as_json: bool) -> int:
    notes: list[str] = []

    def tell(line: str) -> None:
        notes.append(line)
        if not as_json:
            notice(visible(line))

    log = open_log(places.gateway_log)
    written = os.fstat(log).st_size
    try:
        words = (*background.PROGRAM, "up", "--foreground", *flags)
        pid = start(words, environment(), log, StartingUser(tell, person_asked()))
    except SetupFailed as error:
        other = _other(client, str(error))
        if other is None:
            raise _not_started(str(error), log, written, places) from None
        return _already(other, places, as_json=as_json)
    finally:
        os.close(log)
    start_desktop()
    if as_json:
        _print_json(pid, places, started=True, notes=notes)
    else:
        print(f"the gateway is up, process {pid}; `keyhole run` uses it, `keyhole down` ends it")
    return EXIT_OK


def _other(client: ControlClient, words: str) -> Status | None:
    """The gateway that another `keyhole up` started at the same time; it may not answer yet."""
    deadline = time.monotonic() + OTHER_SECONDS
    while True:
        try:
            return client.status()
        except ControlFailed:
            if HELD not in words or time.monotonic() > deadline:
                return None
        time.sleep(_LOOK_SECONDS)


def _not_started(words: str, log: int, written: int, places: HostPaths) -> CliError:
    """The gateway's own message; without one, the end of its log."""
    path = visible(str(places.gateway_log))
    if words:
        return CliError(f"no gateway was started: {visible(words)}")
    show_last_lines(log, written)
    return CliError(f"no gateway was started: it ended before it was ready; its log is {path}")


def _print_json(pid: int, places: HostPaths, *, started: bool, notes: list[str]) -> None:
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
