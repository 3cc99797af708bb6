"""A secret is known again in the ways in which services write what they echo (I7)."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.placeholder import Shape
from keyhole.inject.renderings import (
    MIN_SCRUBBED,
    UNSEARCHED,
    as_it_is,
    rendered_base64,
    renderings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "ghp_Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX"
AWS = "wJa/rXUtnFEMI+K7MDENG/bPxRfiCYzEXA+PLEKEY"
PASSWORD = "p&ss<w>\"o'r\\d ~ü€=x!* `(,;:@)"
SECRETS = (TOKEN, AWS, PASSWORD)
PLACEHOLDER = Shape.parse("ghp_{alnum:36}").placeholder(bytes(range(72)))


def units(secret: str, characters: str, form: str) -> str:
    return "".join(form.format(ord(c)) if c in characters else c for c in secret)


def escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def as_html(text: str) -> str:
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


ECHOES: dict[str, Callable[[str], bytes]] = {
    "as it is": str.encode,
    "as a header's bytes": lambda s: s.encode("latin-1", "ignore"),
    "base64": lambda s: base64.b64encode(s.encode()),
    "base64 of one byte more": lambda s: base64.b64encode(b"x" + s.encode() + b"y"),
    "base64 of two bytes more": lambda s: base64.b64encode(b"x:" + s.encode() + b"yz"),
    "base64 of a longer text": lambda s: base64.b64encode(f'{{"key":"{s}"}}'.encode()),
    "base64 for addresses": lambda s: base64.urlsafe_b64encode(b"ab?" + s.encode()),
    "hex": lambda s: s.encode().hex().encode(),
    "hex in capitals": lambda s: s.encode().hex().upper().encode(),
    "quote": lambda s: urllib.parse.quote(s).encode(),
    "quote of everything": lambda s: urllib.parse.quote(s, safe="").encode(),
    "urlencode": lambda s: urllib.parse.urlencode({"key": s}).encode(),
    "encodeURIComponent": lambda s: urllib.parse.quote(s, safe="!'()*").encode(),
    "encodeURI": lambda s: urllib.parse.quote(s, safe=";/?:@&=+$,#!'()*").encode(),
    "escaped in lower case": lambda s: "".join(
        c if c.isascii() and (c.isalnum() or c in "-._~") else escaped(c) for c in s
    ).encode(),
    "a form by PHP": lambda s: urllib.parse.quote_plus(s, safe="*").replace("~", "%7E").encode(),
    "every byte escaped": lambda s: "".join(f"%{b:02X}" for b in s.encode()).encode(),
    "every byte escaped in lower case": lambda s: escaped(s).encode(),
    "JSON": lambda s: json.dumps({"key": s}).encode(),
    "JSON beyond ASCII": lambda s: json.dumps({"key": s}, ensure_ascii=False).encode(),
    "JSON with escaped slashes": lambda s: json.dumps(s).replace("/", "\\/").encode(),
    "JSON by Go": lambda s: units(as_json(s), "<>&", "\\u{:04x}").encode(),
    "JSON by Gson": lambda s: units(as_json(s), "<>&='", "\\u{:04x}").encode(),
    "JSON by .NET": lambda s: (
        units(as_json(s.replace('"', "{")), "&'+<>`", "\\u{:04X}").replace("{", "\\u0022").encode()
    ),
    "JSON of units": lambda s: units(s, '"\\/', "\\u{:04x}").encode(),
    "JSON of units in capitals": lambda s: units(s, '"\\/', "\\u{:04X}").encode(),
    "HTML": lambda s: html.escape(s).encode(),
    "HTML text": lambda s: html.escape(s, quote=False).encode(),
    "HTML by Go": lambda s: as_html(s).encode(),
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("way", ECHOES)
def test_an_echo_holds_one_of_the_renderings(way: str, secret: str) -> None:
    """I7, and the control: the same echo of another secret holds none."""
    if way == "as a header's bytes":
        secret = secret.replace("€", "")
    echo = ECHOES[way](secret)
    other = ECHOES[way]("~" + secret[:0:-1])
    assert any(found.needle in echo for found in renderings(secret, PLACEHOLDER))
    assert not any(found.needle in other for found in renderings(secret, PLACEHOLDER))


def test_a_token_that_no_one_escapes_has_few_renderings() -> None:
    """Each is one more search of every byte: plain, three of base64, two of hex, two escaped."""
    assert len(renderings(TOKEN, PLACEHOLDER)) == 8


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=MIN_SCRUBBED, max_size=50))
def test_every_rendering_has_a_stand_in_of_its_length_and_a_part_to_search_for(secret: str) -> None:
    for needle, stand_in, probe in renderings(secret, PLACEHOLDER):
        assert len(stand_in) == len(needle)
        assert probe
        assert probe in needle


def test_a_stand_in_is_the_placeholder_in_the_same_rendering() -> None:
    made = {found.needle: found.stand_in for found in renderings(TOKEN, PLACEHOLDER)}
    assert len(PLACEHOLDER) == len(TOKEN)
    assert made[TOKEN.encode()] == PLACEHOLDER.encode()
    assert made[TOKEN.encode().hex().encode()] == PLACEHOLDER.encode().hex().encode()
    encoded = base64.b64encode(TOKEN.encode())
    needle = next(needle for needle in made if needle and encoded.startswith(needle))
    assert base64.b64encode(PLACEHOLDER.encode()).startswith(made[needle])


@pytest.mark.parametrize(
    ("placeholder", "stand_in"),
    [
        ("abc", "abcabcabcabcabcabcab"),
        ("abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrst"),
        ("", "keyholekeyholekeyhol"),
    ],
)
def test_a_placeholder_of_another_length_is_cut_or_repeated(
    placeholder: str, stand_in: str
) -> None:
    secret = "0123456789-987654321"
    made = {found.needle: found.stand_in for found in renderings(secret, placeholder)}
    assert made[secret.encode()] == stand_in.encode()


def test_a_short_secret_is_not_searched_for() -> None:
    """It would be found in every other page. The control is one character longer."""
    short = "0123456789abcde"
    assert len(short) == MIN_SCRUBBED - 1
    assert renderings(short, PLACEHOLDER) == ()
    assert as_it_is(short, PLACEHOLDER) == ()
    assert rendered_base64("user:", short, PLACEHOLDER)[1] == ()
    assert renderings(short + "f", PLACEHOLDER)
    assert as_it_is(short + "f", PLACEHOLDER)
    assert rendered_base64("user:", short + "f", PLACEHOLDER)[1]


@pytest.mark.parametrize("before", ["", ":", "u:", "me@corp.example:", "ü:"])
def test_the_value_of_basic_is_found_whole(before: str) -> None:
    text, [found] = rendered_base64(before, TOKEN, PLACEHOLDER)
    assert base64.b64decode(text).decode() == before + TOKEN
    assert found.needle == text.encode()
    assert base64.b64decode(found.stand_in).decode() == before + PLACEHOLDER
    assert found.probe in found.needle


@pytest.mark.parametrize("length", [16, 24, 32, 40, 108])
def test_a_search_does_not_know_the_end_of_a_secret(length: int) -> None:
    """I7: how long a search takes tells what is searched for; what it never uses cannot be told."""
    known = length - min(UNSEARCHED, length // 2)
    one = ("Zq81xKc0/Bn5mTy7" * 10)[:length]
    two = one[:known] + ("Pe+o6iX9dU2jRw3L" * 10)[: length - known]
    assert one != two

    def searched(secret: str) -> set[bytes]:
        _, basic = rendered_base64("user:", secret, PLACEHOLDER)
        return {found.probe for found in (*renderings(secret, PLACEHOLDER), *basic)}

    assert searched(one) == searched(two)
    assert searched(one) != searched("X" + one[1:])  # the control


def test_one_search_finds_all_spellings_of_a_secret_with_few_special_characters() -> None:
    spelled = {found.probe for found in renderings(TOKEN[:30] + "/+/" + TOKEN[30:], PLACEHOLDER)}
    plain = {found.probe for found in renderings(TOKEN, PLACEHOLDER)}
    assert len(spelled) == len(plain)
    # The control: without a stretch that is long enough each spelling is searched for.
    assert len({found.probe for found in renderings("a/b+c=" * 8, PLACEHOLDER)}) > len(plain)
