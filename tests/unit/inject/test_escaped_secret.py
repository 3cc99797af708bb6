r"""A secret in escapes (`\u0073`, `&#115;`) is found like one that is written as it is (I7)."""

from __future__ import annotations

import copy
import html
import json
import pickle
import zlib
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.encoded_scanner import EncodedScanner
from keyhole.inject.escaped_secret import MARKS, MAX_ESCAPE, EscapedMatch, EscapedSecret, unescape
from keyhole.inject.renderings import UNSEARCHED, searchable
from keyhole.inject.scrub import FEW_SPELLED, HOLD_STEP, LARGE, Needles, Scrubber
from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

PLACEHOLDER = "ghp_STANDIN000000000000000000000000000000"

SECRETS = {
    "a token": "ghp_Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX",
    "a key with dashes": "sk-ant-api03-Yb3_x9-Q2vKc81mT-y7LwRj2sUd94hGfPeAo6iXzzAA",
    "a password": "p+Q/7=x&<y>\"z'\\w#%8;:,.~!aB3$",
    "a short key": "af86d081884c7d65",
}


def as_json(c: str) -> str:
    return f"\\u{ord(c):04x}"


def decimal(c: str) -> str:
    return f"&#{ord(c)};"


def hexadecimal(c: str) -> str:
    return f"&#x{ord(c):x};"


