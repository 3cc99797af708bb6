"""`keyhole approve ID`: lets something pass that waits for your answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asks_found import answer_ask, find_ask
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import find_gateways
from keyhole.cli.typed_answer import read_duration
from keyhole.control.ask_words import ask_words
from keyhole.control.values import AnswerRequest, AnswerWord
from keyhole.model.quantity import format_duration

if TYPE_CHECKING:
    import argparse

_LASTS = {
    AnswerWord.ONCE: "once",
    AnswerWord.SESSION: "for this session",
    AnswerWord.ALWAYS: "always: the policy has the rule, and is accepted with it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of the question, as it is shown")
    lasts = parser.add_mutually_exclusive_group()
    lasts.add_argument(
        "--for", dest="duration", metavar="TIME", help="allow it for this time, such as 10m"
    )
    lasts.add_argument(
        "--session", action="store_true", help="allow it until the session ends (default: once)"
    )
    lasts.add_argument(
        "--always",
        action="store_true",
        help="write the rule into the policy, and accept the new policy; the current one must be "
        "accepted",
    )


def run(options: argparse.Namespace) -> int:
    """Answer with a yes, and print what it allows."""
    answer = _answer(options)
    with find_gateways() as endpoints:
        ask, endpoint = find_ask(endpoints, options.id)
        changed = answer_ask(endpoint, ask, answer)
    for line in changed:
        print(line)
    lasts = _LASTS.get(answer.answer) or f"for {format_duration(answer.seconds)}"
    print(f"{ask.session} may {ask_words(ask)}, {lasts}")
    return EXIT_OK


def _answer(options: argparse.Namespace) -> AnswerRequest:
    if options.session:
        return AnswerRequest(AnswerWord.SESSION, via="approve")
    if options.always:
        return AnswerRequest(AnswerWord.ALWAYS, via="approve")
    if options.duration is None:
        return AnswerRequest(AnswerWord.ONCE, via="approve")
    return AnswerRequest(AnswerWord.FOR, read_duration(options.duration), "approve")
