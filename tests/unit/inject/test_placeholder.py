"""A placeholder has the shape of the token, carries a mark and authorises nothing (I1)."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.placeholder import ALPHABETS, MARKS, MAX_TOKEN_LENGTH, TokenShape, mark_for
from keyhole.model.errors import Unparsable

NOISE = st.binary(min_size=600, max_size=600)


@pytest.mark.parametrize(
    ("text", "pattern", "mark"),
    [
        ("ghp_{alnum:36}", r"ghp_keyhole[A-Za-z0-9]{29}", "keyhole"),
        ("sk-ant-api03-{b64u:93}AA", r"sk-ant-api03-keyhole[A-Za-z0-9_-]{86}AA", "keyhole"),
        ("AKIA{base32:16}", r"AKIAKEYHOLE[A-Z2-7]{9}", "KEYHOLE"),
        ("sk-or-v1-{hex:64}", r"sk-or-v1-decafbad[0-9a-f]{56}", "decafbad"),
        ("{digit:20}", r"00000000[0-9]{12}", "00000000"),
        ("{lower:20}", r"keyhole[a-z0-9]{13}", "keyhole"),
        ("{upper:20}", r"KEYHOLE[A-Z0-9]{13}", "KEYHOLE"),
        ("ABSK{b64:128}", r"ABSKkeyhole[A-Za-z0-9+/]{121}", "keyhole"),
        # The longest run is marked, and of equals the first.
        ("xoxb-{digit:12}-{alnum:24}", r"xoxb-[0-9]{12}-keyhole[A-Za-z0-9]{17}", "keyhole"),
        ("{b64u:20}T3{b64u:20}", r"keyhole[\w-]{13}T3[\w-]{20}", "keyhole"),
        ("2/{digit:16}:{hex:32}", r"2/[0-9]{16}:decafbad[0-9a-f]{24}", "decafbad"),
    ],
)
@given(noise=NOISE)
def test_a_placeholder_keeps_prefix_length_and_alphabet_and_is_marked(
    text: str, pattern: str, mark: str, noise: bytes
) -> None:
    shape = TokenShape.parse(text)
    made = shape.placeholder(noise)
    assert re.fullmatch(pattern, made, re.ASCII)
    assert shape.pattern().fullmatch(made)
    assert mark in MARKS


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_every_alphabet_can_write_a_mark(alphabet: str) -> None:
    made = TokenShape.parse(f"{{{alphabet}:16}}").placeholder(bytes(range(32)))
    assert made.startswith(mark_for(alphabet))
    assert set(made) <= set(ALPHABETS[alphabet])
    assert len(set(ALPHABETS[alphabet])) == len(ALPHABETS[alphabet])


def noise_of(sandbox: int) -> bytes:
    """Bytes without a pattern, the same in every run of the test."""
    return hashlib.shake_256(str(sandbox).encode()).digest(600)


@pytest.mark.parametrize("text", ["ghp_{alnum:36}", "AKIA{base32:16}", "{hex:16}", "{jwt}"])
def test_no_two_sandboxes_get_the_same_placeholder(text: str) -> None:
    """A placeholder that turns up elsewhere tells whose it was."""
    shape = TokenShape.parse(text)
    made = [shape.placeholder(noise_of(sandbox)) for sandbox in range(500)]
    assert len(set(made)) == len(made)
    assert shape.placeholder(noise_of(7)) == made[7]


def test_no_byte_of_noise_is_used_twice() -> None:
    """Two runs of one shape differ, as two parts of a real token do."""
    shape = TokenShape.parse("{alnum:20}.{alnum:20}.{alnum:20}")
    parts = shape.placeholder(bytes(range(120))).split(".")
    assert len(set(parts)) == 3


@pytest.mark.parametrize(
    ("text", "need"),
    [("ghp_{alnum:36}", 72), ("{b64u:20}T3{b64u:20}", 80), ("{jwt}", 134), ("{jwt}.{hex:4}", 142)],
)
def test_too_little_noise_makes_no_placeholder(text: str, need: int) -> None:
    """A short pool must not be stretched: two sandboxes could then share a placeholder."""
    shape = TokenShape.parse(text)
    assert shape.placeholder(bytes(need))
    for size in (need - 1, need // 2, 0):
        with pytest.raises(ValueError, match=f"more than {size} bytes"):
            shape.placeholder(bytes(size))


def _claims(part: str) -> dict[str, object]:
    read: dict[str, object] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return read


@given(NOISE)
def test_a_json_web_token_is_unsigned_marked_and_does_not_expire(noise: bytes) -> None:
    shape = TokenShape.parse("{jwt}")
    made = shape.placeholder(noise)
    assert shape.pattern().fullmatch(made)
    header, claims, signature = made.split(".")
    assert _claims(header) == {"alg": "none", "typ": "JWT"}
    assert str(_claims(claims)["sub"]).startswith("keyhole-")
    assert _claims(claims)["exp"] == 4102444800  # 2100-01-01
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", signature)


@given(NOISE, st.from_regex(r"ghp_[A-Za-z0-9]{36}", fullmatch=True))
def test_a_real_token_is_never_a_placeholder(noise: bytes, token: str) -> None:
    """Whatever the noise is, it cannot write over the mark, which real tokens do not carry."""
    assert "keyhole" in TokenShape.parse("ghp_{alnum:36}").placeholder(noise)
    if "keyhole" not in token:
        assert TokenShape.parse("ghp_{alnum:36}").placeholder(noise) != token


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least 16"),
        ("ghp_", "at least 16"),
        ("ghp_{alnum:15}", "at least 16"),
        ("{alnum:8}{alnum:8}", "at least 16"),
        ("{alnum}", "{alphabet:count}"),
        ("{alnum:0}", "{alphabet:count}"),
        ("{base64:20}", "{alphabet:count}"),
        ("{jwt:3}", "{alphabet:count}"),
        ("{alnum:99999}", "letters, digits"),
        ("{Alnum:20}", "letters, digits"),
        ("{alnum:20", "letters, digits"),
        ("alnum:20}", "letters, digits"),
        ("{}", "letters, digits"),
        ("{alnum: 20}", "letters, digits"),
        ("{alnum:\u0662\u0660}", "letters, digits"),
        ("a b{alnum:20}", "letters, digits"),
        ("a\n{alnum:20}", "letters, digits"),
        ("{alnum:20}\0", "letters, digits"),
        ("é{alnum:20}", "letters, digits"),
        ("'{alnum:20}", "letters, digits"),
        ("${alnum:20}", "letters, digits"),
        ("{b64:2048}x", "at most"),
        ("{b64:1025}{b64:1024}", "at most"),
    ],
)
def test_a_shape_that_is_none_or_cannot_be_marked_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        TokenShape.parse(text)
    assert why in refusal.value.message


def test_the_longest_token_is_read() -> None:
    """I9: the control of the bound above."""
    assert len(TokenShape.parse("{b64:2048}").placeholder(bytes(4096))) == MAX_TOKEN_LENGTH


@given(st.text("{}:alnumjwthex0123_- ", max_size=24))
def test_any_text_is_a_shape_or_refused(text: str) -> None:
    for typed in (text, f"{text}{{alnum:16}}"):
        try:
            shape = TokenShape.parse(typed)
        except Unparsable:
            continue
        assert shape.text == typed
        assert shape.pattern().fullmatch(shape.placeholder(bytes(40_000)))
