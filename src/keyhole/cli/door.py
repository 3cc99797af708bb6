"""`keyhole door --gateway HOST:PORT -- CMD…`: runs a command here, whose door a gateway on another
machine serves."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.remote.invitation import Invitation
from keyhole.app.remote.remote_run import GatewayAddress, attach_to_remote
from keyhole.cli.errors import CliError
from keyhole.cli.flags import (
    accept_any,
    add_changes_flag,
    add_command_argument,
    add_policy_flag,
    add_quiet_flag,
    add_trust_flag,
    command_words,
)
from keyhole.cli.passphrase import read_line

if TYPE_CHECKING:
    from keyhole.app.remote.remote_run import RemoteRun
    from keyhole.app.setup.launch_preparation import RunRequest
    from keyhole.cli.parser import Parser

MAX_CODE = 256
"""Characters that are read of a code."""

_WITH_VALUES = frozenset({"--gateway", "--code-file", "--policy", "--changes"})


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--gateway",
        required=True,
        metavar="HOST:PORT",
        type=_address,
        help="where `keyhole up --listen HOST:PORT` listens",
    )
    parser.add_argument(
        "--code-file",
        metavar="FILE",
        help="read the code of `keyhole invite` from FILE, or from standard input (`-`); default: "
        "ask for it",
    )
    add_quiet_flag(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="repeat notices that were shown before"
    )
    parser.add_argument(
        "--self-test", action="store_true", help="test every known way out again before the run"
    )
    add_changes_flag(parser)
    add_policy_flag(parser)
    add_trust_flag(parser)
    add_command_argument(parser)
    # A door is a run under bubblewrap; these flags of `keyhole run` it does not have.
    parser.set_defaults(
        own_gateway=False,
        runtime="bwrap",
        image=None,
        publish=[],
        learn=False,
        unsafe_learn=False,
        unsafe_learn_with_credentials=False,
    )
    parser.split = lambda words, _: accept_any(words, _WITH_VALUES)


def run(options: argparse.Namespace) -> int:
    """Run one command; returns its exit code."""
    command = command_words(options)
    if not command:
        raise CliError("name a command: `keyhole door --gateway HOST:PORT -- CMD…`")
    from keyhole.cli.early_start import start_helper
    from keyhole.cli.run_sandboxed import run_sandboxed

    invitation = Invitation.parse(_read_code(options.code_file))
    helper = start_helper()

    def attach(request: RunRequest) -> RemoteRun:
        return attach_to_remote(request, GatewayAddress(*options.gateway), invitation)

    return run_sandboxed(options, command, helper, None, attach=attach)


def _address(text: str) -> tuple[str, int]:
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError("an address is HOST:PORT")
    return host.strip("[]"), int(port)


def _read_code(file: str | None) -> str:
    """The code, from where it is not seen by others: never an argument."""
    if file is None:
        typed = read_line("the code of `keyhole invite`: ")
        if not typed:
            raise CliError("no terminal to ask for the code on; name it with --code-file")
        return typed.decode("utf-8", "replace")
    if file == "-":
        return sys.stdin.readline(MAX_CODE)
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as source:
            return source.readline(MAX_CODE)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from None
