"""Host of a connection's first request, or nothing at all (I4)."""

from __future__ import annotations

import pytest

from keyhole.http.field import MAX_FIELDS
from keyhole.http.named_host import named_host
from keyhole.model.errors import Malformed


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.localhost:1", b"a.localhost:1"),
        (b"POST /x?y=%20#z HTTP/1.0\r\nA: b\r\nhOsT:\t A.LocalHost \t\r\nC:", b"a.localhost"),
        (b"OPTIONS /\xc3\xa9 HTTP/1.1\r\nX: \xff\r\nHost: a", b"a"),
    ],
)
def test_the_host_is_found(head: bytes, found: bytes) -> None:
    assert named_host(head) == found


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost:",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b",
        b"GET / HTTP/1.1\r\nHost : a",
        b"GET / HTTP/1.1\r\n Host: a",
        b"GET / HTTP/1.1\r\nHost: a\r\n b: c",
        b"GET / HTTP/1.1\r\nHost: a\nHost: b",
        b"GET / HTTP/1.1\r\nHost: a\rHost: b",
        b"GET / HTTP/1.1\r\nHost: a\0",
        b"GET / HTTP/1.1\r\nHost",
        b"GET http://b/ HTTP/1.1\r\nHost: a",
        b"GET  / HTTP/1.1\r\nHost: a",
        b"GET / HTTP/2.0\r\nHost: a",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a",
        b"PRI * HTTP/2.0",
        b"GET /a b HTTP/1.1\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a" + b"\r\nb: c" * MAX_FIELDS,
    ],
)
def test_a_head_that_can_be_read_in_two_ways_has_none(head: bytes) -> None:
    with pytest.raises(Malformed):
        named_host(head)
