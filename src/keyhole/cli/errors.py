"""Turns an error into a message on the terminal and an exit code, for all verbs.

Verbs do not catch errors only to print them: `parser.run_verb` passes them to `report`.
"""

from __future__ import annotations

import sys

from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_REFUSED, EXIT_UNUSABLE
from keyhole.model.errors import SANDBOX_LOST, KeyholeError
from keyhole.model.text import visible


class CliError(KeyholeError):
    """The command line cannot be carried out as typed. `exit_code` wins over the verb's own."""

    reason = "usage"

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_RUNS_A_COMMAND = frozenset({"run", "door", "exec", "attach"})
"""Verbs that end with a command's exit code; an error of Keyhole itself is 125 there."""

_EXIT_CODES = {"gateway-refused": EXIT_DENIED}
"""Exit codes by the reason of an error: 1 if the gateway refused; all others are 2."""

_UNDONE = {
    "run": "nothing was run",
    "exec": "nothing was run",
    "new": "no sandbox was made",
    "start": "nothing was started",
    "up": "no gateway was started",
    "demo": "no sandbox can be made here",
    "log": "the log cannot be read",
    "secret test": "nothing was asked",
    "login": "not logged in",
}
"""The beginning of a message, by verb and action: it says what did not happen."""

_ANY_REASON = ""
_ENDINGS = {
    "run": {"setup-failed": "; `keyhole doctor` says more"},
    "demo": {_ANY_REASON: "; see `keyhole doctor`"},
    "why": {"policy-invalid": "; `keyhole check` says the same"},
    "policy trust": {"policy-invalid": ", so it cannot be accepted"},
}
"""The end of a message, by verb and action, and by the reason of the error."""


def exit_code(error: KeyholeError, verb: str = "") -> int:
    """The exit code of a verb that ends with this error."""
    if isinstance(error, CliError) and error.exit_code is not None:
        return error.exit_code
    return EXIT_REFUSED if verb in _RUNS_A_COMMAND else _EXIT_CODES.get(error.reason, EXIT_UNUSABLE)


def message(error: KeyholeError, verb: str, action: str | None = None) -> str:
    """One line: what did not happen, why, and what to type next."""
    if isinstance(error, CliError):
        return visible(str(error))
    typed = f"{verb} {action}"
    undone = _UNDONE.get(typed) or _UNDONE.get(verb, "")
    if error.reason == SANDBOX_LOST:
        undone = "the run was ended"
    endings = _ENDINGS.get(typed) or _ENDINGS.get(verb, {})
    ending = endings.get(error.reason) or endings.get(_ANY_REASON, "")
    line = f"{undone}: {error.summary}" if undone else error.summary
    return visible(line + ending)


def report(error: KeyholeError, verb: str, action: str | None = None) -> int:
    """Print an error, and return the exit code."""
    for detail in error.details:
        print(detail, file=sys.stderr)
    print(f"keyhole: {message(error, verb, action)}", file=sys.stderr)
    return exit_code(error, verb)
