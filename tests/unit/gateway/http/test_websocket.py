"""WebSockets: judged once, relayed after the right answer, and scanned frame by frame (I4, I7)."""

from __future__ import annotations

import base64
import json

import pytest

from keyhole.wire.websocket import accept_for
from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.frames import BINARY, CLOSE, KEY, OFFER, PING, frame, right
from tests.rigs.gateway.stage import SECRET, service
from tests.rigs.gateway.talk import Message, get, head, ok

RAW = SECRET.encode()


def offered(*lines: str, allow: str = "GET,WEBSOCKET /**", path: str = "/chat") -> Conversation:
    """A conversation in which the client has asked for a WebSocket."""
    talk = Conversation(service("own", "ok.example", allow=allow, more='deny = ["* /no"]'))
    talk.client.says(get(path, *OFFER, *lines))
    return talk


def shaken() -> Conversation:
    """One in which it has got one."""
    talk = offered()
    assert talk.told(right()).status == 101
    talk.origin.heard()
    return talk


def test_bytes_go_both_ways_after_the_right_answer() -> None:
    """A message that is whole waits for nothing, token bytes or not; the origin's end is an end."""
    talk = offered("Sec-WebSocket-Version: 13")
    seen = Message(talk.origin.heard().partition(b"\r\n\r\n")[0])
    assert seen.one("authorization") == f"Bearer {SECRET}"
    assert (seen.one("sec-websocket-version"), seen.one("sec-websocket-key")) == ("13", KEY)
    assert (seen.one("connection"), seen.one("upgrade")) == ("Upgrade", "websocket")
    answer = talk.told(right())
    assert (answer.status, answer.one("upgrade")) == (101, "websocket")
    assert answer.one("sec-websocket-accept") == accept_for(KEY.encode()).decode()
    assert talk.asks(b"\x81\x85\0\0\0\0hello") == b"\x81\x85\0\0\0\0hello"
    bye = frame(b"\x03\xe8bye", CLOSE)
    for each in (frame(b"token-like"), frame(b"big " * 50_000, BINARY), frame(b"", PING), bye):
        talk.origin.says(each)
        assert talk.client.heard() == each
    talk.origin.ends(properly=True)
    assert talk.client.ended == "closed"


