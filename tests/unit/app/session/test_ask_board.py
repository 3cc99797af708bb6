"""The questions of all sessions, as those who watch see them."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from keyhole.app.session import ask_board
from keyhole.app.session.ask_board import AskBoard, AskReport
from keyhole.app.session.command_answer import read_command_answer, read_printed_answer
from keyhole.control.client import MAX_ANSWER
from keyhole.control.event_feed import MAX_FEED
from keyhole.control.operation_table import ASK_LIST, MAX_ASKS
from keyhole.control.values import AskStanding, EventQuery
from keyhole.model.errors import Refused
from keyhole.policy.asks import Answer
from tests.rigs.control.rig import ASK, KNOWN

LATER = 2**32
"""An expiry that is never reached."""


def names(board: AskBoard) -> list[str]:
    return [ask.id for ask in board.pending().asks]


def test_questions_come_lapse_and_are_settled() -> None:
    board = AskBoard(lambda: None)
    feed = board.watch(EventQuery(), [(KNOWN, "claude")])
    board.heard(AskReport(ASK, "held"))
    assert names(board) == [ASK.id]
    lapsed = replace(ASK, state=AskStanding.LAPSED, expires=LATER)
    board.heard(AskReport(lapsed, "unanswered"))
    assert board.pending().asks[0].state is AskStanding.LAPSED
    late = board.watch(EventQuery(), [])
    assert late.take(1) == b""  # a lapsed one is listed, and nothing waits for it
    board.heard(AskReport(ASK, "approved", "once", 7, "approve"))
    assert names(board) == []
    board.opened(KNOWN, "x")
    board.closed(KNOWN, "x")
    lines = [json.loads(line) for line in feed.take(1 << 20).splitlines()]
    assert [line["event"] for line in lines] == [
        "session", "ask", "settled", "settled", "session", "session"
    ]  # fmt: skip
    assert (lines[3]["answer"], lines[3]["by"], lines[3]["via"]) == ("once", 7, "approve")


def test_what_a_data_plane_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: one that was taken over gets no more memory."""
    monkeypatch.setattr(ask_board, "MAX_KEPT", 2)
    monkeypatch.setattr(ask_board, "MAX_ASKS", 1)
    board = AskBoard(lambda: None)
    for number in range(5):
        board.heard(AskReport(replace(ASK, id=f"{number:06x}"), "held"))
    shown = board.pending()
    assert (len(shown.asks), shown.more) == (1, 1)
    board.closed(KNOWN, "")
    assert names(board) == []


def test_long_questions_of_one_sandbox_do_not_keep_those_of_another_from_a_list_i12() -> None:
    """A thousand long paths are more than a reader takes at once."""
    board = AskBoard(lambda: None)
    path = "/" + "\U0001f600" * 900
    for number in range(MAX_ASKS):
        long = replace(ASK, id=f"{number:06x}", path=path, rule=f"GET {path}")
        board.heard(AskReport(long, "held"))
    waits = replace(ASK, session="b" * 12, id="ffffff", asked=ASK.asked + 9)
    board.heard(AskReport(waits, "held"))
    shown = board.pending()
    assert waits in shown.asks
    assert len(shown.asks) + shown.more == MAX_ASKS + 1
    assert len(json.dumps(ASK_LIST.write(shown, "asks"))) < MAX_ANSWER
    feed = board.watch(EventQuery(), [])
    assert not feed.over
    assert json.loads(feed.take(MAX_FEED).splitlines()[1])["ask"]["id"] == waits.id
    board.closed(KNOWN, "")
    assert names(board) == [waits.id]


def test_one_sandbox_hides_no_other() -> None:
    """I12: of 200 stale questions of one, and a new one of another, the new one is listed first."""
    board = AskBoard(lambda: None)
    for number in range(200):
        lapsed = replace(ASK, id=f"{number:06x}", state=AskStanding.LAPSED, expires=LATER)
        board.heard(AskReport(lapsed, "unanswered"))
    waits = replace(ASK, session="b" * 12, asked=ASK.asked + 9)
    board.heard(AskReport(waits, "held"))
    assert board.pending().asks[0] == waits
    board.heard(AskReport(replace(lapsed, id="ffffff", expires=0), "unanswered"))
    assert len(names(board)) == 201  # the last one can no longer be answered


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        (b'{"answer": "once"}', Answer.ONCE),
        (b'{"answer": "for", "seconds": 60}', Answer.FOR),
        (b'{"answer": "no-to-all"}', Answer.NO_TO_ALL),
        (b"  \n", None),
        (b"{}", None),
    ],
)
def test_a_command_answers_in_json(printed: bytes, answer: Answer | None) -> None:
    given = read_command_answer("abc123", read_printed_answer(printed))
    assert (given.answer if given else None) == answer


@pytest.mark.parametrize(
    "printed",
    [
        b"yes",
        b"[]",
        b"[" * 100_000,
        b'{"answer": "always"}',
        b'{"answer": 1}',
        b'{"answer": "for"}',
        b'{"answer": "for", "seconds": 1e9}',
        b'{"answer": "once", "seconds": -1}',
    ],
)
def test_any_other_answer_of_a_command_is_none(printed: bytes) -> None:
    """I3: an answer that cannot be read is no yes."""
    with pytest.raises(Refused):
        read_command_answer("abc123", read_printed_answer(printed))
