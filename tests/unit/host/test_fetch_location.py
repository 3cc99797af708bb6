"""URLs of settings, read into parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.host.fetch_location import FetchLocation
from keyhole.model.errors import Unparsable
from tests.rigs.host.building import PASSWORD


def test_a_url_is_read_into_host_port_and_path() -> None:
    at = FetchLocation.parse("https://Index.Corp.Example/a/simple/")
    assert (at.scheme, str(at.pattern), at.segments) == (
        "https", "index.corp.example", ("a", "simple"),
    )  # fmt: skip
    assert at.url == "https://index.corp.example/a/simple/"


@pytest.mark.parametrize(
    ("text", "pattern", "url"),
    [
        ("http://index.corp.example", "index.corp.example:80", "http://index.corp.example"),
        ("https://index.corp.example:8443/", "index.corp.example:8443", None),
        ("http://index.corp.example:8080/x", "index.corp.example:8080", None),
        ("https://index.corp.example:443/", "index.corp.example", "https://index.corp.example/"),
        ("https://bücher.example/", "xn--bcher-kva.example", "https://xn--bcher-kva.example/"),
    ],
)
def test_a_port_is_the_schemes_unless_given(text: str, pattern: str, url: str | None) -> None:
    at = FetchLocation.parse(text)
    assert str(at.pattern) == pattern
    assert at.url == (url or text)


def test_userinfo_becomes_a_credential_and_leaves_the_url() -> None:
    at = FetchLocation.parse(f"https://me%40corp:{PASSWORD}%2F@index.corp.example/simple")
    assert at.credential is not None
    assert str(at.credential.inject) == "header Authorization: Basic me@corp:{secret}"
    assert at.credential.secret.reveal() == PASSWORD + "/"
    assert at.url == "https://index.corp.example/simple"
    assert PASSWORD not in repr(at)


@pytest.mark.parametrize("userinfo", ["token", "token:", "token:x-oauth-basic"])
def test_a_user_without_a_password_may_be_a_token_and_is_not_used(userinfo: str) -> None:
    at = FetchLocation.parse(f"https://{userinfo}@index.corp.example/")
    assert (at.credential, at.lone_user) == (None, True)
    assert "token" not in repr(at)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://192.0.2.7/simple", "IP address"),
        ("https://[2001:db8::1]/simple", "IP address"),
        ("https://0x7f000001/", "IP address"),
        ("https://*.corp.example/", "wildcard"),
        ("https://index.corp.example./", "trailing dot"),
        ("https:///simple", "missing"),
        ("https://index.corp.example:0/", "port"),
        ("https://index.corp.example:/", "port"),
        ("https://index.corp.example/?token=x", "query"),
        ("https://index.corp.example/#x", "fragment"),
        ("https://me:pa/ss@index.corp.example/", "'@'"),
        ("https://index.corp.example/a b", "spaces"),
        ("https://index.corp.example/a\nb", "control"),
        ("https://index.corp.example\\@evil.example/", "backslash"),
        ("https://index.corp.example/a/../b", "segment"),
        ("https://index.corp.example/a/*", "'*'"),
        ("https://index.corp.example/a%20b", "space"),
        ("https://[broken/", "URL"),
        ("ftp://index.corp.example/", "http"),
        ("index.corp.example", "http"),
        ("${INDEX}", "http"),
        ("", "http"),
    ],
)
def test_what_is_not_the_plain_url_of_a_named_host_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        FetchLocation.parse(text)
    assert FetchLocation.parse("https://index.corp.example/a/b")


@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from(["", ":", "@", "/", "?", "#"]))
def test_neither_parts_nor_refusals_repeat_a_password(user: str, noise: str, sign: str) -> None:
    try:
        at = FetchLocation.parse(f"https://{user}:{PASSWORD}{sign}{noise}@index.corp.example/x")
        said = repr(at) + at.url
    except Unparsable as error:
        said = str(error)
    assert PASSWORD not in said
