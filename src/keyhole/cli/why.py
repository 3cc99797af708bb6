"""`keyhole why`: prints the decision on a target, its rule and line, and how to allow it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_file import preset_of, with_presets
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.text import visible
from keyhole.policy.explain import Explanation, explain, host_fix, named_by_preset
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import LiteralTarget, parse_target

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.parser import Parser
    from keyhole.policy.load import LoadedPolicy


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "target",
        nargs="+",
        metavar="TARGET",
        help="URL, METHOD URL, HOST[:PORT], or: git push URL REF",
    )
    parser.add_argument(
        "-X",
        "--method",
        default="GET",
        help="method as a rule names it: POST, GET+body, WEBSOCKET, GRPC (default: GET)",
    )
    add_policy_flag(parser)
    add_json_flag(parser)
    parser.split = _end_flags_at_git


def _end_flags_at_git(words: list[str], _: argparse.Namespace) -> list[str]:
    """`why git push --force …`: the flags after `git` are git's."""
    if "git" in words and "--" not in words:
        words.insert(words.index("git"), "--")
    return words


def run(options: argparse.Namespace) -> int:
    """Explain one target."""
    places = find_host_paths()
    subject = " ".join(options.target)
    try:
        target = parse_target(tuple(options.target), options.method)
        file = read_policy(options.policy, places, FileCatalogue())
        found = explain(Rulebook(file.loaded.policy), target)
        if found.decision.reason is Reason.NO_RULE and file.loaded.policy.presets:
            # Package managers are slow to ask, so only if the policy alone has no answer.
            joined = with_presets(file, environment(), places.home)
            for note in joined.notes:
                print(f"keyhole: {visible(note)}", file=sys.stderr)
            found = explain(Rulebook(joined.policy), target)
        if (
            found.decision.reason is Reason.NO_RULE
            and not isinstance(target, LiteralTarget)
            and found.fix == host_fix(target.host, target.port)
        ):
            name = preset_of(file, environment(), places.home, target.host, target.port)
            found = named_by_preset(found, name) if name else found
    except Unparsable as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise CliError(f"{visible(subject)}: {visible(error.message + hint)}") from None
    if options.json:
        _print_json(subject, found, file.loaded)
    else:
        _print(subject, found, file.loaded)
    return EXIT_OK if found.decision.allowed else EXIT_DENIED


def _print(subject: str, found: Explanation, loaded: LoadedPolicy) -> None:
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
        where, text = found.fix.into(loaded.document.tree)
        print(f"  to allow it, add to {where}:" if where else "  to allow it, add:")
        for line in text.split("\n"):
            print(f"    {visible(line)}")


def _print_json(subject: str, found: Explanation, loaded: LoadedPolicy) -> None:
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
