"""`keyhole replay --policy NEW`: judges what was recorded by another policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.learning.recorded_uses import RecordedUses, read_uses
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_file import with_presets
from keyhole.audit.log_directory import LogDirectory
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag
from keyhole.cli.log_time import parse_since
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import notice, paint, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible
from keyhole.policy.recorded_use import judge_use
from keyhole.policy.rulebook import Rulebook

if TYPE_CHECKING:
    import argparse

    from keyhole.app.learning.recorded_uses import UseCount
    from keyhole.model.decision import Decision
    from keyhole.policy.recorded_use import RecordedUse

MAX_SHOWN = 100
"""Changes that are printed for a person; `--json` has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_policy_flag(parser)
    parser.add_argument("--session", metavar="ID", help="only this session (its first letters do)")
    parser.add_argument("--since", metavar="TIME", help="only later events, as in `keyhole log`")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Return 1 if something that was used would be denied."""
    places = find_host_paths()
    file = read_policy(options.policy, places, FileCatalogue())
    joined = with_presets(file, environment(), places)
    for note in joined.notes:
        notice(visible(note))
    since = parse_since(options.since) if options.since else None
    wanted: str = options.session or ""
    try:
        directory = LogDirectory.open(places.audit)
    except FileNotFoundError:
        raise CliError("there is no log yet: `keyhole run` writes it") from None
    found = read_uses(directory, since, lambda session: session.startswith(wanted))
    book = Rulebook(joined.policy)
    judged = [(use, count, judge_use(book, use)) for use, count in found.uses.items()]
    lost = [each for each in judged if each[1].allowed and not each[2].allowed]
    won = [each for each in judged if each[1].denied and each[2].allowed]
    if options.json:
        print_json(
            [_row("denied", *each) for each in lost] + [_row("allowed", *each) for each in won]
        )
    else:
        _print(found, lost, won, str(file.path))
    return EXIT_DENIED if lost else EXIT_OK


def _row(verdict: str, use: RecordedUse, count: UseCount, decision: Decision) -> dict[str, object]:
    return {
        "id": str(use),
        "would_be": verdict,
        "reason": decision.reason,
        "rule": decision.rule,
        "allowed": count.allowed,
        "denied": count.denied,
        "session": count.session,
        "ts": count.ts,
    }


_Judged = list[tuple["RecordedUse", "UseCount", "Decision"]]


def _print(found: RecordedUses, lost: _Judged, won: _Judged, policy: str) -> None:
    sessions = "1 session" if len(found.sessions) == 1 else f"{len(found.sessions)} sessions"
    print(f"{found.events} decisions of {sessions}, judged by {visible(policy)}:")
    _print_group("used, and would be denied", "red", lost, used=True)
    _print_group("denied, and would be allowed", "yellow", won, used=False)
    if not lost and not won:
        print(paint("nothing would change", "green"))
    if found.beyond:
        notice(f"{found.beyond} decisions are left out: too many different ones; name a --session")


def _print_group(title: str, colour: str, rows: _Judged, *, used: bool) -> None:
    if not rows:
        return
    print(paint(f"{title}:", colour))
    rows.sort(key=lambda each: -(each[1].allowed if used else each[1].denied))
    for use, count, decision in rows[:MAX_SHOWN]:
        times = count.allowed if used else count.denied
        said = decision.rule if decision.allowed else decision.reason
        print(f"  {times}x  {visible(str(use))}  {visible(said)}  ({visible(count.session[:8])})")
    if len(rows) > MAX_SHOWN:
        print(f"  … and {len(rows) - MAX_SHOWN} more")
