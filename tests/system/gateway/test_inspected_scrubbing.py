"""A secret that an origin gives back does not reach the sandbox, in content or timing (I7)."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import queue
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.rigs.gateway.stage import SECRET, STAND_IN, Play, Stage, service, serving, set_up
from tests.rigs.gateway.talk import END, Talk, get, ok

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    import trustme

PATIENCE = 20.0
RAW = SECRET.encode()
HEAD_200 = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """One door for all tests."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            stage.open(service("own", "ok.example"), ok_example=server)
            yield made
            stage.close_talks()


RENDERINGS = {
    "raw": RAW,
    "base64": base64.b64encode(RAW),
    "base64, one before": base64.b64encode(b"x" + RAW),
    "base64, two before": base64.b64encode(b"xy" + RAW),
    "base64url": base64.urlsafe_b64encode(RAW),
    "hex": RAW.hex().encode(),
    "HEX": RAW.hex().upper().encode(),
    "percent": "".join(f"%{byte:02X}" for byte in RAW).encode(),
    "quoted": quote(SECRET).encode(),
    "JSON": "".join(f"\\u{byte:04x}" for byte in RAW).encode(),
    "JSON, every other": "".join(
        f"\\u{byte:04X}" if at % 2 else chr(byte) for at, byte in enumerate(RAW)
    ).encode(),
    "HTML": "".join(f"&#{byte};" for byte in RAW).encode(),
    "HTML, mixed": "".join(
        (f"&#x{byte:X};", f"&#0{byte}", chr(byte))[at % 3] for at, byte in enumerate(RAW)
    ).encode(),
}


def holds_secret(data: bytes) -> bool:
    """Whether any rendering of the secret, or most of one, is in there."""
    longest = [rendering[4:-4] for rendering in RENDERINGS.values()]
    return any(piece in data for piece in longest)


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_reflected_secret_is_replaced_wherever_it_stands(play: Play, name: str) -> None:
    """I7."""
    text = RENDERINGS[name]
    reply = ok(b'{"you sent": "%b"} %b' % (text, text), b"X-Echo: a %b z" % text)
    answer = play.answer(reply).answer()
    assert not holds_secret(answer.head)
    assert not holds_secret(answer.body)
    assert len(answer.body) == len(b'{"you sent": ""} ') + 2 * len(text)
    assert answer.body.startswith(b'{"you sent": "')
    assert play.stage.watch.until("secret-scrubbed", path="/a")


@pytest.mark.parametrize("name", ["JSON", "JSON, every other", "HTML", "HTML, mixed"])
def test_a_secret_in_escapes_is_replaced_in_pieces_and_in_trailers(play: Play, name: str) -> None:
    """I7: over the boundaries of chunks, and behind them; compressed, the answer is cut."""
    text = RENDERINGS[name]
    for cut in range(1, len(text), 9):
        framed = chunks_of(b"before " + text + b" after", 7 + cut)
        answer = play.answer(CHUNKED + framed[:-2] + b"X-Last: %b\r\n\r\n" % text).answer()
        assert answer.body.startswith(b"before " + STAND_IN[:20].encode())
        assert answer.body.endswith(b" after")
        assert len(answer.body) == len(text) + len(b"before  after")
        assert not holds_secret(answer.body + answer.trailers)
        assert b"X-Last: " in answer.trailers
    packed = gzip.compress(text)
    fields = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert packed[10:] not in play.answer(HEAD_200 + fields + packed).cut()


def test_an_answer_without_a_secret_passes_as_it_is(play: Play) -> None:
    """The control."""
    body = bytes(range(256)) * 40 + RAW[:-1] + b" " + RAW[1:]
    assert play.answer(ok(body)).answer().body == body
    assert play.answer(ok(STAND_IN.encode())).answer().body == STAND_IN.encode()


def chunks_of(text: bytes, *cuts: int) -> bytes:
    ends = [*cuts, len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *ends])]
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]
    return b"".join(framed) + b"0\r\n\r\n"


