"""Heads in the clear: for one host, in one form, and never a switch to another protocol."""

from __future__ import annotations

import pytest

from keyhole.http.plain import PlainRequestReader, field_names
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, RequestUnfit


def read(start: str, *fields: str, host: str = "Host: ok.example") -> tuple[str, str, str | None]:
    head = "\r\n".join((start, host, *fields)).encode("latin-1")
    found = PlainRequestReader("ok.example").parse(head)
    assert found.raw == head
    return found.method, found.path, found.query


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("GET /a?b HTTP/1.1", ("GET", "/a", "b")),
        ("GET http://ok.example/a HTTP/1.1", ("GET", "/a", None)),
        ("GET HTTP://OK.example:80?b HTTP/1.0", ("GET", "/", "b")),
        ("OPTIONS * HTTP/1.1", ("OPTIONS", "*", None)),
        ("OPTIONS * HTTP/1.0", ("OPTIONS", "*", None)),
    ],
)
def test_a_request_for_this_host_is_read(start: str, found: tuple[str, str, str | None]) -> None:
    assert read(start) == found


@pytest.mark.parametrize("host", ["ok.example:80", "OK.example", "OK.Example:80"])
def test_the_host_may_be_spelled_in_other_ways(host: str) -> None:
    assert read("GET / HTTP/1.1", host=f"Host: {host}") == ("GET", "/", None)


@pytest.mark.parametrize(
    "start",
    [
        "GET https://ok.example/ HTTP/1.1",
        "GET http://other.example/ HTTP/1.1",
        "GET http://ok.example:81/ HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET  / HTTP/1.1",
        "CONNECT HTTP/1.1",
        "GET / HTTP/2",
    ],
)
def test_other_targets_are_refused(start: str) -> None:
    with pytest.raises(Malformed):
        read(start)


@pytest.mark.parametrize("host", ["other.example", "sub.ok.example"])
def test_another_host_has_a_reason_of_its_own(host: str) -> None:
    with pytest.raises(RequestUnfit) as caught:
        read("GET / HTTP/1.1", host=f"Host: {host}")
    assert caught.value.reason is Reason.HOST_MISMATCH


@pytest.mark.parametrize("host", ["ok.example:443", "ok.example:", "\xe9", "-", "ok.example:080"])
def test_a_host_that_is_none_is_malformed(host: str) -> None:
    with pytest.raises(Malformed):
        read("GET / HTTP/1.1", host=f"Host: {host}")


def test_no_connection_becomes_another_protocol() -> None:
    for start in ("CONNECT ok.example:443 HTTP/1.1", "connect a HTTP/1.0"):
        with pytest.raises(RequestUnfit) as caught:
            read(start)
        assert caught.value.reason is Reason.HTTP_UPGRADE
    for field in ("Upgrade: websocket", "upgrade: h2c"):
        with pytest.raises(RequestUnfit) as caught:
            read("GET / HTTP/1.1", field)
        assert caught.value.reason is Reason.HTTP_UPGRADE


def test_fields_are_kept_whatever_they_are() -> None:
    assert read("GET / HTTP/1.1", "X-Any: thing", "Authorization: x") == ("GET", "/", None)


def test_names_are_all_that_were_sent() -> None:
    assert field_names(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a: 2") == {b"host", b"x-a"}
