"""A secret is known again in the ways in which services write what they echo (I7)."""

from __future__ import annotations

import base64
import html
import json
import quopri
import urllib.parse
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.placeholder import TokenShape
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
AZURE = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50u+RZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
DASHED = "sk-ant-api03-Q7x_Z-0bKc0vBn5mTy7LwRj2-sUd94hG_fPeAo6iX"
TILDES = "~~~?a~>b~c??d~~e>>f~g??h~~~i>>>j"
"""In base64 it has `+` and `/`, which no text of letters and digits has."""
SECRETS = (TOKEN, AWS, PASSWORD, AZURE, DASHED, TILDES)
PLACEHOLDER = TokenShape.parse("ghp_{alnum:36}").placeholder(bytes(range(72)))


def units(secret: str, characters: str, form: str) -> str:
    return "".join(form.format(ord(c)) if c in characters else c for c in secret)


def escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def as_html(text: str) -> str:
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def entities(text: str, table: dict[str, str]) -> str:
    return "".join(({"&": "&amp;", "<": "&lt;", ">": "&gt;"} | table).get(c, c) for c in text)


def as_javascript_escapes(text: str) -> str:
    made = ""
    for c in text:
        kept = c.isascii() and (c.isalnum() or c in "@*_+-./")
        made += c if kept else f"%{ord(c):02X}" if ord(c) < 256 else f"%u{ord(c):04X}"
    return made


def in_base64(text: str) -> str:
    return base64.b64encode(b"x:" + text.encode()).decode()


def as_twice(text: str) -> str:
    return urllib.parse.quote(urllib.parse.quote(text, safe=""), safe="")


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
    "HTML by Go's templates": lambda s: as_html(s).replace("+", "&#43;").encode(),
    "HTML by Go's templates, unquoted": lambda s: entities(
        s, {'"': "&#34;", "'": "&#39;", "+": "&#43;", "=": "&#61;", "`": "&#96;", " ": "&#32;"}
    ).encode(),
    "HTML by Mustache": lambda s: entities(
        s, {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "`": "&#x60;", "=": "&#x3D;"}
    ).encode(),
    "HTML by Handlebars": lambda s: entities(
        s, {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"}
    ).encode(),
    "HTML by .NET": lambda s: entities(
        s, {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "+": "&#x2B;"}
    ).encode(),
    "a script by Go": lambda s: units(
        s.replace("\\", "\\\\").replace("/", "\\/"), "\"&'+<>`", "\\u{:04x}"
    ).encode(),
    "a script by Django": lambda s: units(s, "\\'\"<>&=-;`", "\\u{:04X}").encode(),
    "a part of a path by Go": lambda s: urllib.parse.quote(s, safe="$&+:=@").encode(),
    "a path by Go": lambda s: urllib.parse.quote(s, safe="$&+,/:;=@").encode(),
    "a part of a path": lambda s: urllib.parse.quote(s, safe="!$&'()*+,;=:@").encode(),
    "escape": lambda s: as_javascript_escapes(s).encode(),
    "escaped twice": lambda s: as_twice(s).encode(),
    "escaped twice in lower case": lambda s: "".join(
        c if c.isascii() and (c.isalnum() or c in "-._~") else escaped(c).replace("%", "%25")
        for c in s
    ).encode(),
    "quoted-printable": lambda s: quopri.encodestring(s.encode()).replace(b"=\n", b""),
    "base64 in JSON by .NET": lambda s: units(in_base64(s), "+", "\\u{:04X}").encode(),
    "base64 in a form": lambda s: urllib.parse.quote(in_base64(s), safe="").encode(),
    "base64 in HTML": lambda s: as_html(in_base64(s)).replace("+", "&#43;").encode(),
    "base64 in HTML by Mustache": lambda s: entities(
        in_base64(s), {"/": "&#x2F;", "=": "&#x3D;"}
    ).encode(),
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


def test_a_dash_is_one_rendering_more() -> None:
    """The one that Django writes in a script; the control has none."""
    assert len(renderings(TOKEN.replace("_", "-"), PLACEHOLDER)) == 9
    assert len(renderings(TOKEN.replace("_", "."), PLACEHOLDER)) == 8


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
    text, [found, *_], _ = rendered_base64(before, TOKEN, PLACEHOLDER)
    assert base64.b64decode(text).decode() == before + TOKEN
    assert found.needle == text.encode()
    assert base64.b64decode(found.stand_in).decode() == before + PLACEHOLDER
    assert found.probe in found.needle


@pytest.mark.parametrize("spell", [r"\u003D", r"\u003d", "%3D", "%3d", "&#61;", "&#x3D;", "=3D"])
def test_the_value_of_basic_is_found_whole_however_its_padding_is_spelled(spell: str) -> None:
    """I7: and by the search for the value itself. The control has no padding."""
    text, made, _ = rendered_base64(":", TOKEN, PLACEHOLDER)
    assert text.endswith("=")
    assert text.replace("=", spell).encode() in {found.needle for found in made}
    assert len({found.probe for found in made}) == 1
    assert all(len(found.needle) == len(found.stand_in) for found in made)
    assert len(rendered_base64("u:", TOKEN, PLACEHOLDER)[1]) == 1


@pytest.mark.parametrize("length", [16, 24, 32, 40, 108])
def test_a_search_does_not_know_the_end_of_a_secret(length: int) -> None:
    """I7: how long a search takes tells what is searched for; what it never uses cannot be told."""
    known = length - min(UNSEARCHED, length // 2)
    one = ("Zq81xKc0/Bn5mTy7" * 10)[:length]
    two = one[:known] + ("Pe+o6iX9dU2jRw3L" * 10)[: length - known]
    assert one != two

    def searched(secret: str) -> set[bytes]:
        _, basic, _ = rendered_base64("user:", secret, PLACEHOLDER)
        return {found.probe for found in (*renderings(secret, PLACEHOLDER), *basic)}

    assert searched(one) == searched(two)
    assert searched(one) != searched("X" + one[1:])  # the control


def test_one_search_finds_all_spellings_of_a_secret_with_few_special_characters() -> None:
    spelled = {found.probe for found in renderings(TOKEN[:30] + "/+/" + TOKEN[30:], PLACEHOLDER)}
    plain = {found.probe for found in renderings(TOKEN, PLACEHOLDER)}
    assert len(spelled) == len(plain)
    assert len({found.probe for found in renderings(AZURE, PLACEHOLDER)}) == len(plain)
    assert len({found.probe for found in renderings(AWS, PLACEHOLDER)}) == len(plain)
    # The control: without a stretch that is long enough each spelling is searched for.
    assert len({found.probe for found in renderings("a/b+c=" * 8, PLACEHOLDER)}) > len(plain)