def in_turn(*ways: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(way(c) for way, c in zip(cycle(ways), text, strict=False))


# What stays as it is must be read back as it is: of a password, JSON escapes `"` and `\`.
def plain_in_json(c: str) -> str:
    return json.dumps(c)[1:-1]


def plain_in_html(c: str) -> str:
    return html.escape(c)


WAYS: dict[str, Callable[[str], str]] = {
    "JSON": in_turn(as_json),
    "JSON in capitals": in_turn(lambda c: f"\\u{ord(c):04X}"),
    "JSON, some of it": in_turn(plain_in_json, as_json, plain_in_json),
    "JSON, the last": lambda s: "".join(map(plain_in_json, s[:-1])) + as_json(s[-1]),
    "JSON, the first": lambda s: as_json(s[0]) + "".join(map(plain_in_json, s[1:])),
    "JSON with a slash escaped": lambda s: (
        as_json(s[0]) + "".join(map(plain_in_json, s[1:])).replace("/", "\\/")
    ),
    "JSON in JSON": lambda s: json.dumps(in_turn(as_json)(s))[1:-1],
    "JSON in JSON in JSON": lambda s: json.dumps(json.dumps(in_turn(as_json)(s)))[3:-3],
    "HTML": in_turn(decimal),
    "HTML in hexadecimal": in_turn(hexadecimal),
    "HTML in capitals": in_turn(lambda c: f"&#X{ord(c):X};"),
    "HTML with zeros": in_turn(lambda c: f"&#{ord(c):06};", lambda c: f"&#x{ord(c):04X};"),
    "HTML without semicolons": in_turn(lambda c: f"&#{ord(c)}", lambda c: f"&#x{ord(c):x}"),
    "HTML, some of it": in_turn(decimal, plain_in_html, hexadecimal, plain_in_html),
    "HTML in HTML": lambda s: html.escape(in_turn(decimal, hexadecimal)(s)),
    "both": in_turn(as_json, decimal),
}


def needles(secret: str) -> Needles:
    return Needles.of(secret, PLACEHOLDER)


def another(secret: str) -> str:
    """The same but for its last character."""
    return secret[:-1] + ("1" if secret[-1] != "1" else "2")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_in_escapes_is_replaced_wherever_it_is_cut(name: str, way: str) -> None:
    """I7; and the control: another secret, spelled in the same way, passes as it is."""
    secret, sought = SECRETS[name], needles(SECRETS[name])
    echo, other = (
        b'{"n": 1, "key": "%b"}\n' % WAYS[way](text).encode() for text in (secret, another(secret))
    )
    clean = sought.replace(echo)
    assert clean != echo
    assert len(clean) == len(echo)
    assert clean.startswith(b'{"n": 1, "key": "')
    assert clean.endswith(b'"}\n')
    assert b"\\" not in clean
    assert b"&" not in clean
    assert sought.replace(other) is other
    for cut in range(0, len(echo), 3):
        scrubber = Scrubber(sought)
        out = [scrubber.feed(echo[:cut]), scrubber.feed(echo[cut:]), scrubber.end()]
        assert b"".join(out) == clean
        assert scrubber.hits == 1


@pytest.mark.parametrize("way", WAYS)
def test_it_is_replaced_a_byte_at_a_time_and_in_large_views(way: str) -> None:
    """I7: over every boundary, and where a body is not copied."""
    secret = SECRETS["a token"]
    sought, spelled = needles(secret), WAYS[way](secret).encode()
    scrubber = Scrubber(sought)
    out = b"".join(bytes(scrubber.feed(bytes([byte]))) for byte in b"x" * 700 + spelled + b"y")
    out += scrubber.end()
    assert len(out) == 701 + len(spelled)
    assert spelled[-20:] not in out
    assert out.startswith(b"x" * 700)
    for before in (0, 100, 5000):
        body = b"x " * before + spelled + b" y" * LARGE
        for cut in (2 * before + 1, 2 * before + len(spelled) - 1):
            scrubber = Scrubber(sought)
            first = b" " * LARGE + body[:cut]
            made = [bytes(part) for part in scrubber.pass_on(memoryview(first))]
            made += [bytes(part) for part in scrubber.pass_on(memoryview(body[cut:]))]
            whole = b"".join(made) + scrubber.end()
            assert len(whole) == LARGE + len(body)
            assert spelled not in whole
            assert scrubber.hits == 1


@pytest.mark.parametrize("way", ["JSON", "HTML"])
def test_a_compressed_answer_with_it_is_cut(way: str) -> None:
    """I7, and the control: one with another secret passes."""
    secret = SECRETS["a token"]
    for text, cut in ((secret, True), (another(secret), False)):
        packed = zlib.compress(b"say " + WAYS[way](text).encode() + b"\n")
        scanner = EncodedScanner(needles(secret), b"deflate")
        if cut:
            with pytest.raises(ResponseUnfit) as reflected:
                scanner.feed(packed)
            assert reflected.value.reason is Reason.SECRET_REFLECTED
        else:
            assert scanner.feed(packed) + scanner.end() == packed


def test_the_value_of_basic_is_found_in_escapes() -> None:
    """I7: what is sent is the base64 of user and password."""
    text, sought = Needles.encoded("me@corp.example:", SECRETS["a token"], PLACEHOLDER)
    for way in WAYS:
        echo = b'"Basic %b"' % WAYS[way](text).encode()
        assert sought.found_in(echo), way
        assert not sought.found_in(echo.replace(b"0", b"9").replace(b"1", b"8")), way


def test_secrets_are_found_together_and_one_that_is_added_later() -> None:
    one, two = SECRETS["a token"], SECRETS["a short key"]
    both = needles(one) | needles(two)
    text = " ".join(WAYS["JSON"](secret) for secret in (one, two)).encode()
    assert b"u00" not in both.replace(text)
    assert b"u00" in needles(one).replace(text)
    mine = Needles()
    mine.become((needles(one),))
    assert b"u00" in mine.replace(text)
    mine.become((needles(one), needles(two)))
    assert b"u00" not in mine.replace(text)


@given(st.data())
def test_any_mixture_is_found(data: st.DataObject) -> None:
    """I7: whatever is chosen for each character, around and across."""
    secret = data.draw(st.sampled_from([SECRETS["a token"], SECRETS["a key with dashes"]]))
    ways: list[Callable[[str], str]] = [
        str, as_json, lambda c: f"\\\\u{ord(c):04X}", decimal, hexadecimal,
        lambda c: f"&amp;#{ord(c):05};",
    ]  # fmt: skip
    chosen = data.draw(st.lists(st.sampled_from(ways), min_size=len(secret), max_size=len(secret)))
    spelled = "".join(way(c) for way, c in zip(chosen, secret, strict=True)).encode()
    before, after = data.draw(st.tuples(st.binary(max_size=40), st.binary(max_size=40)))
    text = before + b" " + spelled + b" " + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    scrubber = Scrubber(needles(secret))
    out = b""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        out += scrubber.feed(text[start:end])
    out += scrubber.end()
    assert len(out) == len(text)
    assert spelled not in out
    assert out.startswith(before + b" ")
    assert out.endswith(b" " + after)


@given(st.binary(max_size=400), st.lists(st.sampled_from([*MARKS, b"73", b"\\", b"&"])))
def test_what_holds_no_secret_passes_as_it_is(noise: bytes, marks: list[bytes]) -> None:
    text = noise.join(marks)
    assert needles(SECRETS["a token"]).replace(text) is text


# ── what waits, and what a search knows ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["JSON", "HTML", "HTML, some of it"])
def test_a_right_guess_leaves_as_a_wrong_one_does(way: str) -> None:
    """I7: neither content nor amount of what leaves depends on how much of a guess is right."""
    secret = SECRETS["a token"]
    sought = needles(secret)
    for size in range(1, len(secret), 5):
        wrong = secret[: size - 1] + ("q" if secret[size - 1] != "q" else "r")
        guesses = [WAYS[way](text).encode() for text in (secret[:size], wrong)]
        for cut in range(0, 6 * size, 7):
            outs = []
            for guess in guesses:
                scrubber = Scrubber(sought)
                pieces = [b"x" * 300 + guess[:cut], guess[cut:], b"\n"]
                outs.append([bytes(scrubber.feed(piece)) for piece in pieces])
                assert b"".join(outs[-1]) == b"".join(pieces)
            # An escape may be longer than another: `&#99;` and `&#113;`.
            held = [[len(out) for out in each] for each in outs]
            assert held[0][0] == held[1][0]
            if len(guesses[0]) == len(guesses[1]):
                assert held[0] == held[1]


def test_only_where_there_are_escapes_more_waits() -> None:
    """A long run without any waits as before; with one, as long as a secret in escapes may be."""
    secret = SECRETS["a token"]
    sought = needles(secret)
    reach = -(-len(secret) * MAX_ESCAPE // HOLD_STEP) * HOLD_STEP
    assert sought.reach == reach > sought.hold
    for mark in (b"\\", b"&"):
        scrubber = Scrubber(sought)
        scrubber.feed(b"x" * 5000)
        assert scrubber.held == sought.hold
        # What is gone is gone: no secret began there, since nothing in it was escaped.
        scrubber.feed(mark)
        assert scrubber.held == sought.hold + 1
        scrubber.feed(b"x" * (reach - 10))
        assert scrubber.held == reach
        scrubber.feed(b"x" * 10)
        assert scrubber.held == sought.hold
        scrubber.feed(b"\n")
        assert scrubber.held == 0


def test_a_secret_beyond_ascii_is_not_searched_for_in_mixtures() -> None:
    """Its spellings by encoders are; THREATS.md says so."""
    secret = "pässwörter-sind-zu-lang-und-zu-kurz"
    sought = needles(secret)
    assert sought.reach == sought.hold
    assert sought.found_in(json.dumps(secret).encode())


@pytest.mark.parametrize("length", [16, 24, 31, 32, 40, 108])
def test_a_search_does_not_know_the_end_of_a_secret(length: int) -> None:
    """I7: secrets that differ in their last characters are searched for by the same patterns."""
    guarded = min(UNSEARCHED, length // 2)
    one = ("aB3dE5gH" * 20)[:length]
    two = one[:-guarded] + ("zY9xW7vU" * 20)[:guarded]
    texts = [EscapedSecret(text, searchable(text)) for text in (one, two)]
    assert texts[0].hints == texts[1].hints
    assert texts[0]._anchor == texts[1]._anchor
    assert texts[0]._before == texts[1]._before


def test_it_shows_nothing_of_the_secret() -> None:
    """I1."""
    spelled = EscapedSecret(SECRETS["a token"], searchable(SECRETS["a token"]))
    assert repr(spelled) == "Spelled()"
    for make in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled"):
            make(spelled)


@pytest.mark.parametrize("name", SECRETS)
def test_a_text_that_begins_or_ends_within_the_secret_holds_none(name: str) -> None:
    """A part of a secret passes by rule: to hold it back would tell that it is right (I7)."""
    secret = SECRETS[name]
    spelled = EscapedSecret(secret, searchable(secret))
    text = WAYS["JSON"](secret).encode()
    assert [tuple(found) for found in spelled.find(text)] == [(0, len(text))]
    for size in range(0, len(text), 3):
        assert spelled.find(text[:size]) == []
        assert spelled.find(text[size + 1 :]) == []


def test_the_known_beginning_of_a_token_does_not_make_a_search_slow() -> None:
    """I12: of a JSON Web Token dozens of characters are known; none is searched for by itself."""
    token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX" * 20
    spelled = EscapedSecret(token, searchable(token))
    decoded: list[int] = []

    def decode(data: bytes, at: int, count: int) -> tuple[int, bytes]:
        decoded.append(at)
        return at, b""

    flood = b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.".replace(b"e", b"\\u0065") * 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyhole.inject.escaped_secret._decode", decode)
        assert spelled.find(flood) == []
        assert not decoded
        # The control: what is searched for is looked at.
        assert spelled.find(flood + token.encode()) == []
        assert decoded


# ── many secrets ──────────────────────────────────────────────────────────────────────────────────


def crowd(*secrets: str) -> Needles:
    """These secrets among more than are looked for one by one."""
    found = Needles()
    for secret in (*secrets, *(f"other-{n:02}-Kc81mTy7LwRj2sUd94hG" for n in range(FEW_SPELLED))):
        found |= needles(secret)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_among_many(name: str, way: str) -> None:
    """I7; also right behind the beginning of an escape, which takes it for its own."""
    secret, sought = SECRETS[name], crowd(SECRETS[name])
    for before in (b"", b"&#", b"&#x", b"&amp;#0", b"\\", b"\\u00", b"\\\\\\\\\\"):
        echo = before + WAYS[way](secret).encode()
        assert sought.found_in(echo) == needles(secret).found_in(echo)
    assert sought.found_in(WAYS[way](secret).encode())
    assert not sought.found_in(WAYS[way](another(secret)).encode())


def test_many_secrets_are_not_looked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: a text of escapes costs what it has, and not so much for each secret of a session."""
    asked: list[bytes] = []
    find = EscapedSecret.find

    def seen(self: EscapedSecret, data: bytes) -> list[EscapedMatch]:
        asked.append(data)
        return find(self, data)

    monkeypatch.setattr(EscapedSecret, "find", seen)
    secret = SECRETS["a token"]
    sought, flood = crowd(secret), b"&#0\\u0061&#x61;&#0097;" * 100
    assert not sought.found_in(flood)
    assert asked == []
    assert sought.found_in(flood + WAYS["HTML"](secret).encode())  # the control
    assert len(asked) == 1


@given(
    st.text(st.sampled_from("u0x1357aAfz-_./"), min_size=24, max_size=40),
    st.text(st.sampled_from("&#xamp;\\u013"), max_size=12),
    st.data(),
)
def test_what_is_there_is_not_passed_over(secret: str, before: str, data: st.DataObject) -> None:
    """Whatever stands before it, and however each of its characters is written."""
    ways = (
        as_json,
        decimal,
        hexadecimal,
        str,
        lambda c: f"&#{ord(c)}",
        lambda c: f"&#x00{ord(c):x}",
    )
    written = "".join(data.draw(st.sampled_from(ways))(c) for c in secret)
    one, text = EscapedSecret(secret, searchable(secret)), (before + written).encode()
    assert one.may_be_in(unescape(text)) or not one.find(text)
