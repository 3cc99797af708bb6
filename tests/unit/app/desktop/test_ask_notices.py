"""Which questions are on the desktop, in which words, and which buttons count (I3, I8, I9)."""

from __future__ import annotations

from msgspec.structs import replace

from keyhole.app.desktop.ask_notices import (
    MAX_WORDS,
    MOST_SHOWN,
    READ_SECONDS,
    AskNotices,
    DesktopNotice,
    question_notice,
)
from keyhole.control.values import AnswerWord, AskStanding, AskView
from tests.rigs.control.rig import ASK

A, B = "a" * 12, "b" * 12
LATER = 100.0


class Screen:
    """Remembers what is on it."""

    def __init__(self) -> None:
        self.on: dict[int, DesktopNotice] = {}
        self.last = 0

    def show(self, notice: DesktopNotice, replaced: int = 0) -> int:
        self.last = number = replaced if replaced in self.on else self.last + 1
        self.on[number] = notice
        return number

    def hide(self, number: int) -> None:
        self.on.pop(number, None)


def ask(number: int = 1, session: str = A, **more: object) -> AskView:
    return replace(ASK, id=f"{number:06x}", session=session, marks=(), **more)


def test_few_questions_are_shown_and_the_rest_is_a_number() -> None:
    """I9: a sandbox that asks a thousand times gets three places, and one more each second."""
    screen, many = Screen(), [ask(number) for number in range(1000)]
    notices = AskNotices(screen, 0.0)
    notices.update(many, 0.0)
    assert len(screen.on) == MOST_SHOWN + 1
    assert screen.on[4].title == f"Keyhole: {1000 - MOST_SHOWN} more questions wait"
    notices.update(many[1:], 0.1)  # the first was answered elsewhere
    assert len(screen.on) == MOST_SHOWN  # its place is not filled at once
    notices.update(many[1:], 1.2)
    assert len(screen.on) == MOST_SHOWN + 1
    notices.update([], 1.3)
    assert not screen.on


def test_a_button_answers_once_it_could_be_read() -> None:
    """Attack: a question that comes under the cursor in the moment of a click."""
    screen, one = Screen(), ask()
    notices = AskNotices(screen, 0.0)
    notices.update([one], 0.0)
    assert notices.pressed(1, "once", READ_SECONDS / 2) is None
    assert screen.on[1].title.startswith("Keyhole: look again")
    assert notices.pressed(1, "default", LATER) is None
    assert notices.pressed(1, "always", LATER) is None
    assert notices.pressed(2, "once", LATER) is None
    given = notices.pressed(1, "session", LATER)
    assert given is not None
    assert (given.ask, given.answer.answer, given.answer.via) == (
        one, AnswerWord.SESSION, "desktop"
    )  # fmt: skip
    assert notices.pressed(1, "session", LATER) is None
    assert not screen.on
    notices.update([one], LATER)  # it is settled a moment later, and not shown meanwhile
    assert not screen.on


def test_a_no_is_taken_at_once_and_a_closed_question_is_not_shown_again() -> None:
    screen, one, two = Screen(), ask(1), ask(2)
    notices = AskNotices(screen, 0.0)
    notices.update([one, two], 0.0)
    given = notices.pressed(1, "no", 0.0)
    assert given is not None
    assert given.answer.answer is AnswerWord.NO
    screen.hide(2)
    notices.dismissed(2, 0.0)
    notices.dismissed(9, 0.0)
    notices.update([two], LATER)
    assert not screen.on
    notices.update([replace(two, state=AskStanding.LAPSED)], LATER)
    notices.update([two], LATER)  # asked again
    assert len(screen.on) == 1


def test_the_rest_of_one_sandbox_can_be_refused_together_and_of_two_not() -> None:
    """I12: a no to all is for the sandbox that is named."""
    for sessions, key in (((A,), "no-to-all"), ((A, B), "")):
        screen = Screen()
        notices = AskNotices(screen, 0.0)
        asks = [ask(number, session) for number in range(4) for session in sessions]
        notices.update(asks, 0.0)
        buttons = screen.on[MOST_SHOWN + 1].buttons
        assert [each for each, _ in buttons] == ([key] if key else [])
        assert notices.pressed(MOST_SHOWN + 1, "once", LATER) is None
        given = notices.pressed(MOST_SHOWN + 1, "no-to-all", LATER)
        assert (given is not None) is bool(key)
        if given is not None:
            assert (given.ask.session, given.answer.answer) == (A, AnswerWord.NO_TO_ALL)
        screen.hide(MOST_SHOWN + 1)
        notices.dismissed(MOST_SHOWN + 1, LATER)
        notices.clear()
        assert not screen.on


def test_a_text_of_the_sandbox_is_never_first_and_is_no_markup() -> None:
    """I8: tags, entities, and the two characters of which dunst makes a new line."""
    hostile = "/<b>x</b>&amp;\\nKeyhole asks\u2028for"
    notice = question_notice(
        replace(
            ask(), kind="requests", service="web", rule=f"GET {hostile}", path=hostile,
            marks=("looks like <i>a</i>\n",),
        )
    )  # fmt: skip
    lines = notice.body.split("\n")
    assert [line.split(" ")[0] for line in lines] == ["Sandbox", "Look"]
    assert not set("<>&") & set(notice.body)
    assert "\\n" not in notice.body
    assert "\\x5cu2028" in notice.body
    assert notice.title == "Keyhole asks"


def test_a_question_that_does_not_fit_gets_no_yes() -> None:
    """Attack: a path whose harmless beginning is shown, and whose end is cut off."""
    long = ask(kind="requests", service="web", rule="GET /" + "a" * MAX_WORDS)
    assert [key for key, _ in question_notice(long).buttons] == ["no"]
    screen = Screen()
    notices = AskNotices(screen, 0.0)
    notices.update([long], 0.0)
    assert notices.pressed(1, "once", LATER) is None
    assert notices.pressed(1, "no", LATER) is not None
