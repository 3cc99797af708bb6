"""URLs that another server names: one reading, or none (I4)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Unparsable
from keyhole.model.https_url import MAX_URL, HttpsUrl


@pytest.mark.parametrize(
    ("text", "host", "port", "target", "identity"),
    [
        ("https://a.example", "a.example", 443, "/", "https://a.example"),
        ("https://a.example/", "a.example", 443, "/", "https://a.example"),
        ("https://A.example:8443/x/y", "a.example", 8443, "/x/y", "https://a.example:8443/x/y"),
        ("https://a.example?x=1", "a.example", 443, "/?x=1", "https://a.example/?x=1"),
        ("https://a.example:443/p?q", "a.example", 443, "/p?q", "https://a.example/p?q"),
    ],
)
def test_a_url_has_one_reading(text: str, host: str, port: int, target: str, identity: str) -> None:
    url = HttpsUrl.parse(text)
    assert (url.host.name, url.port, url.target) == (host, port, target)
    assert (url.identity, str(url)) == (identity, text)
    assert url.path == target.partition("?")[0]
    assert url.authority == (host if port == 443 else f"{host}:{port}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a.example/", "not an https URL"),
        ("HTTPS://a.example/", "not an https URL"),
        ("file:///etc/passwd", "not an https URL"),
        ("", "not an https URL"),
        ("https://a.example/#x", "fragment"),
        ("https://u:p@a.example/", "user name or a password"),
        ("https://good.example\\@evil.example/", "characters that no URL has"),
        ("https://a.example/\x1b[2J", "characters that no URL has"),
        ("https://a.example/ b", "characters that no URL has"),
        ("https://a.example/é", "characters that no URL has"),
        ("https://127.0.0.1/", "an IP address"),
        ("https://2130706433/", "an IP address"),
        ("https://[::1]/", "host name"),
        ("https:///x", "missing"),
        ("https://a.example:0/", "a port"),
        ("https://a.example:x/", "a port"),
        ("https://a.example/" + "x" * MAX_URL, "at most"),
    ],
)
def test_a_url_with_two_readings_or_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        HttpsUrl.parse(text)


def test_a_url_covers_what_lies_below_it_in_whole_segments() -> None:
    url = HttpsUrl.parse("https://a.example/mcp")
    for below in ("https://a.example/mcp", "https://a.example/mcp/", "https://a.example/mcp/x?q"):
        assert url.covers(HttpsUrl.parse(below)), below
    for other in ("https://a.example/mcpx", "https://a.example/", "https://b.example/mcp"):
        assert not url.covers(HttpsUrl.parse(other)), other
    assert HttpsUrl.parse("https://a.example").covers(url)
    assert url.beside("/x").text == "https://a.example/x"
