"""One answer over HTTPS: read strictly, whole and within bounds (I9)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Malformed
from keyhole.system.https import MAX_HEAD, AnswerReader, HttpsAnswer, HttpsRequest

LIMIT = 1000
WHOLE = {
    "a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellomore",
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\nmore"
    ),
}


def fed(data: bytes, step: int) -> AnswerReader:
    reader = AnswerReader("POST", LIMIT)
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    return reader


@pytest.mark.parametrize("step", [1, 7, 9999])
@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_is_whole_where_it_says_so_and_not_before(name: str, step: int) -> None:
    data = WHOLE[name]
    reader = fed(data, step)
    assert (reader.done, reader.status, bytes(reader.body)) == (True, 200, b"hello")
    cut = fed(data[: data.index(b"lo")], step)
    assert not cut.done
    with pytest.raises(Malformed, match="cut off"):
        cut.end()


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = fed(b"HTTP/1.1 503 No\r\n\r\nwhy", 4)
    assert not reader.done
    reader.end()
    assert (reader.done, reader.status, bytes(reader.body)) == (True, 503, b"why")


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No", b"HTTP/1.1 200 OK\r\nContent-Length: 0"])
def test_an_answer_without_a_body_is_whole_with_its_head(head: bytes) -> None:
    reader = fed(head + b"\r\n\r\n", 3)
    assert (reader.done, bytes(reader.body)) == (True, b"")


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_no_head_is_no_answer(data: bytes) -> None:
    with pytest.raises(Malformed, match="cut off"):
        fed(data, 5).end()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD, "its head has no end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "too long"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * (LIMIT + 1), "too long"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"y" * (LIMIT + 1),
            "too long",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "stands twice"),
        (b"\x00\xff\r\n\r\n", "status line"),
    ],
)
@pytest.mark.parametrize("step", [1, 9999])
def test_what_is_too_long_or_malformed_is_refused(data: bytes, why: str, step: int) -> None:
    """I9. Control: at the limit it is taken."""
    with pytest.raises(Malformed, match=why):
        fed(data, step)
    exact = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"y" * LIMIT
    assert fed(exact, step).done


def test_what_is_sent_and_what_comes_is_in_no_repr() -> None:
    assert "refresh" not in repr(HttpsRequest("a.example", "/", "text/plain", b"refresh"))
    assert "access" not in repr(HttpsAnswer(200, b"access"))
