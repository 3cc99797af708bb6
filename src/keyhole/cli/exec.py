"""`keyhole exec NAME|ID -- CMD…`: runs a further command in a sandbox that is running.

It imports little, because a second terminal should be there at once: the module for the kind of
sandbox that was named, and no other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.flags import add_command_argument, add_quiet_flag, command_words
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.exec_socket import MAX_VALUE, PASSED

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_quiet_flag(parser)
    parser.add_argument(
        "name", metavar="NAME|ID", help="a sandbox (of an id, the first letters will do)"
    )
    add_command_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Run one command in the sandbox; returns its exit code."""
    command = command_words(options)
    if not command:
        raise CliError("name a command: `keyhole exec NAME|ID -- CMD…`")
    places = find_host_paths()
    session = options.name
    if (places.sandboxes / options.name / "record").exists():
        from keyhole.app.containers.named_sandbox import find_sandbox

        named = find_sandbox(places.sandboxes, options.name)
        record, life = named.running()
        if record.contained:
            from keyhole.cli.exec_container import exec_in_container_sandbox

            return exec_in_container_sandbox(
                named, places, command, _environment(), quiet=options.quiet
            )
        session = life.session
    from keyhole.cli.exec_bubblewrap import exec_in_bubblewrap

    code = exec_in_bubblewrap(places.runtime, session, command, _environment())
    if code is None:
        from keyhole.cli.exec_container import exec_in_container_session

        code = exec_in_container_session(session, command, _environment(), environment())
    if code is None:
        raise CliError(f"no sandbox '{options.name}' runs; `keyhole ps` lists them")
    return code


def _environment() -> dict[str, str]:
    """Variables of this terminal, which may differ from the one that started the sandbox."""
    said = {name: os.environ.get(name, "") for name in PASSED}
    return {n: v for n, v in said.items() if v and len(v) <= MAX_VALUE and v.isprintable()}
