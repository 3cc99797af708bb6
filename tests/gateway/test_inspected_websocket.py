"""WebSockets: judged once, relayed after the right answer, and scanned frame by frame (I4, I7)."""

from __future__ import annotations

import base64
import gc
import json
import queue
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.exchange import Exchange
from keyhole.gateway.origin import Origin
from keyhole.wire.websocket import accept_for
from tests.gateway.stage import SECRET, Stage, service, serving, set_up
from tests.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

    from tests.gateway.origins import Handler

PATIENCE = 20.0
RAW = SECRET.encode()
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
OFFER = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}")
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class Play:
    """One open door, and an origin that does the handshake and then what the test says."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.heads: list[Message] = []
        self.reply = right()
        self.then: Handler = sending()

    def __call__(self, sock: socket.socket) -> None:
        talk = Talk(sock)
        self.heads.append(Message(talk.until(END)))
        talk.send(self.reply)
        self.then(sock)

    def shake(self, *lines: str) -> Talk:
        """A handshake that succeeds."""
        talk = self.stage.ask(get("/chat", *OFFER, *lines))
        answer = talk.answer()
        assert answer.status == 101
        assert answer.one("sec-websocket-accept") == accept_for(KEY.encode()).decode()
        assert answer.one("upgrade") == "websocket"
        return talk


def sending(*pieces: bytes) -> Handler:
    """An origin that says this, and then listens."""

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.send(*pieces)
        talk.rest()

    return handler


def right(*lines: str, accept: str | None = None, upgrade: str = "websocket") -> bytes:
    accept = accept_for(KEY.encode()).decode() if accept is None else accept
    rows = ("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {upgrade}",
            f"Sec-WebSocket-Accept: {accept}", *lines)  # fmt: skip
    return "".join(f"{row}\r\n" for row in rows).encode() + b"\r\n"


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, rsv: int = 0) -> bytes:
    first = bytes([fin << 7 | rsv << 4 | opcode])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 1 << 16:
        return first + b"\x7e" + struct.pack(">H", len(payload)) + payload
    return first + b"\x7f" + struct.pack(">Q", len(payload)) + payload


@pytest.fixture
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """A door of its own for each test: the handshakes differ."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            own = service("own", "ok.example", allow="GET,WEBSOCKET /**", more='deny = ["* /no"]')
            stage.open(own, ok_example=server)
            yield made
            stage.close_talks()


def test_bytes_go_both_ways_after_the_right_answer(play: Play) -> None:
    def echo(sock: socket.socket) -> None:
        talk = Talk(sock)
        assert talk.exactly(11) == b"\x81\x85\0\0\0\0hello"
        talk.send(frame(b"hello"), frame(b"big " * 50_000, BINARY), frame(b"", PING))
        talk.send(frame(b"\x03\xe8bye", CLOSE))
        talk.goodbye()

    play.then = echo
    talk = play.shake("Sec-WebSocket-Version: 13")
    talk.send(b"\x81\x85\0\0\0\0hello")
    wanted = [frame(b"hello"), frame(b"big " * 50_000, BINARY), frame(b"", PING)]
    for expected in (*wanted, frame(b"\x03\xe8bye", CLOSE)):
        assert talk.exactly(len(expected)) == expected
    assert talk.rest() == b""
    seen = play.heads[0]
    assert seen.one("authorization") == f"Bearer {SECRET}"
    assert seen.one("sec-websocket-version") == "13"
    assert seen.one("sec-websocket-key") == KEY
    assert (seen.one("connection"), seen.one("upgrade")) == ("Upgrade", "websocket")


def test_frames_that_are_sent_with_the_handshake_follow_it(play: Play) -> None:
    def echo(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.send(talk.exactly(7))

    play.then = echo
    talk = play.stage.ask(get("/chat", *OFFER), b"\x81\x81\0\0\0\0x")
    assert talk.answer().status == 101
    # What comes back is no origin's frame, since it is masked.
    talk.cut()


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
def test_a_wrong_answer_to_the_handshake_is_a_502(play: Play, reply: bytes) -> None:
    """I4: an origin that can be made to answer 101 to anything would open a raw tunnel."""
    play.reply = reply
    answer = play.stage.ask(get("/chat", *OFFER)).answer()
    assert answer.status == 502
    assert b"upstream-malformed" in answer.body
    play.reply = right()
    play.shake()


def test_a_switch_that_nobody_asked_for_is_a_502(play: Play) -> None:
    """I4."""
    assert play.stage.ask(get("/chat")).answer().status == 502


@pytest.mark.parametrize(
    "lines",
    [
        OFFER[:2],
        (*OFFER, OFFER[2]),
        (*OFFER[:2], "Sec-WebSocket-Key: short"),
        (*OFFER[:2], f"Sec-WebSocket-Key: {base64.b64encode(b'too long for a key').decode()}"),
    ],
)
def test_a_handshake_with_a_bad_key_is_refused(play: Play, lines: tuple[str, ...]) -> None:
    assert play.stage.ask(get("/chat", *lines)).answer().status == 400
    assert not play.heads


def test_a_handshake_is_judged_like_any_request(play: Play) -> None:
    """I3."""
    assert play.stage.ask(get("/no", *OFFER)).answer().status == 403
    assert not play.heads
    play.shake()
    event = play.stage.watch.until("rule", method="WEBSOCKET")
    assert (event.rule, dict(event.details)["status"]) == ("services.own.allow[0]", 101)


@pytest.mark.parametrize(
    ("allow", "reason"),
    [
        ("GET /**", "websocket-not-granted"),
        ("* /**", "websocket-not-granted"),
        ("GET,POST,GET+body /chat", "websocket-not-granted"),
        ("WEBSOCKET /other", "no-rule"),
        ("WEBSOCKET /chat", ""),
        ("WEBSOCKET /**", ""),
    ],
)
def test_a_websocket_is_a_grant_of_its_own(
    authority: trustme.CA, tls: ssl.SSLContext, allow: str, reason: str
) -> None:
    """I3: neither a `GET` nor a `*` covers messages that no rule sees."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            stage.open(service("own", "ok.example", allow=allow), ok_example=server)
            if not reason:
                made.shake()
                return
            answer = stage.ask(get("/chat", *OFFER)).answer()
            said = json.loads(answer.body)
            assert (answer.status, said["error"], said["reason"]) == (403, "denied", reason)
            assert "--method WEBSOCKET https://ok.example/chat" in said["why"]
            assert stage.watch.until(reason, method="WEBSOCKET", path="/chat")
            assert not made.heads
            stage.close_talks()


def test_a_handshake_with_a_body_is_no_handshake(play: Play) -> None:
    """I4: where a body ends and frames begin, two readers need not agree."""
    play.reply = ok(b"plain", b"Connection: close")
    bodied = head("GET", "/chat", *OFFER, "Content-Length: 5") + b"hello"
    assert play.stage.ask(bodied).answer().status == 403
    assert not play.heads
    for raw in (
        b"GET /chat HTTP/1.0\r\nHost: ok.example\r\n" + "\r\n".join(OFFER).encode() + b"\r\n\r\n",
    ):
        talk = play.stage.ask(raw)
        assert talk.answer().body == b"plain"
        assert play.heads[-1].one("upgrade") is None


def test_what_is_offered_beside_the_handshake_is_only_what_can_be_scanned(play: Play) -> None:
    """I6, I7: no compression, and no key in the sub-protocols."""
    play.reply = right("Sec-WebSocket-Protocol: realtime")
    offers = (
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-mine, "
        "base64url.bearer.authorization.k8s.io.bWluZQ",
    )
    talk = play.stage.ask(get("/chat?token=mine", *OFFER, *offers))
    answer = talk.answer()
    assert (answer.status, answer.one("sec-websocket-protocol")) == (101, "realtime")
    seen = play.heads[0]
    assert seen.one("sec-websocket-extensions") is None
    assert seen.one("sec-websocket-protocol") == "realtime"
    assert b"mine" not in seen.head
    assert seen.start == "GET /chat HTTP/1.1"


def test_an_answer_that_is_no_switch_is_passed(play: Play) -> None:
    play.reply = ok(b"not here", status=b"426 Upgrade Required")
    talk = play.stage.ask(get("/chat", *OFFER))
    assert (talk.answer().status, play.heads[0].one("upgrade")) == (426, "websocket")


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
def test_a_secret_in_a_message_cuts_the_connection(play: Play, case: str, bytewise: bool) -> None:
    """I7: however it is cut into frames and records."""
    wire = b"".join(SPLIT[case])
    if bytewise and len(wire) > 1000:
        return

    read = threading.Event()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.send(frame(b"clean"))
        read.wait(PATIENCE)
        talk.send(*([wire[at : at + 1] for at in range(len(wire))] if bytewise else [wire]))
        talk.rest()

    play.then = origin
    talk = play.shake()
    assert talk.exactly(7) == frame(b"clean")
    read.set()
    seen = talk.cut()
    assert not any(RAW[at : at + 4] in seen for at in range(len(RAW) - 4))
    assert play.stage.watch.until("secret-reflected", path="/chat")


def test_messages_leave_as_they_arrive(play: Play) -> None:
    """A message that is whole waits for nothing, token bytes or not."""
    go: queue.Queue[bytes] = queue.Queue()

    def origin(sock: socket.socket) -> None:
        while message := go.get(timeout=PATIENCE):
            Talk(sock).send(message)

    play.then = origin
    talk = play.shake()
    for number in range(30):
        message = frame(b"token-like-%d" % number)
        go.put(message)
        assert talk.exactly(len(message)) == message
    go.put(b"")


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
    ],
    ids=["compressed", "masked", "reserved", "out of order", "a ping in parts", "a long ping",
         "a length in a longer form", "behind the goodbye"],
)  # fmt: skip
def test_frames_that_cannot_be_read_cut_the_connection(play: Play, wire: bytes) -> None:
    """I7: what cannot be read cannot be scanned."""
    play.then = sending(frame(b"clean") + wire)
    talk = play.shake()
    talk.cut()
    play.stage.watch.until("upstream-malformed", path="/chat")


def test_pings_behind_a_message_without_end_are_not_piled_up(play: Play) -> None:
    """I9."""
    play.then = sending(frame(b"tok", fin=False), frame(b"", PING) * 10_000)
    talk = play.shake()
    talk.cut()
    play.stage.watch.until("upstream-malformed", path="/chat")


def test_the_clients_goodbye_reaches_the_origin(play: Play) -> None:
    got: queue.Queue[bytes] = queue.Queue()
    play.then = lambda sock: got.put(Talk(sock).rest())
    talk = play.shake()
    goodbye = b"\x88\x82\0\0\0\0\x03\xe8"
    talk.send(goodbye)
    talk.close()
    assert got.get(timeout=PATIENCE) == goodbye


def test_an_origin_that_breaks_breaks_the_clients_end(play: Play) -> None:
    play.then = lambda sock: Talk(sock).send(frame(b"half")[:3])
    talk = play.shake()
    talk.cut()


def test_a_websocket_leaves_nothing_behind(play: Play) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            play.shake().close()
        handle = play.stage.handle
        assert handle is not None
        play.stage.watch.until("closed")
        while play.stage.rig.call(lambda: len(handle._inspected)):
            pass
        play.stage.rig.call(lambda: None)
        while any(isinstance(each, (Exchange, Origin)) for each in gc.get_objects()):
            pass
    finally:
        gc.enable()
