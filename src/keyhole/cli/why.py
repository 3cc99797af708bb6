"""`keyhole why`: prints the decision on a target, its rule and line, and how to allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.explained_target import (
    complete_fix,
    explain_target,
    read_body,
    read_fields,
    read_target,
    saving_command,
)
from keyhole.cli.flags import add_json_flag, add_policy_flag
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint, print_json
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.text import visible
from keyhole.policy.explain import explain
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import RequestTarget

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.parser import Parser
    from keyhole.policy.explain import Explanation
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
    parser.add_argument(
        "-d",
        "--data",
        metavar="BODY",
        help="the request's body: a text, @FILE, or - for standard input; makes it a POST",
    )
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="HEADER",
        help="a header of the request, as in 'X-Amz-Acl: public-read'; may be given more than once",
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
    posts = options.data is not None and options.method == "GET"
    target = read_target(options.target, "POST" if posts else options.method)
    file = read_policy(options.policy, places, FileCatalogue())
    if options.data is None and not options.header:
        found = explain_target(target, file, places)
        if found.fix:
            found = replace(found, fix=complete_fix(target, found.fix, file, places))
    elif isinstance(target, RequestTarget):
        body = None if options.data is None else read_body(options.data)
        fields = read_fields(options.header)
        found = explain(Rulebook(file.loaded.policy), target, fields, body)
    else:
        raise CliError("--data and --header are for a URL")
    if options.json:
        _print_json(subject, found, file.loaded)
    else:
        _print(subject, found, file.loaded)
        if found.fix and options.data is None and not options.header:
            print("  or let Keyhole write it:")
            command = saving_command(options.target, target, options.policy)
            print(f"    {visible(command)}")
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