def test_frames_that_are_sent_with_the_handshake_follow_it() -> None:
    talk = Conversation(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    assert talk.asks(get("/chat", *OFFER) + b"\x81\x81\0\0\0\0x").endswith(b"\r\n\r\n")
    assert talk.told(right()).status == 101
    assert talk.origin.heard() == b"\x81\x81\0\0\0\0x"


@pytest.mark.parametrize(
    "reply",
    [
        right(accept="AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        right(accept=""),
        right(upgrade="h2c"),
        right("Sec-WebSocket-Extensions: permessage-deflate"),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=["another key's", "none", "another protocol", "an extension", "nothing at all"],
)
def test_a_wrong_answer_to_the_handshake_is_a_502(reply: bytes) -> None:
    """I4: an origin that can be made to answer 101 to anything would open a raw tunnel."""
    talk = offered()
    assert (talk.told(reply).status, talk.reasons[0]) == (502, "upstream-malformed")
    assert shaken().reasons == ["rule"]


def test_a_switch_that_nobody_asked_for_is_a_502() -> None:
    """I4."""
    talk = Conversation()
    talk.asks(get("/chat"))
    assert talk.told(right()).status == 502


@pytest.mark.parametrize(
    "key",
    [
        (),
        (OFFER[2], OFFER[2]),
        ("Sec-WebSocket-Key: short",),
        (f"Sec-WebSocket-Key: {base64.b64encode(b'too long for a key').decode()}",),
    ],
)
def test_a_handshake_with_a_bad_key_is_refused(key: tuple[str, ...]) -> None:
    talk = Conversation(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    assert (talk.asks(get("/chat", *OFFER[:2], *key)), talk.answer().status) == (b"", 400)


@pytest.mark.parametrize(
    ("allow", "path", "reason"),
    [
        ("GET /**", "/chat", "websocket-not-granted"),
        ("* /**", "/chat", "websocket-not-granted"),
        ("GET,POST,GET+body /chat", "/chat", "websocket-not-granted"),
        ("WEBSOCKET /other", "/chat", "no-rule"),
        ("WEBSOCKET /**", "/no", "denied-by-rule"),
        ("WEBSOCKET /chat", "/chat", ""),
        ("WEBSOCKET /**", "/chat", ""),
    ],
)
def test_neither_a_get_nor_a_star_covers_a_websocket(allow: str, path: str, reason: str) -> None:
    """I3: no rule sees its messages."""
    talk = offered(allow=allow, path=path)
    if not reason:
        assert talk.told(right()).status == 101
        (event,) = talk.audit
        assert (event.rule, dict(event.details)["method"]) == ("services.own.allow[0]", "WEBSOCKET")
        return
    answer = talk.answer()
    said = json.loads(answer.body)
    assert (answer.status, said["error"], said["reason"]) == (403, "denied", reason)
    assert f"--method WEBSOCKET https://ok.example{path}" in said["why"]
    assert (talk.reasons, talk.origin.heard()) == ([reason], b"")


def test_a_handshake_with_a_body_or_of_http_1_0_is_none() -> None:
    """I4: where a body ends and frames begin, two readers need not agree."""
    talk = Conversation(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    bodied = head("GET", "/chat", *OFFER, "Content-Length: 5") + b"hello"
    assert (talk.asks(bodied), talk.answer().status) == (b"", 403)
    talk = Conversation(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    old = get("/chat", *OFFER).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert b"upgrade" not in talk.asks(old).lower()


def test_what_is_offered_beside_the_handshake_is_only_what_can_be_scanned() -> None:
    """I6, I7: no compression, and no key in the sub-protocols."""
    talk = offered(
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-mine, "
        "base64url.bearer.authorization.k8s.io.bWluZQ",
        path="/chat?token=mine",
    )
    seen = Message(talk.origin.heard())
    assert seen.one("sec-websocket-extensions") is None
    assert seen.one("sec-websocket-protocol") == "realtime"
    assert b"mine" not in seen.head
    assert seen.start == "GET /chat HTTP/1.1"
    answer = talk.told(right("Sec-WebSocket-Protocol: realtime"))
    assert (answer.status, answer.one("sec-websocket-protocol")) == (101, "realtime")


def test_an_answer_that_is_no_switch_is_passed() -> None:
    assert offered().told(ok(b"not here", status=b"426 Upgrade Required")).status == 426


SPLIT = {
    "one frame": [frame(b"you sent " + RAW)],
    "binary": [frame(b"you sent " + RAW, BINARY)],
    "base64": [frame(base64.b64encode(b"me:" + RAW))],
    "escapes": [frame("".join(f"\\u{byte:04x}" for byte in RAW).encode())],
    "escapes in two fragments": [
        frame("".join(f"&#{byte};" for byte in RAW[:9]).encode(), fin=False),
        frame("".join(f"&#x{byte:x};" for byte in RAW[9:]).encode(), 0),
    ],
    "two fragments": [frame(RAW[:9], fin=False), frame(RAW[9:], 0)],
    "a fragment a byte": [
        frame(RAW[:1], fin=False),
        *(frame(RAW[at : at + 1], 0, fin=at + 1 == len(RAW)) for at in range(1, len(RAW))),
    ],
    "a ping between": [frame(RAW[:9], fin=False), frame(b"", PING), frame(RAW[9:], 0)],
    "a ping": [frame(RAW, PING)],
    "a goodbye": [frame(b"\x03\xe8" + RAW, CLOSE)],
    "a long frame": [frame(b"x " * 40_000 + RAW + b" y" * 40_000)],
}


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "a byte per record"])
@pytest.mark.parametrize("case", SPLIT)
def test_a_secret_in_a_message_cuts_it_however_it_is_split(case: str, bytewise: bool) -> None:
    """I7: into frames and records. The control is the message before."""
    wire, talk = b"".join(SPLIT[case]), shaken()
    talk.origin.says(frame(b"clean"))
    assert talk.client.heard() == frame(b"clean")
    talk.origin.says(*([wire[at : at + 1] for at in range(len(wire))] if bytewise else [wire]))
    seen = talk.client.heard()
    assert not any(RAW[at : at + 4] in seen for at in range(len(RAW) - 4))
    assert talk.client.ended == talk.origin.ended == "aborted"
    assert talk.reasons[1] == "secret-reflected"


@pytest.mark.parametrize(
    "wire",
    [
        frame(b"x", rsv=4),
        b"\x81\x81\0\0\0\0x",
        frame(b"x", 3),
        frame(b"x", 0),
        frame(b"x", PING, fin=False),
        frame(b"x" * 126, PING),
        b"\x81\x7e\x00\x01x",
        frame(b"\x03\xe8", CLOSE) + frame(b"more"),
        # I9: what is held is bounded
        frame(b"tok", fin=False) + frame(b"", PING) * 10_000,
    ],
    ids=["compressed", "masked", "reserved", "out of order", "a ping in parts", "a long ping",
         "a length in a longer form", "behind the goodbye", "pings without end"],
)  # fmt: skip
def test_frames_that_cannot_be_read_cut_the_connection(wire: bytes) -> None:
    """I7: what cannot be read cannot be scanned."""
    talk = shaken()
    talk.origin.says(frame(b"clean") + wire)
    assert (talk.client.ended, talk.reasons[1]) == ("aborted", "upstream-malformed")


def test_each_end_ends_the_other() -> None:
    """The client's goodbye, just sent, is not lost; an origin that breaks off is a break."""
    talk, goodbye = shaken(), b"\x88\x82\0\0\0\0\x03\xe8"
    assert talk.asks(goodbye) == goodbye
    talk.client.ends()
    assert talk.origin.ended == "closed"
    talk = shaken()
    talk.origin.says(frame(b"half")[:3])
    talk.origin.ends()
    assert talk.client.ended == "aborted"
