"""What a client gets of an answer that holds a secret, or that cannot be searched for one (I7)."""

from __future__ import annotations

import base64
import gzip
import zlib

import pytest

from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.stage import SECRET, STAND_IN
from tests.rigs.gateway.talk import get, ok
from tests.rigs.inject.events import message

RAW = SECRET.encode()
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


def asked() -> Conversation:
    talk = Conversation()
    talk.asks(get("/a"))
    return talk


@pytest.mark.parametrize("framing", ["chunks", "length", "end"])
def test_a_secret_a_byte_at_a_time_is_replaced(framing: str) -> None:
    """I7: also where each byte is a record, and a packet, of its own."""
    text = b"before " + RAW + b" " + base64.b64encode(RAW) + b" after"
    talk, bits = asked(), [text[at : at + 1] for at in range(len(text))]
    if framing == "chunks":
        pieces = [b"1\r\n%b\r\n" % bit for bit in bits]
        talk.origin.says(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n")
    elif framing == "length":
        talk.origin.says(HEAD_200 + b"Content-Length: %d\r\n\r\n" % len(text), *bits)
    else:
        talk.origin.says(HEAD_200 + b"\r\n", *bits)
        talk.origin.ends(properly=True)
    body = talk.answer().body
    assert len(body) == len(text)
    assert body.startswith(b"before " + STAND_IN.encode() + b" ")
    assert body.endswith(b" after")
    assert base64.b64encode(RAW)[4:-4] not in body


def test_nothing_of_a_secret_leaves_before_an_answer_breaks() -> None:
    """I7, CVE-2026-101998: what is held back when the origin fails is not let go."""
    talk = asked()
    talk.origin.says(HEAD_200 + b"Content-Length: 1000\r\n\r\n", b"text " + RAW)
    talk.origin.ends()
    assert talk.client.heard().partition(b"\r\n\r\n")[2] in (b"text ", b"")
    assert talk.client.ended == "aborted"


@pytest.mark.parametrize(
    "media", ["application/vnd.amazon.eventstream", "application/octet-stream"]
)
def test_an_event_of_aws_does_not_wait_for_the_next(media: str) -> None:
    """Of a stream that goes both ways, the next might be the response to it. Control: of another
    type, an end that may be a token's beginning waits. I7: a secret is replaced in both."""
    talk = asked()
    talk.origin.says(
        HEAD_200 + f"Content-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    talk.client.heard()
    events = [message(b"", b"said " + bytes([number])) for number in range(256)]
    event = next(each for each in events if each[-1:].isalpha())
    talk.origin.says(b"%x\r\n%b\r\n" % (len(event), event))
    assert (event in talk.client.heard()) is ("vnd.amazon" in media)
    reflected = message(b"", RAW + b" ")
    talk.origin.says(b"%x\r\n%b\r\n0\r\n\r\n" % (len(reflected), reflected))
    heard = talk.client.heard()
    assert STAND_IN.encode() in heard
    assert RAW not in heard


WORDS = b"words " * 1000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(WORDS + STAND_IN.encode())),
        ("x-gzip", gzip.compress(WORDS)),
        ("deflate", zlib.compress(WORDS)),
    ],
)
def test_an_encoded_answer_passes_unchanged_when_it_is_clean(encoding: str, body: bytes) -> None:
    answer = asked().told(ok(body, f"Content-Encoding: {encoding}".encode()))
    assert (answer.body, answer.one("content-encoding")) == (body, encoding)


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        # A stand-in cannot be put into a compressed text; RFC 1952 §2.2: nor into a later member.
        ("gzip", gzip.compress(b"words " + RAW + b" words"), "secret-reflected"),
        ("deflate", zlib.compress(b"words " + RAW + b" words"), "secret-reflected"),
        ("gzip", gzip.compress(b"words ") + gzip.compress(RAW), "secret-reflected"),
        ("gzip", gzip.compress(b"words")[:-4], "encoding-refused"),
        ("gzip", b"no gzip at all", "encoding-refused"),
        ("gzip", gzip.compress(bytes(64 * 2**20)), "encoding-refused"),
    ],
    ids=["gzip", "deflate", "members", "cut", "something else", "a bomb"],
)
def test_an_encoded_answer_that_holds_a_secret_or_does_not_decode_is_cut(
    encoding: str, body: bytes, reason: str
) -> None:
    """I7, I9."""
    talk = asked()
    talk.origin.says(ok(body, f"Content-Encoding: {encoding}".encode()))
    assert body not in talk.client.heard()
    assert (talk.client.ended, talk.reasons[:2]) == ("aborted", ["rule", reason])


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "gzip, br"])
def test_an_encoding_that_cannot_be_looked_into_is_refused(encoding: str) -> None:
    """I7. The control: the same bytes as they are."""
    answer = asked().told(ok(b"whatever", f"Content-Encoding: {encoding}".encode()))
    assert (answer.status, b"encoding-refused" in answer.body) == (502, True)
    assert asked().told(ok(b"whatever")).body == b"whatever"
