"""Dialogs of the screen: details of something, and questions whose "no" has the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

CANCEL = "cancel"


class DetailsDialog(ModalScreen[None]):
    """A text that may be longer than the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "close", "Close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._is_done = False

    def compose(self) -> ComposeResult:
        """Title, text, button."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._title, "bold"))
            with VerticalScroll():
                yield Static(self._text)
            yield Button("Close", id=CANCEL)

    def on_button_pressed(self) -> None:
        """Close."""
        self.action_close()

    def action_close(self) -> None:
        """Close, once: further keys may come before it is gone."""
        if not self._is_done:
            self._is_done = True
            self.dismiss()


class QuestionDialog(ModalScreen[str | None]):
    """A question with answers; Enter means no until another answer is chosen.

    Approval fatigue is an attack: a person who presses Enter without reading must lose nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "cancel", "Leave"),
        ("right,down", "app.focus_next", "Next"),
        ("left,up", "app.focus_previous", "Previous"),
    ]

    def __init__(
        self,
        title: str,
        text: Text,
        answers: Sequence[tuple[str, str]],
        no: str = "Cancel",
        escape: str | None = CANCEL,
    ) -> None:
        """`answers` are ids and labels; `no` is the label of the answer that has the focus.
        `escape` is the answer of Escape; None if it leaves the question open."""
        super().__init__()
        self._title = title
        self._text = text
        self._answers = answers
        self._no = no
        self._escape = escape
        self._answered = False

    def compose(self) -> ComposeResult:
        """Title, text, and the buttons: no comes first."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._title, "bold"))
            with VerticalScroll():
                yield Static(self._text)
            with Horizontal(classes="answers"):
                yield Button(self._no, id=CANCEL)
                for name, label in self._answers:
                    yield Button(label, id=name)

    def on_mount(self) -> None:
        """No has the focus."""
        self.query_one(f"#{CANCEL}").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer."""
        self._answer(event.button.id or CANCEL)

    def action_cancel(self) -> None:
        """Leave it."""
        self._answer(self._escape)

    def _answer(self, answer: str | None) -> None:
        """Answer once: further keys may come before the dialog is gone."""
        if not self._answered:
            self._answered = True
            self.dismiss(answer)
