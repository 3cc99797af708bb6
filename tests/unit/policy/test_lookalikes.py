"""Names that a person may take for another one are marked."""

from __future__ import annotations

import pytest

from keyhole.policy.lookalikes import host_marks, text_marks
from tests.rigs.policies import loaded

KNOWN = loaded(
    '[egress]\nallow = ["example.org", "*.corp.example", "t.co"]\n'
    '[services.own]\nhosts = ["api.paypal.example"]\nallow = ["GET /**"]'
).policy


@pytest.mark.parametrize(
    ("host", "like"),
    [
        ("exampIe.org".lower(), "example.org"),
        ("examp1e.org", "example.org"),
        ("exampel.org", "example.org"),
        ("exmple.org", "example.org"),
        ("exxample.org", "example.org"),
        ("api.paypa1.example", "api.paypal.example"),
        ("api-paypal.example", "api.paypal.example"),
        ("example.org.evil.example", "example.org"),
        ("exarnple.org", "example.org"),
        ("example.org-login.example", "example.org"),
        ("myexample.org", "example.org"),
        ("api.examp1e.org", "example.org"),
        ("deep.down.exmaple.org", "example.org"),
        ("example.org", ""),
        ("sub.example.org", ""),
        ("a.corp.example", ""),
        ("corq.example", "corp.example"),
        ("s.co", ""),
        ("quite.another.example", ""),
        ("something.org", ""),
    ],
)
def test_a_name_that_is_close_to_a_known_one_is_marked(host: str, like: str) -> None:
    assert host_marks(host, KNOWN) == ((f"the name looks like {like}",) if like else ())


def test_letters_of_another_script_are_marked() -> None:
    assert host_marks("xn--exmple-cua.org", KNOWN) == ("the name has letters of another script",)


def test_letters_from_right_to_left_are_marked() -> None:
    assert text_marks("/v1/x", "refs/heads/\u05d0") == (
        "letters that are written from right to left are shown as codes",
    )
    assert text_marks("/v1/x", "") == ()


def test_letters_that_look_like_others_are_marked_in_paths_and_refs() -> None:
    """A Cyrillic letter at the place of an `a`."""
    mark = "it has letters of another script, which may look like others"
    assert text_marks("/v1/x", "refs/heads/m\u0430in") == (mark,)
    assert text_marks("/\u0430dmin", "") == (mark,)
    assert text_marks("/admin", "refs/heads/main") == ()
