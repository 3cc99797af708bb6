"""For verbs that ask gateways: finds them, completes session ids, turns refusals into errors.

`open_gateway_client` is for the verbs about the gateway that `keyhole up` started: `status`,
`reload`, `down`, `health`. `find_gateways` is for the verbs about sessions, whichever gateway
serves them: `ps`, `revoke`, `stop`, `allow`, `secret rotate`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError, exit_code
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.client import ControlClient, ControlFailed, NoGateway, RequestDeclined
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyhole.control.endpoints import ControlEndpoint

ID_LENGTH = 12
"""Digits of a whole id. Fewer are its first digits, and the gateway is asked for the rest."""

MAX_NAMED = 5
"""Sessions that the message names when several ids begin alike."""


@contextlib.contextmanager
def open_gateway_client() -> Iterator[ControlClient]:
    """A client of this user's gateway; a refusal or a failure becomes a CliError."""
    with _telling():
        yield ControlClient(find_host_paths().runtime)


@contextlib.contextmanager
def find_gateways() -> Iterator[list[ControlEndpoint]]:
    """This user's gateway, if there is one, and every run that has its own."""
    from keyhole.control.endpoints import find_endpoints

    with _telling():
        yield find_endpoints(find_host_paths().runtime)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except ControlFailed as error:
        raise CliError(failure(error), exit_code(error)) from None


def failure(error: ControlFailed) -> str:
    """Why the gateway did not do it, and which log to read."""
    text = visible(str(error))
    own = isinstance(error, RequestDeclined) and error.error != "fault"
    if own or isinstance(error, NoGateway):
        return text
    log = find_host_paths().gateway_log
    return f"{text}; its log is {visible(str(log))}" if log.exists() else text


def find_sessions(
    endpoints: Sequence[ControlEndpoint], beginnings: Sequence[str]
) -> list[tuple[str, ControlEndpoint]]:
    """The whole ids of the sessions that were typed, each with its gateway.

    Raises CliError unless each text names exactly one session: nothing is done in part.
    """
    gateway = endpoints[0]
    runs = {each.run.session: each for each in endpoints if each.run}
    known: dict[str, ControlEndpoint] = dict(runs)
    failed: ControlFailed | None = None
    if any(len(each) != ID_LENGTH for each in beginnings):
        try:
            known |= {each.id: gateway for each in gateway.sessions()}
        except NoGateway:
            pass
        except ControlFailed as error:
            failed = error  # runs are found even if the gateway cannot be asked
    if failed and not all(any(k.startswith(text) for k in known) for text in beginnings):
        raise failed
    # A whole id that belongs to no run is sent to the gateway, which knows its sessions.
    found = {text: text if len(text) == ID_LENGTH else _find(known, text) for text in beginnings}
    return [(each, known.get(each, gateway)) for each in dict.fromkeys(found.values())]


def _find(known: dict[str, ControlEndpoint], beginning: str) -> str:
    # `revoke "$ID"` with an empty ID must not match every session.
    found = sorted(each for each in known if beginning and each.startswith(beginning))
    if len(found) == 1:
        return found[0]
    if not found:
        raise no_such(beginning)
    named = ", ".join(found[:MAX_NAMED]) + (", …" if len(found) > MAX_NAMED else "")
    raise CliError(f"{len(found)} sessions begin with {beginning}: {named}; type more of the id")


def no_such(text: str) -> CliError:
    """The error for an id that no session has."""
    return CliError(f"there is no session '{visible(text)}'; `keyhole ps` lists them")


def for_each(
    endpoints: Sequence[ControlEndpoint],
    beginnings: Sequence[str],
    act: Callable[[ControlEndpoint, str], object],
    done: str,
) -> int:
    """Act on each session, even after one failed; 0 if all succeeded."""
    code = 0
    for session, endpoint in find_sessions(endpoints, beginnings):
        try:
            act(endpoint, session)
        except ControlFailed as error:
            missing = isinstance(error, NoGateway) or (
                isinstance(error, RequestDeclined) and error.error == "not-found"
            )
            said = no_such(session) if missing else CliError(failure(error), exit_code(error))
            complain(str(said))
            code = max(code, exit_code(said))
        else:
            print(f"{session} {done}")
    return code


def complain(text: str) -> None:
    """Print an error after which the verb goes on."""
    print(f"keyhole: {text}", file=sys.stderr)
