"""`keyhole stop NAME|ID…`: ends sandboxes; named ones can be started again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import is_sandbox_name, list_sandboxes, no_such_sandbox
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import find_gateways, for_each
from keyhole.cli.sandbox_end import end_sandbox
from keyhole.cli.verb_context import find_host_paths

if TYPE_CHECKING:
    import argparse

_OF_AN_ID = "0123456789abcdef"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="+", metavar="NAME|ID", help="of an id, the first letters will do"
    )


def run(options: argparse.Namespace) -> int:
    """End each; a name wins over an id that begins with the same letters."""
    known = {each.name: each for each in list_sandboxes(find_host_paths().sandboxes)}
    code = EXIT_OK
    ids = [text for text in options.ids if text not in known]
    for name in dict.fromkeys(text for text in options.ids if text in known):
        code = max(code, end_sandbox(known[name], f"ended; `keyhole start {name}` starts it again"))
    for text in ids:
        # It can be no id, so it is a name that no sandbox has.
        if is_sandbox_name(text) and text.strip(_OF_AN_ID):
            raise CliError(str(no_such_sandbox(text)))
    if ids:
        with find_gateways() as endpoints:
            stopped = for_each(endpoints, ids, lambda each, session: each.stop(session), "ended")
            code = max(code, stopped)
    return code
