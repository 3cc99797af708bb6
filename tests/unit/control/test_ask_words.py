"""Questions in words: nothing that a person decides about is left out without a sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.monitor.ask_watch import ask_view
from keyhole.app.screen.watch_rows import ask_details
from keyhole.cli.ask_rows import ask_line
from keyhole.control.ask_words import MAX_SHOWN, ask_summary, ask_words, shorten
from tests.rigs.control.rig import ASK

if TYPE_CHECKING:
    from keyhole.control.values import AskView

PUSH = replace(ASK, kind="pushes", method="update", ref="refs/heads/x", path="o/r.git", rule="r")
LONG = "/v1/" + "a" * 400


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replace(ASK, rule=f"GET {LONG}/list"), replace(ASK, rule=f"GET {LONG}/delete")),
        (replace(ASK, rule=f"GET {LONG}b{LONG}"), replace(ASK, rule=f"GET {LONG}c{LONG}")),
        (replace(PUSH, ref=LONG + "1"), replace(PUSH, ref=LONG + "2")),
        (replace(PUSH, path=LONG + "1"), replace(PUSH, path=LONG + "2")),
    ],
)
def test_two_questions_never_read_alike_where_a_person_decides(
    one: AskView, other: AskView
) -> None:
    """I8: texts that differ after 160 characters, or in their middle."""
    assert ask_line(one) != ask_line(other)
    assert ask_view(one)["words"] != ask_view(other)["words"]
    assert ask_details(one, "").plain != ask_details(other, "").plain


def test_a_summary_has_both_ends_and_says_what_it_leaves_out() -> None:
    assert shorten("x" * MAX_SHOWN) == "x" * MAX_SHOWN
    cut = shorten("begin" + "x" * 200 + "end")
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert "… (48 characters more) …" in cut
    first, second = (replace(ASK, rule=f"GET {LONG}/{end}") for end in ("list", "delete"))
    assert ask_summary(first) != ask_summary(second)
    assert ask_words(replace(ASK, kind="hosts")) == "connect to api.example:443"
    assert (
        ask_summary(PUSH) == ask_words(PUSH) == "push (update) refs/heads/x to api.example/o/r.git"
    )


def test_hidden_characters_are_written_out() -> None:
    assert "\u202e" not in ask_words(replace(PUSH, ref="a\u202eb"))


def test_a_path_is_shown_in_the_order_in_which_the_server_reads_it() -> None:
    """Attack: digits and slashes beside letters that are written from right to left change places
    on the screen."""
    asked = replace(ASK, kind="requests", rule="GET /\u05d0/1/2", path="/\u05d0/1/2")
    for words in (ask_words(asked), ask_summary(asked)):
        assert "GET /\\u05d0/1/2" in words
    assert "\u05d0" not in str(ask_view(asked))
    assert "\u05d0" not in ask_details(asked, "x").plain
    assert "\u05d0" not in ask_line(asked)


def test_a_budget_is_asked_about_in_words() -> None:
    budget = replace(ASK, kind="budgets", method="day", path="15 USD of 20 USD", service="model")
    assert ask_words(budget) == "spend more than 15 USD of 20 USD today at model"
