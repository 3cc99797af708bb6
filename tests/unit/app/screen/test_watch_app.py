"""The screen, driven by keys, over a control server and a log on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Button, DataTable, Static

from keyhole.app.screen import watch_source
from keyhole.app.screen.watch_app import WatchApp
from keyhole.app.screen.watch_dialogs import DetailsDialog, QuestionDialog
from keyhole.app.screen.watch_source import WatchSource
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.audit.million import refusal, request, write_lines
from tests.rigs.audit.writing import NOON
from tests.rigs.control.fixtures import directory, rig
from tests.rigs.control.rig import KNOWN
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from textual.pilot import Pilot

    from tests.rigs.control.rig import Rig

__all__ = ["directory", "rig"]

HOSTILE = "[bold]evil[/]\u202e.example"


@pytest.fixture
def paths(rig: Rig, directory: Path, tmp_path: Path) -> HostPaths:
    state = tmp_path / "state"
    events = [(NOON + n, request(f"/item/{n}")) for n in range(30)]
    write_lines(state / "audit/0.jsonl", [*events, (NOON + 40, refusal(HOSTILE))])
    return HostPaths(tmp_path, tmp_path, state, directory)


def _drive(
    paths: HostPaths,
    script: Callable[[WatchApp, Pilot[None]], Coroutine[None, None, None]],
    size: tuple[int, int] = (80, 24),
) -> None:
    async def run() -> None:
        app = WatchApp(WatchSource(paths), pause=3600)
        async with asyncio.timeout(PATIENCE), app.run_test(size=size) as pilot:
            await _until(pilot, lambda: app.query_one("#sessions", DataTable).row_count == 1)
            await _until(pilot, lambda: app.query_one("#events", DataTable).row_count > 0)
            await script(app, pilot)

    asyncio.run(run())


async def _until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    while not holds():
        await pilot.pause(0.01)


def _cells(app: WatchApp, table: str) -> list[str]:
    found: DataTable[object] = app.query_one(f"#{table}", DataTable)
    return [" ".join(map(str, found.get_row_at(row))) for row in range(found.row_count)]


def test_sessions_and_decisions_are_shown_with_hostile_texts_as_text(paths: HostPaths) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        (session,) = _cells(app, "sessions")
        assert KNOWN in session
        assert "claude" in session
        assert "░░░░░░░░░░ 7% requests" in session
        assert "[bold]evil[/]\\u202e.example" in _cells(app, "events")[-1]
        assert app.query_one("#events", DataTable).cursor_row == 30  # the newest

    _drive(paths, script)


def test_details_of_an_event_have_its_rule_and_the_command_that_explains_it(
    paths: HostPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(_: object, session: str, rule: str, __: object) -> str:
        return f"keyhole.toml:7 of {session} {rule}"

    monkeypatch.setattr(watch_source, "find_rule_line", line)  # it has tests of its own

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("up", "enter")
        await _until(pilot, lambda: isinstance(app.screen, DetailsDialog))
        said = " ".join(str(each.render()) for each in app.screen.query(Static))
        assert f"keyhole.toml:7 of {KNOWN} services.api.allow[0]" in said
        assert "keyhole why GET https://api.example/item/29" in said
        await pilot.press("escape")
        await _until(pilot, lambda: not isinstance(app.screen, DetailsDialog))

    _drive(paths, script)


def test_filters_are_a_key_or_typed_and_escape_clears_them(paths: HostPaths) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("d")
        await _until(pilot, lambda: len(_cells(app, "events")) == 1)
        await pilot.press("d", "slash", *"item/2")
        await _until(pilot, lambda: len(_cells(app, "events")) == 11)
        await pilot.press("enter", "up", "escape")
        await _until(pilot, lambda: len(_cells(app, "events")) == 31)

    _drive(paths, script)


def test_the_list_follows_the_log_until_a_person_moves_away(
    paths: HostPaths, tmp_path: Path
) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        table = app.query_one("#events", DataTable)
        write_lines(paths.audit / "1.jsonl", [(NOON + 50, refusal())])
        app.look()
        await _until(pilot, lambda: table.row_count == 32)
        assert table.cursor_row == 31
        await pilot.press("up", "up")
        write_lines(paths.audit / "2.jsonl", [(NOON + 60, refusal())])
        app.look()
        await _until(pilot, lambda: table.row_count == 33)
        assert table.cursor_row == 29

    _drive(paths, script)


def test_revoking_asks_first_and_enter_means_no(paths: HostPaths, rig: Rig) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for keys in (("enter",), ("escape",)):
            await pilot.press("r")
            await _until(pilot, lambda: isinstance(app.screen, QuestionDialog))
            assert isinstance(app.focused, Button)
            assert app.focused.id == "cancel"
            await pilot.press(*keys)
            await _until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        assert not _acts(rig)
        # Control: the same with the other answer.
        for key in ("r", "s"):
            await pilot.press(key)
            await _until(pilot, lambda: isinstance(app.screen, QuestionDialog))
            await pilot.press("right", "enter")
            await _until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        await _until(pilot, lambda: len(_acts(rig)) == 2)
        assert set(_acts(rig)) == {"revoke_session", "stop_session"}

    _drive(paths, script)


def _acts(rig: Rig) -> list[object]:
    return [each[0] for each in rig.gateway.calls if each[0] in ("revoke_session", "stop_session")]


def test_it_works_on_a_small_screen_and_when_it_is_resized(paths: HostPaths) -> None:
    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        for size in ((40, 12), (200, 60), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert app.query_one("#events").size.height >= 3
            assert app.query_one("#sessions").size.height >= 2

    _drive(paths, script, (40, 12))
