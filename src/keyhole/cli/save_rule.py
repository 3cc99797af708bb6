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
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.explained_target import find_fixes, read_target
from keyhole.cli.grants import print_grants
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_saving import PolicyChange


def save_rule(words: list[str], policy: Path | None, *, yes: bool) -> int:
    """Write the narrowest rule that allows the target, once a person agrees."""
    places = find_host_paths()
    catalogue = FileCatalogue()
    target = read_target(words)
    file = read_policy(policy, places, catalogue)
    examined = examine_policy(file, places.home, environment().get("PATH", ""))
    fixes = find_fixes(target, file, places, catalogue)
    additions = [fix.addition for fix in fixes]
    store, search = AcceptanceStore(places.trust), environment().get("PATH", "")
    change = plan_change(examined, additions, store, places, catalogue, search)
    if change.is_empty:
        print(f"{visible(' '.join(words))} is allowed already")
        return EXIT_OK
    if not agree_to(change, yes=yes):
        return EXIT_DENIED
    save(change, places)
    for fix in fixes:
        if fix.remark:
            print(f"  {visible(fix.remark)}")
    return EXIT_OK


def agree_to(change: PolicyChange, *, yes: bool) -> bool:
    """Show the change, and ask; without a terminal only the flag agrees."""
    lines = change.diff()
    for line in lines[:MAX_CHANGED_LINES]:
        colour = {"+": "green", "-": "red"}.get(line[:1], "")
        print(paint(line, colour) if colour else line)
    if len(lines) > MAX_CHANGED_LINES:
        print(f"… and {len(lines) - MAX_CHANGED_LINES} lines more")
    if alarms := change.new_alarms(FileCatalogue()):
        print("it would grant:")
        print_grants(alarms)
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
