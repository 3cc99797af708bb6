"""`keyhole home`: lists and empties the homes and caches that are kept for sandboxes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.host_paths import find_policy
from keyhole.cli.amounts import age, count, moment, size
from keyhole.cli.consent import ask
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import complain
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.homes.home_store import HomeStore

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.tables import Cell
    from keyhole.sandbox.homes.home_store import KeptHome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)
    actions = parser.add_subparsers(metavar="[list|reset]", dest="action")
    text = "list kept homes with their size, the one that was used last first"
    listing = actions.add_parser("list", help=text, description=text)
    add_json_flag(listing)
    text = "remove kept homes with their caches; the next run begins with an empty one"
    reset = actions.add_parser("reset", help=text, description=text)
    reset.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="a project, a policy, or the id or the sandbox's name in the list (default: "
        "keyhole.toml here or above)",
    )
    reset.add_argument("--all", action="store_true", help="those of every project")
    reset.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_json_flag(reset)


def run(options: argparse.Namespace) -> int:
    """List or reset kept homes."""
    store = HomeStore(find_host_paths().homes)
    try:
        return _reset(store, options) if options.action == "reset" else _list(store, options)
    except BrokenPipeError:
        raise  # the reader is gone
    except OSError as error:
        raise CliError(f"kept homes cannot be read or removed: {visible(str(error))}") from None


def _list(store: HomeStore, options: argparse.Namespace) -> int:
    homes = store.list()
    if options.json:
        print_json([_as_json(home) for home in homes])
        return EXIT_OK
    below = "" if homes else "no home is kept"
    show([Grid(_COLUMNS, tuple(_row(home) for home in homes), below)])
    return EXIT_OK


def _reset(store: HomeStore, options: argparse.Namespace) -> int:
    if options.all and options.path:
        raise CliError("name a PATH, or `--all`")
    store.remove_leftovers()
    chosen = _chosen(store, options)
    if chosen and not options.yes:
        _confirm(chosen)
    code = EXIT_OK
    removed = []
    for home in chosen:
        try:
            store.remove(home.id)
        except Refused as error:
            complain(str(error))
            code = EXIT_UNUSABLE
        else:
            removed.append(home)
    if options.json:
        print_json([_as_json(home) for home in removed])
        return code
    for home in removed:
        print(f"removed {home.id}, {size(home.size.bytes)}: {_named(home)}")
    if not chosen:
        print("no home is kept there" if not options.all else "no home is kept")
    return code


def _chosen(store: HomeStore, options: argparse.Namespace) -> list[KeptHome]:
    homes = store.list()
    if options.all:
        return homes
    named = options.path
    if named and (listed := [home for home in homes if named in (home.id, home.key.name)]):
        return listed
    path = Path(named) if named else find_policy(Path.cwd(), find_host_paths().home)
    if named and not os.path.lexists(path):
        raise CliError(
            f"there is no {visible(named)}, and no kept home of that id or name: "
            "`keyhole home list` shows them"
        )
    real = os.path.realpath(path)
    return [home for home in homes if real in (home.key.project, home.key.policy)]


def _confirm(homes: list[KeptHome]) -> None:
    for home in homes:
        print(f"{home.id}, {size(home.size.bytes)}: {_named(home)}", file=sys.stderr)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError("no terminal to ask on; `--yes` removes them without asking")
    what = count(len(homes), "kept home")
    if not ask(f"remove {what} with all history and caches?", stream=sys.stderr):
        raise CliError("nothing was removed")


_COLUMNS = (
    Column("ID"),
    Column("SIZE", right=True),
    Column("USED", right=True),
    Column("PROJECT", Fit.WRAPPED),
    Column("POLICY", Fit.WRAPPED),
)


def _row(home: KeptHome) -> tuple[Cell, ...]:
    used = "now" if home.in_use else age(max(time.time() - home.used, 0))
    amount = size(home.size.bytes) if home.size.whole else f"over {size(home.size.bytes)}"
    key = home.key
    policy = os.path.relpath(key.policy, key.project) if key.project else key.policy
    shown = f"{policy}, sandbox {key.name}" if key.name else policy
    return tuple(map(cell, (home.id, amount, used, key.project, shown)))


def _named(home: KeptHome) -> str:
    of = f" of the sandbox {home.key.name}" if home.key.name else ""
    return visible(f"{home.key.policy}{of}")


def _as_json(home: KeptHome) -> dict[str, Any]:
    return {
        "id": home.id,
        "project": home.key.project,
        "policy": home.key.policy,
        "name": home.key.name or None,
        "bytes": home.size.bytes,
        "used": moment(home.used),
        "in_use": home.in_use,
    }
