"""TOML whose keys have a bounded number of parts."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.toml import LONG_KEY, MAX_KEY_PARTS, parse_toml, toml_string

if TYPE_CHECKING:
    from collections.abc import Callable

PIECES = ["a", ".", '"', "'", "\\", "\n", " ", "=", "#", "[", "]", "{", "}"]
MOST = ".".join(["a"] * MAX_KEY_PARTS)


def outcome(parse: Callable[[str], object], text: str) -> object:
    try:
        return parse(text)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    "text",
    [
        f"{MOST} = 1",
        f"[{MOST}]",
        f"x = {{ {MOST} = 1 }}",
        f"x = '{MOST}.a'",
        f'x = "{MOST}.a"',
        f'x = """\n"" {MOST}.a \\""""""',
        f"x = '''\n'' {MOST}.a '''",
        f"# {MOST}.a",
        "x = [" + "1.5, " * 99 + "]",
        'x = ["' + '.a", ".a' * 40 + '"]',
        ". " * 99,
        f'x = "unterminated\n{MOST}.a = 1',
    ],
)
def test_texts_and_comments_may_hold_any_number_of_dots(text: str) -> None:
    """It means what tomllib says, or is no TOML for the reason that tomllib gives."""
    assert outcome(parse_toml, text) == outcome(tomllib.loads, text)


@pytest.mark.parametrize(
    "text",
    [
        f"{MOST}.a = 1",
        f"[{MOST}.a]",
        f"[[{MOST} . a]]",
        f"x = {{ {MOST}.a = 1 }}",
        f"{MOST}\t.\t'a' = 1",
        '"a\\"".' * MAX_KEY_PARTS + "a = 1",
        f"x = {{ k = '''\n\" ''', {MOST}.a = 1, l = '' }}",
        f"x = \"\"\"a\"\"\"\"\ny = '''b'''''\n{MOST}.a = 1",
        f"x = 'don''t'\n# don't\n{MOST}.a = 1",
    ],
)
def test_a_key_with_more_parts_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(ValueError, match=LONG_KEY):
        parse_toml(text)


def test_the_place_is_that_of_the_part_over_the_limit() -> None:
    with pytest.raises(ValueError, match=r"\(at line 2, column 65\)"):
        parse_toml(f"x = 1\n{MOST}.a = 1")


@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_a_text_is_never_taken_for_a_key(pieces: list[str]) -> None:
    """With few parts, nothing is refused that tomllib reads."""
    text = "".join(pieces) + "\n# " + "." * MAX_KEY_PARTS
    if text.count("a") < MAX_KEY_PARTS:
        assert outcome(parse_toml, text) == outcome(tomllib.loads, text)


@given(st.text())
def test_a_quoted_text_is_read_as_itself(text: str) -> None:
    assert parse_toml(f"a = {toml_string(text)}") == {"a": text}


def test_a_control_character_is_escaped() -> None:
    assert toml_string('a"\x7f\n') == '"a\\"\\u007F\\n"'
