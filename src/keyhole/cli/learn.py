"""`keyhole learn`: proposes the smallest policy that would have allowed what was seen."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from keyhole.app.learning.policy_proposals import (
    LearningGround,
    PolicyProposals,
    fitting,
    propose_for,
)
from keyhole.app.learning.recorded_uses import last_session, read_uses
from keyhole.app.setup.policy_saving import create_policy
from keyhole.audit.log_directory import LogDirectory
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag
from keyhole.cli.log_time import parse_since
from keyhole.cli.paint import notice, paint, print_json
from keyhole.cli.save_rule import agree_to, save
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.app.learning.recorded_uses import RecordedUses
    from keyhole.policy.proposal import Proposal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session",
        nargs="*",
        metavar="SESSION",
        help="sessions to learn from (their first letters do; default: the last learning run)",
    )
    parser.add_argument(
        "--since", metavar="TIME", help="every session since then, as in `keyhole log`"
    )
    parser.add_argument(
        "--save", action="store_true", help="write the lines that you pick, and accept the policy"
    )
    parser.add_argument(
        "--all-known",
        action="store_true",
        help="with --save: pick the lines that the catalogue or a preset knows, without asking",
    )
    parser.add_argument(
        "--take",
        action="append",
        default=[],
        metavar="LINE",
        help="with --save: pick this line, by its id in --json; may be given several times",
    )
    parser.add_argument("--yes", action="store_true", help="with --save: do not ask")
    add_policy_flag(parser)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the proposals; with --save, write those that are picked."""
    if (options.all_known or options.take or options.yes) and not options.save:
        raise CliError("--all-known, --take and --yes are for --save")
    ground = LearningGround.find(options.policy, find_host_paths(), environment())
    seen = _seen(options, ground)
    found = propose_for(ground, seen)
    if options.json and not options.save:
        print_json([_row(each) for each in found.proposals])
        return EXIT_OK
    _print(found, seen)
    if not found.proposals:
        return EXIT_OK
    if not options.save:
        picked = [each for each in found.proposals if each.is_preselected]
        if picked:
            change, _ = fitting(ground, picked)
            print("\nthe policy with the marked lines:")
            print("\n".join(change.diff()))
        print("\n`keyhole learn --save` asks which lines to write")
        return EXIT_OK
    return _save(options, ground, _pick(options, found))


def _seen(options: argparse.Namespace, ground: LearningGround) -> RecordedUses:
    try:
        directory = LogDirectory.open(ground.places.audit)
    except FileNotFoundError:
        raise CliError(
            "there is no log yet: `keyhole run --learn -- CMD` runs a command to learn from"
        ) from None
    since = parse_since(options.since) if options.since else None
    named = tuple(options.session)
    if not named and since is None:
        last = last_session(directory, None)
        named = (last,) if last else ()
    seen = read_uses(directory, since, lambda session: not named or session.startswith(named))
    if named and not seen.sessions:
        raise CliError(f"the log has no session {visible(named[0])}; `keyhole log` lists them")
    return seen


def _row(proposal: Proposal) -> dict[str, object]:
    added = proposal.addition
    return {
        "id": proposal.id,
        "table": ".".join(added.table),
        "key": added.key,
        "value": added.value,
        "count": proposal.count,
        "example": proposal.example,
        "known": proposal.known,
        "concern": proposal.concern or None,
        "preselected": proposal.is_preselected,
    }


def _print(found: PolicyProposals, seen: RecordedUses) -> None:
    sessions = ", ".join(visible(each[:12]) for each in [*seen.sessions][-5:]) or "no session"
    print(f"{seen.events} decisions of {sessions}")
    if not found.proposals:
        print("the policy allows all of it already")
    groups = (
        ("known to the catalogue or a preset", "green", lambda p: p.is_preselected),
        ("not known: look at each", "yellow", lambda p: not p.is_preselected and not p.concern),
        ("set apart: allow it only if you know why", "red", lambda p: bool(p.concern)),
    )
    for title, colour, belongs in groups:
        rows = [(n, p) for n, p in enumerate(found.proposals, 1) if belongs(p)]
        if rows:
            print(paint(f"\n{title}:", colour))
        for number, proposal in rows:
            mark = "[x]" if proposal.is_preselected else "[ ]"
            print(f"  {number:3} {mark} {visible(proposal.id)}")
            said = f"{proposal.evidence}{'; ' if proposal.concern else ''}{proposal.concern}"
            print(paint(f"          {visible(said)}", "dim"))
    if seen.beyond:
        notice(f"{seen.beyond} decisions are left out: too many different ones; name a session")


def _pick(options: argparse.Namespace, found: PolicyProposals) -> list[Proposal]:
    """The lines that the person picks: by flags, or by their numbers."""
    by_id = {each.id: each for each in found.proposals}
    unknown = [line for line in options.take if line not in by_id]
    if unknown:
        raise CliError(f"--take {visible(unknown[0])}: not proposed; --json lists the ids")
    picked = [each for each in found.proposals if options.all_known and each.is_preselected]
    picked += [by_id[line] for line in options.take if by_id[line] not in picked]
    if options.all_known or options.take:
        return picked
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError("no terminal to pick lines on: --all-known, or --take LINE")
    print(
        "\nlines to write, as 1,3-5; Enter for those with [x], none for none: ", end="", flush=True
    )
    return _numbered(sys.stdin.readline(), found)


def _numbered(answer: str, found: PolicyProposals) -> list[Proposal]:
    if not answer:  # the end of input
        return []
    if not answer.strip():
        return [each for each in found.proposals if each.is_preselected]
    if answer.strip() == "none":
        return []
    lines = [str(number) for number in range(1, len(found.proposals) + 1)]
    picked: set[str] = set()
    for part in answer.replace(",", " ").split():
        first, _, last = part.partition("-")
        try:
            between = lines[lines.index(first) : lines.index(last or first) + 1]
        except ValueError:
            between = []
        if not between:
            raise CliError(
                f"'{visible(part)}' is none of the lines 1 to {len(lines)}; nothing was written"
            )
        picked.update(between)
    return [each for line, each in zip(lines, found.proposals, strict=True) if line in picked]


def _save(options: argparse.Namespace, ground: LearningGround, picked: list[Proposal]) -> int:
    if not picked:
        print("nothing was picked, so nothing was written")
        return EXIT_OK
    change, left = fitting(ground, picked)
    for proposal, why in left:
        notice(f"{visible(proposal.id)} is left out: {visible(why)}")
    if change.is_empty:
        print("nothing of it fits, so nothing was written")
        return EXIT_DENIED
    if not agree_to(change, yes=options.yes):
        return EXIT_DENIED
    if os.path.lexists(ground.path):
        save(change, ground.places)
    else:
        create_policy(change, ground.store)
        print(f"written to {visible(str(change.after.file.path))}, and accepted on this host")
    return EXIT_OK
