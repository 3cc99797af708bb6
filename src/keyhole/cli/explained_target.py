"""What a policy says about a target that a person typed, with the presets of this host.

Called by `why.py` and `save_rule.py`.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from keyhole.app.setup.policy_file import preset_of, with_presets
from keyhole.cli.errors import CliError
from keyhole.cli.verb_context import environment
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.text import visible
from keyhole.policy.body import MAX_JUDGED
from keyhole.policy.explain import Explanation, explain, host_fix, named_by_preset
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import LiteralTarget, RequestTarget, parse_target

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.policy.target import Target


def read_target(words: list[str], method: str = "GET") -> Target:
    """The target that these words name; raises CliError with the right spelling."""
    try:
        return parse_target(tuple(words), method)
    except Unparsable as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise CliError(f"{visible(' '.join(words))}: {visible(error.message + hint)}") from None


def read_body(given: str) -> bytes:
    """The body that `--data` names: a text, `@FILE`, or `-` for standard input."""
    try:
        if given == "-":
            data = sys.stdin.buffer.read(MAX_JUDGED + 1)
        elif given.startswith("@"):
            with open(given[1:], "rb") as file:
                data = file.read(MAX_JUDGED + 1)
        else:
            data = given.encode("utf-8", "surrogateescape")
    except OSError as error:
        raise CliError(f"{visible(given[1:])}: {error.strerror}") from None
    if len(data) > MAX_JUDGED:
        raise CliError(f"a body that is judged has at most {MAX_JUDGED} bytes")
    return data


def explain_target(target: Target, file: PolicyFile, places: HostPaths) -> Explanation:
    """The decision, and what would allow it: the preset that knows a host before the host."""
    found = explain(Rulebook(file.loaded.policy), target)
    if found.decision.reason is Reason.NO_RULE and file.loaded.policy.presets:
        # Package managers are slow to ask, so only if the policy alone has no answer.
        joined = with_presets(file, environment(), places)
        for note in joined.notes:
            print(f"keyhole: {visible(note)}", file=sys.stderr)
        found = explain(Rulebook(joined.policy), target)
    if (
        found.decision.reason is Reason.NO_RULE
        and not isinstance(target, LiteralTarget)
        and found.fix == host_fix(target.host, target.port)
    ):
        name = preset_of(file, environment(), places, target.host, target.port)
        found = named_by_preset(found, name) if name else found
    return found


def saving_command(words: list[str], target: Target, policy: Path | None) -> str:
    """The command that writes what would allow the target, to be pasted."""
    subject = " ".join(words)
    if isinstance(target, RequestTarget) and subject.count(" ") == 0:
        word = target.request.method
        subject = subject if word == "GET" else f"{word} {subject}"
    where = f" --policy {shlex.quote(str(policy))}" if policy else ""
    return f"keyhole allow {shlex.quote(subject)} --save{where}"
