"""THREATS.md lists the spellings in which a secret is found, and those in which it is not (I10)."""

from __future__ import annotations

import base64
import html
import json
import quopri
import re
from itertools import cycle
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from keyhole.inject.scrub import Needles
from scripts.make_docs import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = {
    "a token": "sk-ant-api03-Yb3_x9-Q2vKc81mT-y7LwRj2sUd94hGfPeAo6iXzzAA",
    "a password": "pA55+w0rd/with=odd&<chars>'in it\"",
}

SPELLINGS: dict[str, list[Callable[[str], bytes]]] = {}


def spelled(name: str, *ways: Callable[[str], str | bytes]) -> None:
    def in_bytes(way: Callable[[str], str | bytes]) -> Callable[[str], bytes]:
        def encoded(secret: str) -> bytes:
            text = way(secret)
            return text.encode() if isinstance(text, str) else text

        return encoded

    SPELLINGS[name] = [in_bytes(way) for way in ways]


def each(*ways: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(way(c) for way, c in zip(cycle(ways), text, strict=False))


def percent(c: str) -> str:
    return f"%{ord(c):02x}"


def in_json(c: str) -> str:
    return json.dumps(c)[1:-1]


def unit(c: str) -> str:
    return f"\\u{ord(c):04x}"


def capital_unit(c: str) -> str:
    return f"\\u{ord(c):04X}"


def decimal(c: str) -> str:
    return f"&#{ord(c)};"


def hexadecimal(c: str) -> str:
    return f"&#x{ord(c):X};"


def quoted(c: str) -> str:
    return f"={ord(c):02X}"


spelled("as it is", str)
spelled(
    "in percent escapes, as encoders write them (`%2F`)",
    quote,
    lambda s: quote(s, safe=""),
    lambda s: quote(s, safe="!'()*"),
)
spelled(
    "in percent escapes, as encoders write them, and escaped once more (`%252F`)",
    lambda s: quote(quote(s, safe=""), safe=""),
)
spelled("with every byte as a percent escape (`%73%6b`)", each(percent))
spelled(
    "in JSON, as encoders write it (`\\/`, `\\u003c`)",
    json.dumps,
    lambda s: json.dumps(s).replace("/", "\\/"),
    lambda s: json.dumps(s).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
)
spelled(
    "in JSON with every character escaped (`\\u0073\\u006B`)",
    each(unit),
    each(capital_unit),
    each(unit, capital_unit),
)
spelled(
    "in JSON with some characters escaped (`s\\u006b`)",
    each(in_json, unit),
    each(unit, in_json, in_json, in_json, in_json),
)
spelled("in JSON in a string of JSON (`\\\\u0073`)", lambda s: json.dumps(each(unit)(s)))
spelled("in HTML, as encoders write it (`&lt;`, `&#39;`)", html.escape)
spelled(
    "in HTML with every character as an entity (`&#115;&#x6B;`)",
    each(decimal),
    each(hexadecimal),
    each(decimal, hexadecimal),
)
spelled(
    "in HTML with some characters as entities (`s&#107;`)",
    each(html.escape, decimal),
    each(html.escape, html.escape, hexadecimal),
)
spelled(
    "in HTML with leading zeros or without semicolons (`&#0115&#x006b`)",
    each(lambda c: f"&#0{ord(c)}", lambda c: f"&#x00{ord(c):x}"),
    each(lambda c: f"&#{ord(c):05};"),
)
spelled(
    "in HTML, escaped once more (`&amp;#115;`)",
    lambda s: html.escape(each(decimal)(s)),
    lambda s: html.escape(each(hexadecimal)(s)),
)
spelled(
    "in base64 or base64url, with any text before it",
    *(
        lambda s, n=n, code=code: code(b"x" * n + s.encode())
        for n in range(3)
        for code in (base64.b64encode, base64.urlsafe_b64encode)
    ),
)
spelled(
    "in hexadecimal, in one case", lambda s: s.encode().hex(), lambda s: s.encode().hex().upper()
)
spelled(
    "in quoted-printable, on one line",
    lambda s: quopri.encodestring(s.encode()).replace(b"=\n", b""),
)
spelled("with some letters as percent escapes (`%73k`)", each(percent, str))
spelled(
    "with every byte as a percent escape, escaped once more (`%2573%256b`)",
    each(lambda c: f"%25{ord(c):02x}"),
)
spelled("in quoted-printable with every character escaped (`=73=6B`)", each(quoted))
spelled(
    "in quoted-printable, broken into lines",
    lambda s: "=\r\n".join(s[at : at + 10] for at in range(0, len(s), 10)),
)
spelled(
    "in base64, broken into lines",
    lambda s: b"\n".join(re.findall(rb".{1,20}", base64.b64encode(s.encode()))),
)
spelled("in base64 of base64", lambda s: base64.b64encode(base64.b64encode(s.encode())))
spelled("in hexadecimal with separators (`73:6b`)", lambda s: s.encode().hex(":"))
spelled(
    "in escapes of C (`\\x73\\153`)",
    each(lambda c: f"\\x{ord(c):02x}", lambda c: f"\\{ord(c):03o}"),
)
spelled(
    "in UTF-16 that no `Content-Type` names",
    lambda s: s.encode("utf-16-le"),
    lambda s: s.encode("utf-16-be"),
)
spelled("reversed", lambda s: s[::-1])


def table() -> dict[str, bool]:
    text = (ROOT / "docs" / "THREATS.md").read_text("utf-8")
    _, _, rest = text.partition("| a secret written | found |\n|---|---|\n")
    rows = [row.strip("| ") for row in rest.partition("\n\n")[0].splitlines()]
    return {name: found == "yes" for name, _, found in (row.rpartition(" | ") for row in rows)}


@pytest.mark.parametrize("kind", SECRETS)
def test_the_spellings_that_are_found_are_those_that_the_threats_name(kind: str) -> None:
    """I7, I10: each row is tried, those that say no as well."""
    named = table()
    assert set(named) == set(SPELLINGS)
    secret = SECRETS[kind]
    needles = Needles.of(secret, "STAND-IN" * 4)
    for name, ways in SPELLINGS.items():
        for way in ways:
            text = b'{"key": "%b"}\n' % way(secret)
            assert needles.found_in(text) is named[name], (name, text)
            # The control: of another secret nothing is found.
            assert not needles.found_in(b'{"key": "%b"}\n' % way(secret[:-1] + "?"))
