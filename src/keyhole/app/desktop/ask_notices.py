"""Decides which questions are on the desktop, with which words, and which buttons count.

Used by `desktop_watch.py`, which passes the time. A sandbox chooses what is asked and how often:
few questions are shown at a time, new ones come slowly, the rest is one line with a number, and a
yes counts only after nothing has moved on the screen for a moment (I9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.control.ask_words import ask_words
from keyhole.control.values import AnswerRequest, AnswerWord, AskStanding
from keyhole.model.text import visible
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.control.values import AskView

MOST_SHOWN = 3
"""Questions on the screen at a time, of all sandboxes; they come by turns."""

NEW_PER_SECOND = 1.0
"""Questions that appear, after the first few."""

READ_SECONDS = 0.7
"""A yes within so long after a question appeared or went is not taken, since the person may have
meant another: a new one can come under the cursor in the moment of a click."""

MAX_WORDS = 240
"""Characters of a question that fit into a notification; servers cut longer ones, and a person must
not say yes to what is not shown."""

VIA = "desktop"

_ALLOWING = {"once": AnswerWord.ONCE, "session": AnswerWord.SESSION}
_NO = (("no", "No"),)
_YES_OR_NO = (*_NO, ("once", "Allow once"), ("session", "Allow for this session"))
_NO_TO_ALL = (("no-to-all", "No to all of this sandbox"),)

_MARKUP = {ord(each): f"\\x{ord(each):02x}" for each in "<>&\\"}


class DesktopNotice(Struct, frozen=True):
    """A notification: a title and a body of text, and buttons, each a key and its label."""

    title: str
    body: str
    buttons: tuple[tuple[str, str], ...]


class NoticeScreen(Protocol):
    """Where notifications are shown."""

    def show(self, notice: DesktopNotice, replaced: int = 0) -> int:
        """Show one, in the place of another if that is still shown; its number, or 0."""

    def hide(self, number: int) -> None:
        """Take one off the screen."""


class PressedAnswer(Struct, frozen=True):
    """An answer that a button gave."""

    ask: AskView
    answer: AnswerRequest


class _Shown(Struct):
    ask: AskView
    number: int


class AskNotices:
    """The questions on one screen."""

    def __init__(self, screen: NoticeScreen, now: float) -> None:
        self._screen = screen
        self._shown: list[_Shown] = []
        self._left: set[tuple[str, str]] = set()
        """Questions that the person closed or answered: they are not shown again."""
        self._rest: tuple[AskView, ...] = ()
        self._rest_number = 0
        self._moved = now
        self._rate = TokenBucket.full("desktop", NEW_PER_SECOND, now, MOST_SHOWN)
        self._rest_rate = TokenBucket.full("desktop", NEW_PER_SECOND, now, 1)

    def update(self, asks: Sequence[AskView], now: float) -> None:
        """Show what is asked now; the order of `asks` is that in which they are shown."""
        waiting = {_key(ask): ask for ask in asks if ask.state is AskStanding.PENDING}
        self._left &= waiting.keys()
        for each in list(self._shown):
            if _key(each.ask) not in waiting:
                self._screen.hide(each.number)
                self._shown.remove(each)
                self._moved = now
        shown = {_key(each.ask) for each in self._shown}
        rest = [a for k, a in waiting.items() if k not in shown and k not in self._left]
        while rest and len(self._shown) < MOST_SHOWN and self._rate.take(now).allowed:
            ask = rest.pop(0)
            if number := self._screen.show(question_notice(ask)):
                self._shown.append(_Shown(ask, number))
                self._moved = now
        self._update_rest(tuple(rest), now)

    def _update_rest(self, rest: tuple[AskView, ...], now: float) -> None:
        if not rest:
            self._hide_rest()
        elif rest != self._rest and self._rest_rate.take(now).allowed:
            self._rest = rest
            self._rest_number = self._screen.show(rest_notice(rest), self._rest_number)

    def _hide_rest(self) -> None:
        if self._rest_number:
            self._screen.hide(self._rest_number)
        self._rest, self._rest_number = (), 0

    def pressed(self, number: int, key: str, now: float) -> PressedAnswer | None:
        """A button was pressed. Returns the answer, if it is one: a click on the text (`default`),
        or a key that we did not offer, says nothing."""
        if number and number == self._rest_number:
            return self._refuse_rest(key)
        found = next((each for each in self._shown if each.number == number), None)
        if found is None:
            return None
        word = _ALLOWING.get(key) if is_shown_whole(found.ask) else None
        if word is not None and now - self._moved < READ_SECONDS:
            self._moved = now
            found.number = self._screen.show(question_notice(found.ask, again=True), number)
            return None
        if word is None and key != "no":
            return None
        self._screen.hide(number)  # not every server does
        self._shown.remove(found)
        self._left.add(_key(found.ask))
        self._moved = now
        return PressedAnswer(found.ask, AnswerRequest(word or AnswerWord.NO, via=VIA))

    def _refuse_rest(self, key: str) -> PressedAnswer | None:
        if key != "no-to-all" or not _is_of_one_session(self._rest):
            return None
        refused = self._rest[0]
        self._hide_rest()
        return PressedAnswer(refused, AnswerRequest(AnswerWord.NO_TO_ALL, via=VIA))

    def dismissed(self, number: int, now: float) -> None:
        """A notification was closed, which answers nothing: others may, until the question ends."""
        if number == self._rest_number:
            self._rest_number = 0
        for each in list(self._shown):
            if each.number == number:
                self._shown.remove(each)
                self._left.add(_key(each.ask))
                self._moved = now

    def forget(self) -> None:
        """The screen is gone, and with it everything on it."""
        self._shown, self._rest, self._rest_number = [], (), 0

    def clear(self) -> None:
        """Take everything off the screen."""
        for each in self._shown:
            self._screen.hide(each.number)
        self._hide_rest()
        self.forget()


def question_notice(ask: AskView, *, again: bool = False) -> DesktopNotice:
    """A question. Each line begins with a word of ours (I8)."""
    title = "Keyhole: look again, the screen has just changed" if again else "Keyhole asks"
    if not is_shown_whole(ask):
        body = f"Sandbox {ask.session} asks for something too long to be shown here.\n"
        return DesktopNotice(title, f"{body}`keyhole watch` shows it whole.", _NO)
    lines = [f"Sandbox {ask.session} wants to {plain(ask_words(ask))}."]
    lines += [f"Look twice: {plain(visible(mark))}" for mark in ask.marks]
    return DesktopNotice(title, "\n".join(lines), _YES_OR_NO)


def rest_notice(rest: Sequence[AskView]) -> DesktopNotice:
    """How many questions are not shown."""
    count = f"{len(rest)} more question{'s wait' if len(rest) > 1 else ' waits'}"
    buttons = _NO_TO_ALL if _is_of_one_session(rest) else ()
    sandbox = f" of sandbox {rest[0].session}" if buttons else ""
    body = f"They are all{sandbox}. " if buttons and len(rest) > 1 else ""
    return DesktopNotice(f"Keyhole: {count}", f"{body}`keyhole watch` shows all of them.", buttons)


def is_shown_whole(ask: AskView) -> bool:
    """Whether a notification has room for all that a yes allows."""
    return len(plain(ask_words(ask))) + sum(map(len, ask.marks)) <= MAX_WORDS


def plain(text: str) -> str:
    """A text that is the same to a server with markup and to one without.

    Attack: `<b>`, an image or a link in a path; or a backslash and an n, of which dunst makes a new
    line, so that a text of the sandbox would be first on it.
    """
    return text.translate(_MARKUP)


def _key(ask: AskView) -> tuple[str, str]:
    return ask.session, ask.id


def _is_of_one_session(asks: Sequence[AskView]) -> bool:
    return len({ask.session for ask in asks}) == 1
