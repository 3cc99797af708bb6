"""WebSockets: judged once, relayed after the right answer, and scanned frame by frame (I4, I7)."""

from __future__ import annotations

import gc
import json
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.http.stream import Stream
from keyhole.gateway.upstream.origin import OriginConnection
from keyhole.wire.websocket import accept_for
from tests.rigs.gateway.frames import BINARY, CLOSE, KEY, OFFER, PING, frame, right
from tests.rigs.gateway.stage import SECRET, Stage, service, serving, set_up
from tests.rigs.gateway.talk import END, Message, Talk, get

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

    from tests.rigs.gateway.origins import Handler

PATIENCE = 20.0
RAW = SECRET.encode()


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


@pytest.mark.parametrize(
    ("allow", "reason"),
    [("* /**", "websocket-not-granted"), ("WEBSOCKET /other", "no-rule"), ("WEBSOCKET /**", "")],
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


def test_a_secret_in_a_message_cuts_the_connection(play: Play) -> None:
    """I7: more ways to split it are in unit/gateway."""
    read = threading.Event()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.send(frame(b"clean"))
        read.wait(PATIENCE)
        talk.send(frame(RAW[:9], fin=False), frame(RAW[9:], 0))
        talk.rest()

    play.then = origin
    talk = play.shake()
    assert talk.exactly(7) == frame(b"clean")
    read.set()
    seen = talk.cut()
    assert not any(RAW[at : at + 4] in seen for at in range(len(RAW) - 4))
    assert play.stage.watch.until("secret-reflected", path="/chat")


def test_a_websocket_leaves_nothing_behind(play: Play) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            play.shake().close()
        handle = play.stage.handle
        assert handle is not None
        play.stage.watch.until("closed")
        while play.stage.rig.call(lambda: len(handle._connections)):
            pass
        play.stage.rig.call(lambda: None)
        while any(isinstance(each, (Stream, OriginConnection)) for each in gc.get_objects()):
            pass
    finally:
        gc.enable()
