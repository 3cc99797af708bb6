"""The screen, driven by keys, over a control server and a log on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from textual.containers import VerticalScroll
from textual.widgets import Button, DataTable, Static

from keyhole.app.monitor.ask_watch import ANSWERS
from keyhole.app.screen import watch_source
from keyhole.app.screen.watch_app import WatchApp
from keyhole.app.screen.watch_dialogs import DetailsDialog, QuestionDialog
from keyhole.app.screen.watch_rows import ask_details, ask_title
from keyhole.app.screen.watch_source import WatchSource
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.audit.million import refusal, request, write_lines
from tests.rigs.audit.writing import NOON
from tests.rigs.control.fixtures import directory, rig
from tests.rigs.control.rig import ASK, KNOWN
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


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_a_long_question_hides_no_button_and_no_mark_i8(
    paths: HostPaths, size: tuple[int, int]
) -> None:
    """Attack: a path so long that a person answers without seeing which button has the focus."""
    path = "/v1/" + "x" * 990
    ask = replace(ASK, path=path, rule=f"GET {path}")
    answers = [(str(word), label) for word, _, label in ANSWERS]

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        await app.push_screen(QuestionDialog(ask_title(ask), ask_details(ask, "sh"), answers, "No"))
        await _until(pilot, lambda: app.screen.query_one("#cancel").has_focus)
        await pilot.pause()
        dialog = app.screen.query_one(".dialog").region
        buttons = list(app.screen.query(Button))
        assert len(buttons) == 1 + len(ANSWERS)
        for button in buttons:
            assert button.region.height == 3
            assert dialog.contains_region(button.region), button.label
        shown = app.screen.query_one(VerticalScroll)
        assert dialog.contains_region(shown.region)
        assert str(ask_details(ask, "sh")).index(ask.marks[0]) < shown.region.width

    _drive(paths, script, size)


def test_a_long_host_leaves_room_for_what_was_decided_i12(paths: HostPaths) -> None:
    name = f"{'a' * 60}.evil.example"
    write_lines(paths.audit / "1.jsonl", [(NOON + 50, refusal(name))])

    async def script(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "aaaa.evil.example" in _cells(app, "events")[-1]
        columns = list(app.query_one("#events", DataTable).ordered_columns)
        assert sum(each.get_render_width(app.query_one(DataTable)) for each in columns[:-1]) < 64
        await pilot.press("enter")  # the control: details have the whole name
        await _until(pilot, lambda: isinstance(app.screen, DetailsDialog))
        assert name in " ".join(str(each.render()) for each in app.screen.query(Static))

    _drive(paths, script)
