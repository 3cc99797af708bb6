"""`keyhole watch`: shows questions and decisions as they come, and takes answers.

Lines for a terminal, a pipe or a screen reader. While it runs, sandboxes ask about hosts and
requests that no rule names (`approvals.ask`).
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import sys
import time
from typing import TYPE_CHECKING

from keyhole.app.watch.recorded_decisions import RecordedDecisions, take_by_turns
from keyhole.app.watch.watched_gateways import WatchedGateways
from keyhole.cli.ask_rows import ask_line
from keyhole.cli.asks_found import answer_ask
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import failure
from keyhole.cli.paint import json_text
from keyhole.cli.typed_answer import TypedLines, read_answer
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.cli.watch_rows import (
    decision_json,
    decision_line,
    event_json,
    event_line,
    left_out_line,
)
from keyhole.control.ask_words import ask_summary
from keyhole.control.client import ControlFailed
from keyhole.control.open_asks import OpenAsks
from keyhole.control.values import AskStanding, WatchKind
from keyhole.control.watchers import watching
from keyhole.model.errors import KeyholeError, Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.audit.log_line import LogRecord
    from keyhole.control.endpoints import ControlEndpoint
    from keyhole.control.values import AskView, WatchEvent

USAGE = (
    "a ID  once    s ID  this session    f ID 10m  for a time    w ID  always, in the policy    "
    "d ID  no    n ID  never in this session    x ID  no to all of its session    l  list    q  end"
)
NO_SCREEN = (
    "lines only: the full screen needs the Python package textual: pip install 'keyhole[watch]'"
)
LOOK_SECONDS = 0.25
"""Seconds between two looks for runs that have begun, and for decisions."""

MAX_SHOWN = 50
"""Decisions that are shown after one look, more than a person reads; with `--json`, all are."""

MAX_ASKS = 1000
"""Questions that are held: as many as one gateway lists."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plain",
        action="store_true",
        help="print lines instead of a full screen; the default in a pipe",
    )
    parser.add_argument("--asks", action="store_true", help="show questions only, no decisions")
    parser.add_argument(
        "--desktop",
        action="store_true",
        help="show questions as notifications of the desktop instead; `keyhole run` starts this "
        "by itself where there is one",
    )
    parser.add_argument(
        "--until-idle", action="store_true", help="with --desktop: end when no sandbox is left"
    )
    # The descriptor by which a run learns that somebody can answer.
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Show events until the person ends it."""
    if options.desktop:
        from keyhole.cli.desktop_questions import show_on_desktop

        return show_on_desktop(until_idle=options.until_idle, line=options.line)
    plain = options.plain or options.json or options.asks
    if not plain and sys.stdin.isatty() and sys.stdout.isatty():
        code = _show_screen()
        if code is not None:
            return code
    paths = find_host_paths()
    with watching(paths.runtime), contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        decisions = None if options.asks else RecordedDecisions(paths.audit)
        PlainWatch(WatchedGateways(paths.runtime), decisions, as_json=options.json).run()
    return EXIT_OK


def _show_screen() -> int | None:
    """Show the full screen until the person closes it; None if Textual is not installed."""
    try:
        from keyhole.app.screen.watch_app import WatchApp
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        print(f"keyhole: {NO_SCREEN}", file=sys.stderr)
        return None
    from keyhole.app.screen.watch_source import WatchSource

    search_path = environment().get("PATH", "")
    app = WatchApp(WatchSource(find_host_paths(), search_path))
    app.run()
    return app.return_code or EXIT_OK


class PlainWatch:
    """The line mode."""

    def __init__(
        self, gateways: WatchedGateways, decisions: RecordedDecisions | None, *, as_json: bool
    ) -> None:
        """`decisions` is None where only questions are shown."""
        self._gateways = gateways
        self._decisions = decisions
        self._as_json = as_json
        self._asks = OpenAsks(MAX_ASKS)
        self._endpoints: dict[str, ControlEndpoint] = {}
        self._over = False

    def run(self) -> None:
        """Show events and take answers, until `q`, or until the typed lines end in a pipe's case
        and nothing is watched for."""
        if not self._as_json:
            print(f"watching; answers are typed as\n  {USAGE}", flush=True)
        typed = TypedLines(sys.stdin.fileno()) if sys.stdin is not None else None
        with selectors.DefaultSelector() as selector:
            if typed is not None and typed.usable:
                with contextlib.suppress(PermissionError):  # a file cannot be waited for
                    selector.register(typed, selectors.EVENT_READ)
            due = 0.0
            while not self._over:
                if time.monotonic() >= due:
                    self._gateways.look(selector)
                    self._show_decisions()
                    due = time.monotonic() + LOOK_SECONDS
                sys.stdout.flush()
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is typed and typed is not None:
                        if not self._take(typed):
                            selector.unregister(typed)
                    else:
                        self._gateways.read(key.fileobj, selector, self._show)

    # ── shown ─────────────────────────────────────────────────────────────────────────────────────

    def _show(self, event: WatchEvent, endpoint: ControlEndpoint) -> None:
        ask = event.ask
        if event.event is WatchKind.SESSION and event.state == "closed":
            self._asks.close(event.session)
            self._endpoints.pop(event.session, None)
        elif ask is not None and (event.event is WatchKind.ASK or ask.state is AskStanding.LAPSED):
            self._asks.put(ask)
            self._endpoints[ask.session] = endpoint
        elif ask is not None:
            self._asks.remove(ask)
        print(json_text(event_json(event)) if self._as_json else event_line(event), flush=True)

    def _show_decisions(self) -> None:
        """Those that were written since; what takes longer to read than a look is shown later."""
        until = time.monotonic() + LOOK_SECONDS
        found: list[LogRecord] = []
        while self._decisions is not None and (part := self._decisions.look()):
            found += part
            if time.monotonic() > until:
                break
        shown = found if self._as_json else take_by_turns(found, MAX_SHOWN)
        for record in shown:
            print(json_text(decision_json(record)) if self._as_json else decision_line(record))
        if len(shown) < len(found):
            print(left_out_line(len(found) - len(shown)))

    # ── typed ─────────────────────────────────────────────────────────────────────────────────────

    def _take(self, typed: TypedLines) -> bool:
        lines = typed.read()
        for line in lines or ():
            self._answer(line)
        return lines is not None

    def _answer(self, line: str) -> None:
        word, *rest = line.split() or [""]
        if word in ("q", "quit"):
            self._over = True
        elif word in ("l", "list"):
            for ask in self._asks.listed():
                self._say(ask_line(ask))
        elif word:
            try:
                said = read_answer(word, rest)
                ask, endpoint = self._find(rest[0])
                changed = answer_ask(endpoint, ask, said)
            except ControlFailed as failed:
                self._say(f"not done: {failure(failed)}")
            except KeyholeError as refused:
                self._say(f"not done: {visible(str(refused))}")
            else:
                for line in changed:
                    self._say(f"  {line}")
                self._say(f"answered {said.answer}: {ask_summary(ask)}")

    def _find(self, id_: str) -> tuple[AskView, ControlEndpoint]:
        # The whole id: its beginning may be that of a question which the person has not read yet.
        found = [each for each in self._asks.listed() if each.id == id_]
        if len(found) != 1:
            raise Refused(f"{len(found)} questions have the id '{visible(id_)}'; `l` lists them")
        return found[0], self._endpoints[found[0].session]

    def _say(self, text: str) -> None:
        """A line about what was typed; with `--json` it is no event, so it goes elsewhere."""
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)
