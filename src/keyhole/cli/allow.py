"""`keyhole allow ID HOST`: grants a running session one more host, for a time and some uses.

`keyhole allow TARGET --save` writes a rule into the policy instead (`save_rule.py`).
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_policy_flag
from keyhole.cli.gateway_client import find_gateways, find_sessions, no_such
from keyhole.cli.save_rule import save_rule
from keyhole.control.client import NoGateway, RequestDeclined
from keyhole.control.operation_table import MAX_GRANT_SECONDS, MAX_GRANT_USES
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.quantity import format_duration, parse_duration
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

DEFAULT_DURATION = "10m"
DEFAULT_USES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        metavar="ID",
        help="of the session (its first letters do); with --save a target instead, as `keyhole "
        "why` takes it: HOST[:PORT], 'METHOD URL', or 'git push URL REF'",
    )
    parser.add_argument(
        "host", metavar="HOST", nargs="*", help="name, or name:port; it is tunnelled"
    )
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", help=f"how long (default: {DEFAULT_DURATION})"
    )
    parser.add_argument(
        "--uses", type=int, metavar="N", help=f"how many connections (default: {DEFAULT_USES})"
    )
    parser.add_argument(
        "--save",
        action="store_true",
        help="write the narrowest rule that allows the target into the policy, and accept it",
    )
    parser.add_argument("--yes", action="store_true", help="with --save: do not ask")
    add_policy_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Ask for the grant, and print until when it holds; or save a rule."""
    if options.save:
        if options.duration is not None or options.uses is not None:
            raise CliError("--for and --uses are of a grant to a session: not with --save")
        return save_rule([options.id, *options.host], options.policy, yes=options.yes)
    if options.yes or options.policy:
        raise CliError("--yes and --policy are for --save")
    if len(options.host) != 1:
        raise CliError(
            "name the session and one host: keyhole allow ID HOST; to write a rule into the "
            "policy: keyhole allow HOST --save"
        )
    host, seconds = _host(options.host[0]), _seconds(options.duration or DEFAULT_DURATION)
    uses = DEFAULT_USES if options.uses is None else options.uses
    if not 1 <= uses <= MAX_GRANT_USES:
        raise CliError(f"--uses is from 1 to {MAX_GRANT_USES}; for more, change the policy")
    with find_gateways() as endpoints:
        ((session, endpoint),) = find_sessions(endpoints, [options.id])
        try:
            grant = endpoint.client().grant(session, host, seconds, uses)
        except NoGateway:
            raise no_such(session) from None
        except RequestDeclined as error:
            if error.error == "not-found":
                raise no_such(session) from None
            raise
    until = datetime.fromtimestamp(grant.expires).strftime("%Y-%m-%d %H:%M:%S")
    times = "once" if grant.uses == 1 else f"{grant.uses} times"
    print(f"{session} may connect to {visible(grant.host)} {times}, until {until}")
    return EXIT_OK


def _host(text: str) -> str:
    """Parse it here too: this parser's message says how to write it."""
    try:
        pattern = HostPattern.parse(text)
    except Unparsable as error:
        # The text is not repeated: a pasted URL may hold a password.
        raise CliError(f"HOST: {_reason(error)}") from None
    if pattern.subdomains:
        raise CliError("HOST: a grant is for one name; allow a pattern in the policy")
    return str(pattern)


def _seconds(text: str) -> int:
    try:
        seconds = math.ceil(parse_duration(text))
    except Unparsable as error:
        raise CliError(f"--for: {_reason(error)}") from None
    if seconds > MAX_GRANT_SECONDS:
        most = format_duration(MAX_GRANT_SECONDS)
        raise CliError(f"--for is at most {most}; for longer, change the policy")
    return seconds


def _reason(error: Unparsable) -> str:
    return error.message + (f"; try {visible(error.hint)}" if error.hint else "")
