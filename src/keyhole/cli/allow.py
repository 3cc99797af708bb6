"""`keyhole allow ID HOST`: grants a running session one more host, for a time and some uses."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import find_gateways, find_sessions, no_such
from keyhole.control.client import NoGateway, RequestDeclined
from keyhole.control.operation_table import MAX_GRANT_SECONDS, MAX_GRANT_USES
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.quantity import format_duration, parse_duration
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of the session (its first letters do)")
    parser.add_argument("host", metavar="HOST", help="name, or name:port; it is tunnelled")
    parser.add_argument(
        "--for", dest="duration", default="10m", metavar="TIME", help="how long (default: 10m)"
    )
    parser.add_argument(
        "--uses", type=int, default=10, metavar="N", help="how many connections (default: 10)"
    )


def run(options: argparse.Namespace) -> int:
    """Ask for the grant, and print until when it holds."""
    host, seconds = _host(options.host), _seconds(options.duration)
    if not 1 <= options.uses <= MAX_GRANT_USES:
        raise CliError(f"--uses is from 1 to {MAX_GRANT_USES}; for more, change the policy")
    with find_gateways() as endpoints:
        ((session, endpoint),) = find_sessions(endpoints, [options.id])
        try:
            grant = endpoint.client().grant(session, host, seconds, options.uses)
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
