"""`keyhole allow TARGET --save`: writes the rule that allows a target into the policy.

Called by `allow.py`. `keyhole learn --save` shows and saves a change by the same functions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_saving import plan_change, save_change
from keyhole.cli.consent import MAX_CHANGED_LINES, ask
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.explained_target import explain_target, read_target
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_saving import PolicyChange
    from keyhole.policy.edit import RuleAddition
    from keyhole.policy.target import Target

MAX_STEPS = 4
"""Rules that one target may need: a service, its repository, its branch, and `force`."""


def save_rule(words: list[str], policy: Path | None, *, yes: bool) -> int:
    """Write the narrowest rule that allows the target, once a person agrees."""
    places = find_host_paths()
    catalogue = FileCatalogue()
    target = read_target(words)
    file = read_policy(policy, places, catalogue)
    examined = examine_policy(file, places.home, environment().get("PATH", ""))
    change, remarks = _change_for(target, examined, places, catalogue)
    if change.is_empty:
        print(f"{visible(' '.join(words))} is allowed already")
        return EXIT_OK
    if not agree_to(change, yes=yes):
        return EXIT_DENIED
    save(change, places)
    for remark in remarks:
        print(f"  {visible(remark)}")
    return EXIT_OK


def _change_for(
    target: Target, before: ExaminedPolicy, places: HostPaths, catalogue: FileCatalogue
) -> tuple[PolicyChange, list[str]]:
    """The change after which the policy allows the target."""
    additions: list[RuleAddition] = []
    remarks: list[str] = []
    store, search = AcceptanceStore(places.trust), environment().get("PATH", "")
    while True:
        change = plan_change(before, additions, store, places, catalogue, search)
        found = explain_target(target, change.after.file, places)
        if found.decision.allowed:
            return change, remarks
        fix = found.fix
        if fix is None or fix.addition in additions or len(additions) == MAX_STEPS:
            raise CliError(
                f"{found.said} ({found.decision.reason}): no rule that could be added allows it"
            )
        additions.append(fix.addition)
        remarks += [fix.remark] if fix.remark else []


def agree_to(change: PolicyChange, *, yes: bool) -> bool:
    """Show the change, and ask; without a terminal only the flag agrees."""
    lines = change.diff()
    for line in lines[:MAX_CHANGED_LINES]:
        colour = {"+": "green", "-": "red"}.get(line[:1], "")
        print(paint(line, colour) if colour else line)
    if len(lines) > MAX_CHANGED_LINES:
        print(f"… and {len(lines) - MAX_CHANGED_LINES} lines more")
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(
            "keyhole: no terminal to ask on, so nothing was written; --yes writes it",
            file=sys.stderr,
        )
        return False
    if ask("write this, and accept the policy with it?"):
        return True
    print("nothing was written")
    return False


def save(change: PolicyChange, places: HostPaths) -> None:
    """Write and accept the change, and say so."""
    save_change(change, AcceptanceStore(places.trust))
    print(f"written to {visible(str(change.after.file.path))}, and accepted on this host")
