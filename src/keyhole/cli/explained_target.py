"""What a policy says about a target that a person typed, with the presets of this host.

Called by `why.py` and `save_rule.py`.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_file import parse_policy, preset_of, with_presets
from keyhole.cli.errors import CliError
from keyhole.cli.verb_context import environment
from keyhole.model.decision import Reason
from keyhole.model.errors import KeyholeError, Unparsable
from keyhole.model.text import visible
from keyhole.policy.body import MAX_JUDGED
from keyhole.policy.edit import add_rules
from keyhole.policy.explain import Explanation, explain, host_fix, named_by_preset
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import LiteralTarget, RequestTarget, parse_target

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.policy.explain import SuggestedFix
    from keyhole.policy.target import Target

MAX_FIXES = 4
"""Rules that one target may need: a service, its repository, its branch, and `force`."""


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


def read_fields(given: list[str]) -> dict[str, str]:
    """The headers that `--header` names, by names in lower case; several of a name are joined."""
    found: dict[str, str] = {}
    for text in given:
        sent, colon, value = text.partition(":")
        name = sent.strip().lower().replace("_", "-")
        if not colon or not name or not name.isascii():
            raise CliError(f"{visible(text)}: a header is written as 'Name: value'")
        found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return found


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


def find_fixes(
    target: Target, file: PolicyFile, places: HostPaths, catalogue: FileCatalogue
) -> list[SuggestedFix]:
    """The additions after which the policy allows the target; none if it does already.

    Raises CliError if no addition allows it.
    """
    fixes: list[SuggestedFix] = []
    while True:
        found = explain_target(target, file, places)
        fix = found.fix
        if found.decision.allowed:
            return fixes
        if fix is None or fix in fixes or len(fixes) == MAX_FIXES:
            raise CliError(
                f"{found.said} ({found.decision.reason}): no rule that could be added allows it"
            )
        fixes.append(fix)
        data = add_rules(file.data.decode("utf-8"), [fix.addition]).encode("utf-8")
        file = parse_policy(file.path, data, places, catalogue)


def complete_fix(
    target: Target, fix: SuggestedFix, file: PolicyFile, places: HostPaths
) -> SuggestedFix | None:
    """The fix of a service, with what the target needs besides: its repository, its branch.

    None if no addition to the service allows the target. A service that the policy lacks is
    suggested nevertheless: it is the first thing to add.
    """
    if not fix.table.startswith("services."):
        return fix
    try:
        fixes = find_fixes(target, file, places, FileCatalogue())
    except CliError:
        return fix if fix.key == "secret" else None
    except KeyholeError:  # this file can only be edited by hand
        return fix
    return replace(fix, more=tuple(each for each in fixes[1:] if each.table == fix.table))


def saving_command(words: list[str], target: Target, policy: Path | None) -> str:
    """The command that writes what would allow the target, to be pasted."""
    subject = " ".join(words)
    if isinstance(target, RequestTarget) and subject.count(" ") == 0:
        word = target.request.method
        subject = subject if word == "GET" else f"{word} {subject}"
    where = f" --policy {shlex.quote(str(policy))}" if policy else ""
    return f"keyhole allow {shlex.quote(subject)} --save{where}"
