"""`keyhole allow ID HOST`: one host more for a running session, for a time and a number of uses."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.asking import asking_all, find_sessions, no_such
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.control.client import Declined, NoGateway
from keyhole.control.table import MAX_GRANT_SECONDS, MAX_GRANT_USES
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.quantity import format_duration, parse_duration
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Ask for the grant, and say until when it holds."""
    host, seconds = _host(options.host), _seconds(options.duration)
    if not 1 <= options.uses <= MAX_GRANT_USES:
        raise CliError(f"--uses is from 1 to {MAX_GRANT_USES}; what is used more is the policy's")
    with asking_all() as endpoints:
        ((session, endpoint),) = find_sessions(endpoints, [options.id])
        try:
            grant = endpoint.client().grant(session, host, seconds, options.uses)
        except NoGateway:
            raise no_such(session) from None
        except Declined as error:
            if error.error == "not-found":
                raise no_such(session) from None
            raise
    until = datetime.fromtimestamp(grant.expires).strftime("%Y-%m-%d %H:%M:%S")
    times = "once" if grant.uses == 1 else f"{grant.uses} times"
    print(f"{session} may connect to {visible(grant.host)} {times}, until {until}")
    return EXIT_OK


def _host(text: str) -> str:
    """Read here, too: the parser knows how it should have been written."""
    try:
        pattern = HostPattern.parse(text)
    except Unparsable as error:
        # The text is not repeated: a pasted URL may hold a password.
        raise CliError(f"HOST: {_reason(error)}") from None
    if pattern.subdomains:
        raise CliError("HOST: a grant is for one name; a pattern is the policy's to open")
    return str(pattern)


def _seconds(text: str) -> int:
    try:
        seconds = math.ceil(parse_duration(text))
    except Unparsable as error:
        raise CliError(f"--for: {_reason(error)}") from None
    if seconds > MAX_GRANT_SECONDS:
        most = format_duration(MAX_GRANT_SECONDS)
        raise CliError(f"--for is at most {most}; what lasts longer is the policy's to open")
    return seconds


def _reason(error: Unparsable) -> str:
    return error.message + (f"; try {visible(error.hint)}" if error.hint else "")
