"""The screen of `keyhole watch`: sessions above, decisions below, dialogs over both.

A thread looks for what is new; the screen is drawn in the loop. Rows keep their place while a
person has moved away from the newest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from keyhole.app.monitor.ask_watch import ANSWERS
from keyhole.app.monitor.log_view import EventFilter
from keyhole.app.screen.watch_dialogs import CANCEL, DetailsDialog, QuestionDialog
from keyhole.app.screen.watch_rows import (
    ASK_COLUMNS,
    EVENT_COLUMNS,
    SESSION_COLUMNS,
    ask_details,
    ask_row,
    ask_title,
    event_details,
    event_row,
    place,
    session_details,
    session_row,
)
from keyhole.control.values import AnswerRequest, AnswerWord
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from keyhole.app.monitor.session_list import WatchedSession
    from keyhole.app.screen.watch_source import WatchSource, WatchState
    from keyhole.control.values import AskView

LOOK_SECONDS = 0.5
"""Between two looks: a person sees it as at once."""

_ACTS = {
    "revoke": (
        "Revoke",
        "Its connections are cut for good; the sandbox stays.",
    ),
    "stop": ("Stop", "The sandbox and all its programs end."),
    "resume": ("Resume", "Its connections pass again, although a decoy was sent."),
}


class WatchApp(App[None]):
    """One screen, until it is closed."""

    CSS = """
    Screen { layout: vertical; }
    #title { height: 1; background: $primary-darken-2; color: $text; padding: 0 1; }
    #problem { height: auto; color: $text-error; padding: 0 1; display: none; }
    #asks { height: auto; max-height: 30%; display: none; }
    #sessions { height: auto; max-height: 40%; min-height: 3; }
    #decisions-title { height: 1; padding: 0 1; text-style: bold; }
    #events { height: 1fr; min-height: 4; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    ModalScreen { align: center middle; }
    .dialog {
        width: 90%; max-width: 100; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface; overflow-y: auto;
    }
    .dialog VerticalScroll { height: auto; max-height: 50vh; margin: 1 0; }
    QuestionDialog .dialog VerticalScroll { max-height: 35vh; } /* its buttons are never hidden */
    .answers { height: auto; layout: grid; grid-size: 4; grid-rows: 3; grid-gutter: 0 1; }
    .answers Button { width: 100%; min-width: 8; }
    """
    TITLE = "keyhole watch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("tab", "app.focus_next", "Next list"),
        ("a", "answer", "Answer"),
        ("slash", "filter", "Filter"),
        ("d", "denied", "Denied only"),
        ("r", "act('revoke')", "Revoke"),
        ("s", "act('stop')", "Stop"),
        ("u", "act('resume')", "Resume"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, source: WatchSource, pause: float = LOOK_SECONDS) -> None:
        """`pause` is the seconds between two looks."""
        super().__init__()
        self._pause = pause
        self._source = source
        self._wanted = EventFilter()
        self._state: WatchState | None = None
        self._shown: list[int] = []
        self._asks: tuple[AskView, ...] = ()
        self._busy = False

    def compose(self) -> ComposeResult:
        """The widgets, from the top."""
        yield Static(id="title")
        yield Static(id="problem")
        sessions: DataTable[Text] = DataTable(id="sessions", cursor_type="row", zebra_stripes=True)
        events: DataTable[Text] = DataTable(id="events", cursor_type="row")
        asks: DataTable[Text] = DataTable(id="asks", cursor_type="row")
        yield asks
        yield sessions
        yield Static(id="decisions-title")
        yield events
        yield Input(id="filter", placeholder="host, path, reason …; Enter keeps, Escape clears")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self._table("asks").add_columns(*ASK_COLUMNS)
        self._sessions_table().add_columns(*SESSION_COLUMNS)
        self._events_table().add_columns(*EVENT_COLUMNS)
        self._events_table().focus()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the screen was closed at this moment
                loop.call_soon_threadsafe(self.look, context=context)

        self._source.changed = changed
        self._source.open()
        self.look()
        self.set_interval(self._pause, self.look)

    def on_unmount(self) -> None:
        """Be gone."""
        self._source.changed = lambda: None
        self._source.close()

    def _table(self, name: str) -> DataTable[Text]:
        # Not the screen on top, which may be a dialog.
        found: DataTable[Text] = self.screen_stack[0].query_one(f"#{name}", DataTable)
        return found

    def _sessions_table(self) -> DataTable[Text]:
        return self._table("sessions")

    def _events_table(self) -> DataTable[Text]:
        return self._table("events")

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Look for what is new, unless a look is under way."""
        if not self._busy:
            self._busy = True
            self._look_in_thread(self._wanted)

    @work(thread=True)
    def _look_in_thread(self, wanted: EventFilter) -> None:
        try:
            state = self._source.look(wanted)
        finally:
            self._busy = False
        with contextlib.suppress(RuntimeError):  # the screen was closed meanwhile
            self.call_from_thread(self._draw, wanted, state)

    def _draw(self, wanted: EventFilter, state: WatchState) -> None:
        if wanted != self._wanted:
            self.look()  # the filter was changed meanwhile
            return
        self._state = state
        if not self.screen_stack:
            return  # the program ends
        with contextlib.suppress(NoMatches):  # the screen is being closed
            self._draw_all(state)

    def _draw_all(self, state: WatchState) -> None:
        count = len(state.sessions.sessions)
        named = "1 session" if count == 1 else f"{count} sessions"
        waiting = f", {len(state.asks)} waiting for your answer (a)" if state.asks else ""
        self._static("title", f"Keyhole  {named}{waiting}")
        self._draw_asks(state)
        self._static("problem", visible(state.sessions.problem))
        self.screen_stack[0].query_one("#problem").display = bool(state.sessions.problem)
        self._draw_sessions(state)
        self._draw_events(state)

    def _static(self, name: str, text: str) -> None:
        self.screen_stack[0].query_one(f"#{name}", Static).update(Text(text))

    def _draw_asks(self, state: WatchState) -> None:
        table, now = self._table("asks"), time.time()
        table.display = bool(state.asks)
        chosen = self._selected_ask()
        table.clear()
        for ask in state.asks:
            table.add_row(*ask_row(ask, now), key=f"{ask.session} {ask.id}")
        ids = [ask.id for ask in state.asks]
        if chosen is not None and chosen.id in ids:
            table.move_cursor(row=ids.index(chosen.id))
        self._asks = state.asks

    def _draw_sessions(self, state: WatchState) -> None:
        table, now = self._sessions_table(), time.time()
        rows = {each.view.id: session_row(each, now) for each in state.sessions.sessions}
        known = [str(key.value) for key in table.rows]
        if known != list(rows):
            kept = self._selected_session()
            table.clear()
            for key, row in rows.items():
                table.add_row(*row, key=key)
            if kept is not None and kept.view.id in rows:
                table.move_cursor(row=list(rows).index(kept.view.id))
            return
        for key, row in rows.items():
            for column, value in zip(table.columns, row, strict=True):
                if table.get_cell(key, column) != value:
                    table.update_cell(key, column, value)

    def _draw_events(self, state: WatchState) -> None:
        words = [f"Decisions  {state.total}"]
        words += ["denied only"] if self._wanted.verdict else []
        words += [f"with '{visible(self._wanted.text)}'"] if self._wanted.text else []
        self._static("decisions-title", ", ".join(words))
        table = self._events_table()
        numbers = [event["n"] for event in state.events]
        if numbers == self._shown:
            return
        at = table.cursor_row
        follows = not self._shown or at >= len(self._shown) - 1
        kept = self._shown[at] if not follows and at < len(self._shown) else None
        fresh = [n for n in numbers if not self._shown or n > self._shown[-1]]
        if self._shown and numbers[: -len(fresh) or None] == self._shown:
            for event in state.events[-len(fresh) :]:
                table.add_row(*event_row(event))
        else:
            table.clear()
            for event in state.events:
                table.add_row(*event_row(event))
        self._shown = numbers
        if follows:
            table.move_cursor(row=len(numbers) - 1, scroll=True)
        elif kept in numbers:
            table.move_cursor(row=numbers.index(kept), scroll=False)

    # ── keys ──────────────────────────────────────────────────────────────────────────────────

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show all about the row that was chosen with Enter or the mouse."""
        if event.data_table.id == "asks":
            self.action_answer()
            return
        if event.data_table.id == "sessions":
            session = self._selected_session()
            if session is not None:
                title = visible(session.view.label)
                self.push_screen(DetailsDialog(title, session_details(session, time.time())))
            return
        found = self._selected_event()
        if found is not None and self._state is not None and not found.get("gone"):
            title = f"{found['verdict']} {place(found)}"
            line = self._source.rule_line(found, self._state.sessions)
            self.push_screen(DetailsDialog(title, event_details(found, line)))

    def _selected_session(self) -> WatchedSession | None:
        table = self._sessions_table()
        if self._state is None or not table.row_count:
            return None
        keys = [str(key.value) for key in table.rows]
        chosen = keys[min(table.cursor_row, len(keys) - 1)]
        return next((s for s in self._state.sessions.sessions if s.view.id == chosen), None)

    def _selected_event(self) -> dict[str, Any] | None:
        at = self._events_table().cursor_row
        if self._state is None or not 0 <= at < len(self._shown):
            return None
        return next((e for e in self._state.events if e["n"] == self._shown[at]), None)

    def action_denied(self) -> None:
        """Show denied events alone, or all again."""
        verdict = "" if self._wanted.verdict else "deny"
        self._filter(EventFilter(verdict=verdict, text=self._wanted.text))

    def action_filter(self) -> None:
        """Type a text that events must have."""
        typed = self.query_one("#filter", Input)
        typed.add_class("shown")
        typed.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._filter(EventFilter(verdict=self._wanted.verdict, text=event.value[:256]))

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the list."""
        self.query_one("#filter").remove_class("shown")
        self._events_table().focus()

    def key_escape(self) -> None:
        """Clear the filter."""
        typed = self.query_one("#filter", Input)
        typed.value = ""
        typed.remove_class("shown")
        self._filter(EventFilter())
        self._events_table().focus()

    def _filter(self, wanted: EventFilter) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._shown = []
            self._events_table().clear()
            self.look()

    def _selected_ask(self) -> AskView | None:
        at = self._table("asks").cursor_row
        return self._asks[at] if 0 <= at < len(self._asks) else None

    def action_answer(self) -> None:
        """Answer the chosen question."""
        ask = self._selected_ask()
        if ask is None:
            self.notify("nothing waits for your answer")
            return
        sessions = self._state.sessions.sessions if self._state else ()
        label = next((s.view.label for s in sessions if s.view.id == ask.session), "")
        choices = [(str(word), label) for word, _, label in ANSWERS]
        lasts = {str(word): seconds for word, seconds, _ in ANSWERS}

        def answered(answer: str | None) -> None:
            if answer is not None:
                word = AnswerWord.NO if answer == CANCEL else AnswerWord(answer)
                request = AnswerRequest(word, lasts.get(answer, 0), "watch")
                self._do_in_thread(partial(self._source.answer, ask, request))

        text = ask_details(ask, label)
        dialog = QuestionDialog(ask_title(ask), text, choices, "No", escape=None)
        self.push_screen(dialog, answered)

    def action_act(self, act: str) -> None:
        """Revoke, stop or resume the chosen session, after a question."""
        session = self._selected_session()
        if session is None:
            self.notify("no session is open")
            return
        label, text = _ACTS[act]
        title = f"{label} {visible(session.view.label)} ({session.view.id})?"

        def answered(answer: str | None) -> None:
            if answer not in (None, CANCEL):
                self._do_in_thread(partial(self._source.act, session.view.id, act))

        self.push_screen(QuestionDialog(title, Text(text), ((act, label),)), answered)

    @work(thread=True)
    def _do_in_thread(self, act: Callable[[], list[str]]) -> None:
        try:
            changed = act()
        except KeyholeError as error:
            said = visible(str(error))
            self.call_from_thread(self.notify, said, severity="error", markup=False)
        else:
            if changed:
                dialog = DetailsDialog("Written into the policy", Text("\n".join(changed)))
                self.call_from_thread(self.push_screen, dialog)
        self.call_from_thread(self.look)
