"""`keyhole web`: serves a page about sessions and the log to this user's browser, on loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.host_paths import find_policy
from keyhole.cli.browser import DISPLAYS, find_browser, open_page
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.system.event_loop import run_on_loop

if TYPE_CHECKING:
    from keyhole.app.web.web_server import WebServer

MISSING = (
    "keyhole web needs the Python packages starlette and uvicorn, which are not installed here: "
    "pip install 'keyhole[web]'"
)

LAST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="of loopback (default: any free one)"
    )
    parser.add_argument(
        "--no-open", action="store_true", help="print the link, without starting a browser"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        from keyhole.app.web.web_server import WebServer
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio", "h11", "click"):
            raise
        raise CliError(MISSING) from None
    paths, env = find_host_paths(), environment()
    here = Path.cwd() / find_policy(Path.cwd(), paths.home)
    policy = os.path.realpath(here) if here.exists() else ""
    server = WebServer(paths, options.port, env.get("PATH", ""), policy)
    opens = not options.no_open and any(env.get(name) for name in DISPLAYS)
    # Otherwise uvicorn lets the signal end the process before it has tidied up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        run_on_loop(lambda: _serve(server, opens=opens))
    return EXIT_OK


async def _serve(server: WebServer, *, opens: bool) -> None:
    _print_link(server)
    if opens:
        _open_browser(server)
    else:
        print("open it in a browser of this host", flush=True)
    loop = asyncio.get_running_loop()
    if sys.stdin.isatty():
        print("Enter prints a new link; Ctrl-C ends the server", flush=True)
        loop.add_reader(sys.stdin, _answer_enter, server)
    try:
        await server.serve()
    finally:
        if sys.stdin.isatty():
            loop.remove_reader(sys.stdin)


def _answer_enter(server: WebServer) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        return
    _print_link(server)


def _print_link(server: WebServer) -> None:
    print(f"{server.access.new_link()}", flush=True)
    print("  this link works once, within five minutes", flush=True)


def _open_browser(server: WebServer) -> None:
    """Have the desktop open a file of this user's that leads to a link."""
    program = find_browser(environment())
    if program is None:
        print("xdg-open is not installed: open the link in a browser of this host", flush=True)
        return
    open_page(program, server.write_redirect(server.access.new_link()))


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError("a port, as 8123")
    return int(text)
