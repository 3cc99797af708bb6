"""`keyhole tools`: lists tools of MCP servers that sandboxes were shown, and accepts changes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.host_paths import find_policy
from keyhole.app.setup.tool_store import ToolStore
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.errors import Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.cli.tables import Cell
    from keyhole.policy.seen_tools import ServiceTools

ACCEPTED, CHANGED, NEW = "accepted", "changed", "new"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_flags(parser)
    actions = parser.add_subparsers(metavar="[list|accept]", dest="action")
    text = "list the tools that were seen, first those that wait to be accepted"
    _add_flags(actions.add_parser("list", help=text, description=text), again=True)
    text = "accept new and changed tools as they are now; takes effect with the next run"
    accept = actions.add_parser("accept", help=text, description=text)
    accept.add_argument("service", metavar="SERVICE", help="as the policy names it")
    accept.add_argument("tools", nargs="*", metavar="TOOL", help="default: all that wait")
    _add_flags(accept, again=True)


def _add_flags(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    # SUPPRESS: an action must not reset what was given before it.
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        default=argparse.SUPPRESS if again else None,
        help="default: keyhole.toml here or above",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """List or accept tools."""
    paths = find_host_paths()
    policy = Path(os.path.realpath(options.policy or find_policy(Path.cwd(), paths.home)))
    store = ToolStore(paths.tools)
    if options.action != "accept":
        return _list(store, policy, options)
    try:
        accepted = store.accept(policy, options.service, options.tools)
    except (Refused, OSError) as error:
        raise CliError(f"{visible(str(error))}; `keyhole tools` lists them") from None
    if options.json:
        print_json([{"id": name, "service": options.service} for name in accepted])
        return EXIT_OK
    for name in accepted:
        print(f"accepted {visible(name)} of {visible(options.service)}")
    return EXIT_OK


def _list(store: ToolStore, policy: Path, options: argparse.Namespace) -> int:
    known = store.read(policy)
    rows = [(service, *row) for service in sorted(known) for row in _states(known[service])]
    if options.json:
        print_json(
            [
                {"id": name, "service": service, "state": state, "digest": digest}
                for service, name, state, digest in rows
            ]
        )
        return EXIT_OK
    show([Grid(_COLUMNS, tuple(map(_row, rows)), _below(rows))])
    return EXIT_OK


def _states(tools: ServiceTools) -> Iterator[tuple[str, str, str]]:
    for name, digest in sorted(tools.waiting.items()):
        yield name, CHANGED if name in tools.accepted else NEW, digest
    for name, digest in sorted(tools.accepted.items()):
        if name not in tools.waiting:
            yield name, ACCEPTED, digest


_COLUMNS = (
    Column("SERVICE"),
    Column("STATE"),
    Column("TOOL", Fit.WRAPPED),
    Column("DIGEST", needs=100),
)


def _row(row: tuple[str, str, str, str]) -> tuple[Cell, ...]:
    service, name, state, digest = row
    return tuple(map(cell, (service, state, name, digest[:12])))


def _below(rows: list[tuple[str, str, str, str]]) -> str:
    if not rows:
        return "no sandbox of this policy has listed tools of an MCP server"
    waits = sorted({service for service, _, state, _ in rows if state != ACCEPTED})
    return "\n".join(
        f"`keyhole tools accept {visible(each)}` when you trust them" for each in waits
    )
