"""I12: what one sandbox or one origin sends does not stop the gateway for another session.

Through a whole gateway, with two sessions. How long its loop was held is told by the CPU time that
its thread spent between two turns, which a busy machine does not change.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.frames import OFFER, right
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.pulse import Pulse
from tests.rigs.gateway.stage import Stage, service, serving, set_up
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok
from tests.system.gateway.conftest import tls  # noqa: F401 - fixture

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

pytestmark = pytest.mark.alone

MOST = 0.35
"""Seconds of CPU that the loop may be held by one read; what is tried here took from 0.5 s to for
ever."""

SIZE = 240 * 1024
"""Bytes of an attack: what the gateway reads at once."""


class Held(AssertionError):
    """The loop was held for too long."""


class Play:
    """Two sessions of one gateway, and an origin that says what the test wants."""

    def __init__(self, hostile: Stage, other: Stage) -> None:
        self.hostile, self.other = hostile, other
        self.reply = ok(b"fine")
        self.pulse = Pulse(hostile.rig)

    def __call__(self, sock: socket.socket) -> None:
        """A connection to the origin."""
        talk = Talk(sock)
        while (asked := talk.request()) is not None:
            talk.send(ok(b"fine") if asked.one("x-other") else self.reply)

    @contextlib.contextmanager
    def attacking(self) -> Iterator[None]:
        """Attack within; meanwhile the other session asks, and is answered."""
        done = threading.Event()
        answers: list[int] = []

        def ask() -> None:
            talk = self.other.visit()
            while not done.is_set() or len(answers) < 3:
                talk.send(get("/a", "X-Other: 1"))
                answers.append(talk.answer().status)

        neighbour = threading.Thread(target=ask)
        self.pulse.begin()
        neighbour.start()
        try:
            yield
        finally:
            done.set()
            neighbour.join(30)
        assert not neighbour.is_alive()
        assert set(answers) == {200}
        if (held := self.pulse.end()) >= MOST:
            raise Held(f"{held:.3f} s")


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:  # noqa: F811
    """One gateway for all attacks."""
    policy = service("own", "ok.example", allow="*,WEBSOCKET /**")
    with set_up(authority) as stage:
        neighbour = Namespace.make()
        other = Stage(neighbour, stage.rig, authority, stage.services)
        made = Play(stage, other)
        try:
            with serving(made, tls) as origin:
                for each in (stage, other):
                    each.open(policy, ok_example=origin)
                yield made
        finally:
            other.close_talks()
            neighbour.close()


@pytest.mark.parametrize("words", [11, 500, 3000])
def test_a_sub_protocol_of_many_words(play: Play, words: int) -> None:
    """Exponential: 45 bytes took 2.7 s, and each further word four times as long."""
    value = "aaa-" * words + "A"
    with play.attacking():
        for field in (f"Sec-WebSocket-Protocol: {value}", "Sec-WebSocket-Protocol: plain"):
            assert play.hostile.ask(get("/a", field)).answer().status == 200


@pytest.mark.parametrize("value", [b"charset=" + b" " * 8000 + b"x", b"charset =" * 1500])
def test_a_type_of_many_spaces(play: Play, value: bytes) -> None:
    """Polynomial: 8,000 spaces took 6.8 s."""
    play.reply = ok(b"fine", b"Content-Type: " + value)
    with play.attacking():
        assert play.hostile.ask(get("/a")).answer().body == b"fine"


def test_a_path_of_many_marks(play: Play) -> None:
    """Quadratic: marks are put in order one by one."""
    with play.attacking():
        for number in range(5):
            path = f"/{number}" + "%CC%81%CC%A3" * 600
            assert play.hostile.ask(get(path)).answer().status == 403
        assert play.hostile.ask(get("/%C3%A9")).answer().status == 200


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"000001\r\na\r\n", b"2\r\nab\r\n1\r\n \r\n"])
def test_an_answer_in_tiny_chunks(play: Play, chunk: bytes) -> None:
    """A byte in each: 0.25 s for a read, and as much again for a search in each of them."""
    play.reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    play.reply += chunk * (2 * SIZE // len(chunk)) + b"0\r\n\r\n"
    with play.attacking():
        assert len(play.hostile.ask(get("/a")).answer().body) >= 2 * SIZE // len(chunk)


def test_a_request_in_tiny_chunks(play: Play) -> None:
    play.reply = ok(b"fine")
    with play.attacking():
        talk = play.hostile.visit()
        talk.send(head("POST", "/a", "Transfer-Encoding: chunked"))
        talk.send(b"1\r\na\r\n" * (2 * SIZE // 6) + b"0\r\n\r\n")
        assert talk.answer().body == b"fine"


@pytest.mark.parametrize(
    ("begin", "frame", "end"),
    [
        (b"", b"\x82\x01a", b""),
        (b"\x02\x01a", b"\x00\x01a", b"\x80\x00"),
        (b"", b"\x89\x00", b""),
        (b"", b"\x89\x01a", b""),
    ],
    ids=["messages", "fragments", "empty pings", "pings"],
)
def test_a_websocket_of_tiny_frames(play: Play, begin: bytes, frame: bytes, end: bytes) -> None:
    """A search for each frame took 0.6 s for a read."""
    frames = begin + frame * (SIZE // len(frame)) + end
    play.reply = right() + frames
    for left in (2, 1, 0):
        # A core that is shared with others makes CPU time longer, too.
        try:
            with play.attacking():
                talk = play.hostile.ask(get("/a", *OFFER))
                assert Message(talk.until(END)).status == 101
                talk.exactly(len(frames))
        except Held:
            if not left:
                raise
        else:
            return


def test_the_control_a_gateway_that_is_held_is_noticed(play: Play) -> None:
    def hold() -> None:
        start = time.thread_time()
        while time.thread_time() - start < 2 * MOST:
            pass

    with pytest.raises(Held), play.attacking():
        play.hostile.rig.call(hold)
