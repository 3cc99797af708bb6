"""Finds questions of sandboxes at all gateways of this user, and answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.watch.lasting_rule import save_rule_for
from keyhole.cli.errors import CliError
from keyhole.cli.gateway_client import complain, failure
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.endpoints import ask_all
from keyhole.control.open_asks import by_turns
from keyhole.control.values import AnswerWord
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.control.endpoints import ControlEndpoint
    from keyhole.control.values import AnswerRequest, AskView

LISTED = "`keyhole asks` lists those that wait"


def find_asks(endpoints: Sequence[ControlEndpoint]) -> list[tuple[AskView, ControlEndpoint]]:
    """All questions: those that wait first, and sessions by turns. A gateway that cannot be asked
    hides no other."""
    found: list[AskView] = []
    answering: dict[str, ControlEndpoint] = {}
    for endpoint, said in ask_all(endpoints, lambda each: each.asks()):
        if isinstance(said, NoGateway):
            continue
        if isinstance(said, ControlFailed):
            complain(f"a gateway is not asked: {failure(said)}")
            continue
        found += said
        answering |= {ask.session: endpoint for ask in said}
    return [(ask, answering[ask.session]) for ask in by_turns(found)]


def find_ask(endpoints: Sequence[ControlEndpoint], id_: str) -> tuple[AskView, ControlEndpoint]:
    """The question with this id. Raises CliError unless there is exactly one.

    Attack: the beginning of an id that the person has seen is also that of a newer question, which
    the sandbox asked after the first was gone.
    """
    found = [each for each in find_asks(endpoints) if each[0].id == id_]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError(f"there is no question '{visible(id_)}'; {LISTED}, each with its whole id")
    raise CliError(f"{len(found)} sandboxes have a question {visible(id_)}; answer in a page")


def answer_ask(endpoint: ControlEndpoint, ask: AskView, answer: AnswerRequest) -> list[str]:
    """Give an answer. Returns the lines of the policy that an "always" has changed. Raises
    ControlFailed, and for an "always" what the policy's own functions raise."""
    client = endpoint.client()
    changed: list[str] = []
    if answer.answer is AnswerWord.ALWAYS:
        policy, path = client.session(ask.session).policy, environment().get("PATH", "")
        # The file first: what cannot be written is not allowed either.
        changed = save_rule_for(ask, policy, find_host_paths(), path)
    client.answer(ask.session, ask.id, answer)
    return changed
