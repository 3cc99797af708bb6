"""`keyhole revoke ID…|--all`: closes sessions for good. Their sandboxes stay, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.amounts import count
from keyhole.cli.errors import CliError, exit_code
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import complain, failure, find_gateways, for_each
from keyhole.control.client import ControlFailed, NoGateway

if TYPE_CHECKING:
    import argparse

    from keyhole.control.endpoints import ControlEndpoint

CLOSED = "closed; its connections are cut"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="of a session (its first letters do)")
    parser.add_argument("--all", action="store_true", help="every session of the gateway")


def run(options: argparse.Namespace) -> int:
    """Close the doors, and cut all open connections."""
    if options.all == bool(options.ids):
        raise CliError("name the sessions to close (`keyhole ps` lists them), or --all")
    with find_gateways() as endpoints:
        if options.all:
            return _close_all(endpoints)
        return for_each(endpoints, options.ids, _close, CLOSED)


def _close(endpoint: ControlEndpoint, session: str) -> None:
    if not endpoint.revoke(session):
        complain(_silent(session))


def _close_all(endpoints: list[ControlEndpoint]) -> int:
    """Revoke all at the same time, so that a gateway that does not answer delays no other."""
    from keyhole.control.endpoints import ask_all

    closed, code = 0, EXIT_OK
    answers = ask_all(endpoints, lambda each: each.revoke_all())
    if all(isinstance(answer, NoGateway) for _, answer in answers):
        print("no session is open, so there is none to close")
        return EXIT_OK
    for endpoint, answer in answers:
        if isinstance(answer, NoGateway):
            continue
        if isinstance(answer, ControlFailed):
            whose = f"{endpoint.run.session}: " if endpoint.run else ""
            complain(whose + failure(answer))
            code = max(code, exit_code(answer))
            continue
        closed += answer.closed
        if answer.ended and endpoint.run:
            complain(_silent(endpoint.run.session))
    print(f"{count(closed, 'session')} closed; their connections are cut")
    return code


def _silent(session: str) -> str:
    return f"{session} did not answer, so the process that served its door was ended"