# ── timing ────────────────────────────────────────────────────────────────────────────────────────


class Wiretap:
    """A TLS client that sees the records as they are on the wire."""

    def __init__(self, stage: Stage) -> None:
        self._plain = stage.namespace.connect("ok.example")
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = stage.client_context().wrap_bio(
            self._in, self._out, server_hostname="ok.example"
        )
        self._buffer = b""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._plain.sendall(self._out.read())
                self._in.write(self._plain.recv(65536))
        self._plain.sendall(self._out.read())

    def ask(self, request: bytes) -> None:
        self._tls.write(request)
        self._plain.sendall(self._out.read())

    def record(self) -> tuple[int, bytes]:
        """The next record: its size on the wire, and what is in it."""
        while len(self._buffer) < 5 or len(self._buffer) < 5 + self._size:
            data = self._plain.recv(65536)
            assert data
            self._buffer += data
        size = self._size
        self._in.write(self._buffer[: 5 + size])
        self._buffer = self._buffer[5 + size :]
        return size, self._tls.read(65536)

    def close(self) -> None:
        self._plain.close()

    @property
    def _size(self) -> int:
        return int.from_bytes(self._buffer[3:5], "big")


def observed(play: Play, text: bytes, step: int) -> list[tuple[int, int]]:
    """What a client sees of an answer that comes `step` bytes at a time: after how many of the
    origin's pieces each record came, and its size. A line's end after each round makes sure that
    all that may leave has left."""
    go: queue.Queue[bytes] = queue.Queue()
    sent: queue.Queue[int] = queue.Queue()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(CHUNKED)
        while piece := go.get(timeout=PATIENCE):
            talk.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent.put(len(piece))
        talk.send(b"0\r\n\r\n")
        talk.rest()

    play.serve(origin)
    tap = Wiretap(play.stage)
    tap.ask(get("/timed"))
    tap.record()
    records: list[tuple[int, int]] = []
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    for number, piece in enumerate(pieces):
        go.put(piece)
        sent.get(timeout=PATIENCE)
        settle(play)
        tap._plain.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            tap._buffer += tap._plain.recv(65536)
        tap._plain.setblocking(True)
        while tap._buffer:
            records.append((number, tap.record()[0]))
    go.put(b"")
    while True:
        size, data = tap.record()
        records.append((len(pieces), size))
        if data.endswith(b"0\r\n\r\n"):
            break
    tap.close()
    return records


def settle(play: Play) -> None:
    """Until the gateway has seen, and dealt with, what the origin has sent.

    The origin's bytes are in the kernel when `send` returns; two turns of the loop read them.
    """
    for _ in range(3):
        play.stage.rig.call(lambda: None)


def test_a_right_guess_looks_like_a_wrong_one_on_the_wire(play: Play) -> None:
    """I7: neither which records come, nor when, nor their sizes tell how much of a guess is right.

    The attacker has the origin echo guesses of growing length, a few bytes at a time.
    """
    for step in (1, 7):
        for right in (1, 5, 12, len(RAW) - 1):
            guess = RAW[:right]
            wrong = RAW[: right - 1] + (b"X" if RAW[right - 1 : right] != b"X" else b"Y")
            texts = [b"you said " + each + b" , thank you" for each in (guess, wrong)]
            assert observed(play, texts[0], step) == observed(play, texts[1], step)
    # The control: what is no token is seen at once, so the wire does tell differences.
    assert observed(play, b"you said a_b", 1) != observed(play, b"you said a b", 1)
    # A run that does not end is held back alike, whatever it is.
    assert observed(play, b"a " + RAW[:-1], 4) == observed(play, b"a " + b"z" * (len(RAW) - 1), 4)


def test_even_the_whole_secret_comes_when_anything_else_would(play: Play) -> None:
    """I7: a hit is replaced by as many bytes at the same time; only its content is another's."""
    for step in (1, 7):
        texts = [b"you said " + each + b" , thank you" for each in (RAW, b"z" * len(RAW))]
        assert observed(play, texts[0], step) == observed(play, texts[1], step)
