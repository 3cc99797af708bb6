"""Asks a person to agree to a learning run. Called by `run_sandboxed.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.cli.consent import ask
from keyhole.cli.errors import CliError
from keyhole.cli.paint import paint
from keyhole.policy.learning_mode import LearningMode

if TYPE_CHECKING:
    import argparse

_OPEN = """\
This is a LEARNING RUN. Every host that the policy does not name is open to it, at ports 80 and 443,
without a credential and unread by Keyhole. Code in it can send whatever it can read of this project
to anyone. Everything is recorded, and `keyhole learn` makes a policy of it."""
_WITHOUT = (
    "Services get no credential in it, because an open host could carry out what they answer."
)
_WITH = "Services GET THEIR CREDENTIALS in it, and whatever they answer can be sent to anyone."


def agree_to_learning(options: argparse.Namespace) -> LearningMode | None:
    """What the person agrees to; None for a run that does not learn. Raises CliError."""
    with_credentials: bool = options.unsafe_learn_with_credentials
    if not (options.learn or options.unsafe_learn):
        if with_credentials:
            raise CliError("--unsafe-learn-with-credentials is for a run with --learn")
        return None
    words = f"{_OPEN}\n{_WITH if with_credentials else _WITHOUT}"
    print(paint(words, "yellow", stream=sys.stderr), file=sys.stderr)
    if options.unsafe_learn:
        return LearningMode(with_credentials)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError(
            "no terminal to ask on, so nothing was run; --unsafe-learn says yes to all of this"
        )
    if not ask("run the command so?", stream=sys.stderr):
        raise CliError("nothing was run")
    return LearningMode(with_credentials)
