"""What the verbs that ask a gateway share: who is asked, refusals as errors, ids cut short.

`asking` is for the verbs that speak of the gateway that `keyhole up` started: `status`, `reload`,
`down`. `asking_all` is for those that speak of sessions, wherever they are served: `ps`, `revoke`,
`stop`, `allow`, `secret rotate`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from keyhole.cli.main import EXIT_DENIED, EXIT_UNUSABLE
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.control.client import Client, ControlFailed, Declined, NoGateway
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyhole.control.endpoints import Endpoint

ID_LENGTH = 12
"""Digits of a whole id; fewer are a beginning, and the gateway is asked whose."""

MAX_NAMED = 5
"""Sessions that are named when a beginning fits several."""


@contextlib.contextmanager
def asking() -> Iterator[Client]:
    """The gateway of this user; what it does not do, or cannot be asked, ends the verb."""
    with _telling():
        yield Client(find_places().runtime)


@contextlib.contextmanager
def asking_all() -> Iterator[list[Endpoint]]:
    """The gateway of this user, if there is one, and every run that has its own."""
    from keyhole.control.endpoints import find_endpoints
    from keyhole.control.place import Unusable

    with _telling():
        try:
            endpoints = find_endpoints(find_places().runtime)
        except Unusable as error:
            raise CliError(visible(str(error)), EXIT_UNUSABLE) from None
        yield endpoints


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except ControlFailed as error:
        raise CliError(failure(error), exit_code(error)) from None


def failure(error: ControlFailed) -> str:
    """Why a gateway did not do it, and where to look."""
    text = visible(str(error))
    own = isinstance(error, Declined) and error.error != "fault"
    if own or isinstance(error, NoGateway):
        return text
    log = find_places().gateway_log
    return f"{text}; what the gateway said last is in {visible(str(log))}" if log.exists() else text


def exit_code(error: ControlFailed) -> int:
    """1 for a no of the gateway's, 2 for all that kept it from being asked or understood."""
    refused = isinstance(error, Declined) and error.error == "refused"
    return EXIT_DENIED if refused else EXIT_UNUSABLE


def find_sessions(
    endpoints: Sequence[Endpoint], beginnings: Sequence[str]
) -> list[tuple[str, Endpoint]]:
    """The ids that were typed, whole, and who has them; none is acted on unless all of them are one
    session's."""
    gateway = endpoints[0]
    runs = {each.run.session: each for each in endpoints if each.run}
    known: dict[str, Endpoint] = dict(runs)
    failed: ControlFailed | None = None
    if any(len(each) != ID_LENGTH for each in beginnings):
        try:
            known |= {each.id: gateway for each in gateway.sessions()}
        except NoGateway:
            pass
        except ControlFailed as error:
            failed = error  # a run beside a gateway that cannot be asked is found all the same
    if failed and not all(any(k.startswith(text) for k in known) for text in beginnings):
        raise failed
    # A whole id that no run has is the gateway's to know.
    found = {text: text if len(text) == ID_LENGTH else _find(known, text) for text in beginnings}
    return [(each, known.get(each, gateway)) for each in dict.fromkeys(found.values())]


def _find(known: dict[str, Endpoint], beginning: str) -> str:
    # Of `revoke "$ID"` with nothing in ID, every session would begin so.
    found = sorted(each for each in known if beginning and each.startswith(beginning))
    if len(found) == 1:
        return found[0]
    if not found:
        raise no_such(beginning)
    named = ", ".join(found[:MAX_NAMED]) + (", …" if len(found) > MAX_NAMED else "")
    raise CliError(f"{len(found)} sessions begin with {beginning}: {named}; type more of the id")


def no_such(text: str) -> CliError:
    """An id of nothing."""
    return CliError(f"there is no session '{visible(text)}'; `keyhole ps` lists them")


def for_each(
    endpoints: Sequence[Endpoint],
    beginnings: Sequence[str],
    act: Callable[[Endpoint, str], object],
    done: str,
) -> int:
    """Act on each session, also when it failed for one before; 0 if it was done for all."""
    code = 0
    for session, endpoint in find_sessions(endpoints, beginnings):
        try:
            act(endpoint, session)
        except ControlFailed as error:
            missing = isinstance(error, NoGateway) or (
                isinstance(error, Declined) and error.error == "not-found"
            )
            said = no_such(session) if missing else CliError(failure(error), exit_code(error))
            complain(str(said))
            code = max(code, said.code)
        else:
            print(f"{session} {done}")
    return code


def complain(text: str) -> None:
    """Say what went wrong where the verb goes on."""
    print(f"keyhole: {text}", file=sys.stderr)


def count(number: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
