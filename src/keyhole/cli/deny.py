"""`keyhole deny ID`: refuses something that waits for your answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asks_found import answer_ask, find_ask
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import find_gateways
from keyhole.control.ask_words import ask_words
from keyhole.control.values import AnswerRequest, AnswerWord

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of the question, as it is shown")
    lasts = parser.add_mutually_exclusive_group()
    lasts.add_argument(
        "--session", action="store_true", help="do not ask about it again in this session"
    )
    lasts.add_argument(
        "--all", action="store_true", help="refuse all questions of this session, now and later"
    )


def run(options: argparse.Namespace) -> int:
    """Answer with a no, and print what is refused."""
    word = AnswerWord.NEVER if options.session else AnswerWord.NO
    word = AnswerWord.NO_TO_ALL if options.all else word
    with find_gateways() as endpoints:
        ask, endpoint = find_ask(endpoints, options.id)
        answer_ask(endpoint, ask, AnswerRequest(word, via="deny"))
    if options.all:
        print(f"{ask.session} is refused everything that it asks for, from now on")
        return EXIT_OK
    lasts = ", and is not asked about again" if options.session else ""
    print(f"{ask.session} may not {ask_words(ask)}{lasts}")
    return EXIT_OK
