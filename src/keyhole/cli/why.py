"""`keyhole why`: the decision on a target, the rule with its line, and what would allow it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.policyfile import with_presets
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.text import visible
from keyhole.policy.explain import Explanation, explain
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import parse_target

if TYPE_CHECKING:
    import argparse

    from keyhole.policy.load import Loaded


def run(options: argparse.Namespace) -> int:
    """Explain one target."""
    places = find_places()
    subject = " ".join(options.target)
    try:
        target = parse_target(tuple(options.target), options.method)
        file = read_policy(options.policy, places, FileCatalogue())
        found = explain(Rulebook(file.loaded.policy), target)
        if found.decision.reason is Reason.NO_RULE and file.loaded.policy.presets:
            # Asking the package managers takes a moment, so only when the file has no answer.
            joined = with_presets(file, environment(), places.home)
            for note in joined.notes:
                print(f"keyhole: {visible(note)}", file=sys.stderr)
            found = explain(Rulebook(joined.policy), target)
    except Unparsable as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise CliError(f"{visible(subject)}: {visible(error.message + hint)}") from None
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid; `keyhole check` says the same") from None
    if options.json:
        _print_json(subject, found, file.loaded)
    else:
        _print(subject, found, file.loaded)
    return EXIT_OK if found.decision.allowed else EXIT_DENIED


def _print(subject: str, found: Explanation, loaded: Loaded) -> None:
    decision = found.decision
    verdict = paint("allowed", "green") if decision.allowed else paint("denied", "red")
    print(f"{verdict}  {visible(subject)}")
    place = loaded.place(decision.rule)
    rows = [("because", f"{found.said} ({decision.reason})")]
    rows.append(("rule", decision.rule + (f"  {place}" if place else "")))
    if found.service:
        rows.append(("service", found.service))
    if decision.allowed:
        nothing = "nothing" if found.service else None
        injected = ", ".join(found.injected) or nothing
        if injected:
            rows.append(("injected", injected))
    rows += [("but", caveat) for caveat in found.caveats]
    for name, text in rows:
        print(f"  {name.ljust(9)} {visible(text)}")
    if found.fix:
        print("  to allow it, add:")
        for line in str(found.fix).split("\n"):
            print(f"    {visible(line)}")


def _print_json(subject: str, found: Explanation, loaded: Loaded) -> None:
    print_json(
        {
            "id": subject,
            "verdict": found.decision.verdict.name.lower(),
            "reason": found.decision.reason,
            "why": found.said,
            "rule": found.decision.rule,
            "place": loaded.place(found.decision.rule),
            "route": found.route.name.lower(),
            "service": found.service,
            "injected": list(found.injected),
            "caveats": list(found.caveats),
            "fix": str(found.fix) if found.fix else None,
        }
    )
