"""What the verbs that ask a gateway share: the gateway, its refusals as errors, ids cut short.

Used by `status`, `ps`, `revoke`, `stop`, `allow`, `reload`, `down` and `secret rotate`.
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

    from keyhole.control.values import SessionView

ID_LENGTH = 12
"""Digits of a whole id; fewer are a beginning, and the gateway is asked whose."""

MAX_NAMED = 5
"""Sessions that are named when a beginning fits several."""


@contextlib.contextmanager
def asking() -> Iterator[Client]:
    """The gateway of this user; what it does not do, or cannot be asked, ends the verb."""
    try:
        yield Client(find_places().runtime)
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


def find_sessions(client: Client, beginnings: Sequence[str]) -> list[str]:
    """The ids that were typed, whole; none is acted on unless all of them are one session's."""
    if all(len(each) == ID_LENGTH for each in beginnings):
        return _once(beginnings)
    sessions = client.sessions()
    return _once([_find(sessions, each) for each in beginnings])


def _find(sessions: Sequence[SessionView], beginning: str) -> str:
    # Of `revoke "$ID"` with nothing in ID, every session would begin so.
    found = [s.id for s in sessions if beginning and s.id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise no_such(beginning)
    named = ", ".join(found[:MAX_NAMED]) + (", …" if len(found) > MAX_NAMED else "")
    raise CliError(f"{len(found)} sessions begin with {beginning}: {named}; type more of the id")


def _once(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def no_such(text: str) -> CliError:
    """An id of nothing."""
    return CliError(f"there is no session '{visible(text)}'; `keyhole ps` lists them")


def for_each(
    client: Client, beginnings: Sequence[str], act: Callable[[str], None], done: str
) -> int:
    """Act on each session, also when it failed for one before; 0 if it was done for all."""
    code = 0
    for session in find_sessions(client, beginnings):
        try:
            act(session)
        except Declined as error:
            missing = error.error == "not-found"
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
