"""The long battery against inspected connections: two gibibytes each way, and bytes at random.

Run by `make attack`. Bytes at the wire are hypothesis's: whatever comes, the gateway answers or
closes, raises nothing, and goes on serving others.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.rigs.gateway.memory import Peak
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import AMPLE, SECRET, Stage, service, serving, set_up
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

pytestmark = pytest.mark.attack

MIB = 2**20
GIB = 2**30
BULK = 2 * GIB
FLAT = 16 * MIB
EXAMPLES = 1000
"""Of each kind: about two minutes together."""
BOUNDED = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
LIMITS = f'{AMPLE}body = "4GiB"\nupload = "64GiB"\ndownload = "64GiB"'


class Mirror(Service):
    """Answers with what the example says."""

    def __init__(self) -> None:
        super().__init__(lambda _: self.reply)
        self.reply = ok(b"x")


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[tuple[Stage, Mirror]]:
    """One open door for all examples."""
    origin = Mirror()
    with serving(origin, tls) as server, set_up(authority) as stage:
        stage.open(service("own", "ok.example", more='deny = ["* /no"]'), LIMITS, ok_example=server)
        yield stage, origin


def heard(talk: Talk) -> bytes:
    """Everything up to the end, proper or not; the client has ended its side."""
    data = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := talk.sock.recv(65536):
            data += piece
    talk.close()
    return data


def well_behaved(play: tuple[Stage, Mirror]) -> None:
    """Nothing was raised, and the next client is served."""
    stage, origin = play
    assert not stage.rig.faults, stage.rig.told_faults()
    origin.reply = ok(b"x")
    talk = stage.ask(get("/control", "Connection: close"))
    assert talk.answer().body == b"x"
    talk.close()
    stage._talks.clear()
    stage.watch.events.clear()
    origin.seen.clear()


NASTY = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\r\n ",
    b"\r\n\r\n",
    b"\x0b",
    b"\x85",
    b"\xa0",
    b"GET /a HTTP/1.1\r\n",
    b"POST /a HTTP/1.1\r\n",
    b"Host: ok.example\r\n",
    b"Host: other.example",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Connection: authorization\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\n",
    b"Connection: Upgrade\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"hello",
    b"https://other.example/",
    b"#",
    b"/no",
    b"GET /no HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    b"Authorization: Bearer mine\r\n",
    b"X-Api-Key: mine\r\n",
    b"?key=mine",
    b"Trailer: X\r\n",
]
SOUP = st.lists(st.one_of(st.sampled_from(NASTY), st.binary(max_size=24)), max_size=24).map(
    b"".join
)


@BOUNDED
@given(before=st.booleans(), soup=SOUP, cuts=st.lists(st.integers(0, 600), max_size=3))
def test_requests_at_random(
    play: tuple[Stage, Mirror], before: bool, soup: bytes, cuts: list[int]
) -> None:
    """I4, I6: no key of the client's and no denied path ever reaches the origin."""
    stage, origin = play
    raw = (get("/a", "X-A: b") if before else b"") + soup
    ends = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    talk = stage.visit()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for start, end in itertools.pairwise(ends):
            if raw[start:end]:
                talk.send(raw[start:end])
        talk.goodbye()
    heard(talk)
    for seen in origin.seen:
        assert "/no" not in seen.start.split()[1].partition("?")[0]
        assert b"mine" not in seen.head
        assert seen.all("host") == ["ok.example"]
        assert seen.all("authorization") == [f"Bearer {SECRET}"]
    well_behaved(play)


CHUNK_SOUP = st.lists(
    st.one_of(
        st.sampled_from(
            [b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n", b"\r\n", b"5;x=y\r\n", b"5\n", b"0x5\r\n",
             b"X-Trail: 1\r\n", b"Authorization: mine\r\n", b"Content-Length: 5\r\n",
             b"ffffffffffffffff\r\n", b"-1\r\n", get("/after"), get("/no")]
        ),
        st.binary(max_size=12),
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


@BOUNDED
@given(soup=CHUNK_SOUP, together=st.booleans())
def test_chunks_at_random(play: tuple[Stage, Mirror], soup: bytes, together: bool) -> None:
    """I4: what the origin reads is what was judged."""
    stage, origin = play
    start = head("POST", "/a", "Transfer-Encoding: chunked")
    talk = stage.visit()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        talk.send(*([start + soup] if together else [start, soup] if soup else [start]))
        talk.goodbye()
    heard(talk)
    for seen in origin.seen:
        assert seen.start.split()[1] in ("/a", "/after")
        assert b"mine" not in seen.head + seen.trailers
    well_behaved(play)


ANSWER_SOUP = st.lists(
    st.one_of(
        st.sampled_from(
            [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 X\r\n",
             b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 200 OK\r\n", b"Content-Length: 5\r\n",
             b"Content-Length: 40\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"hello",
             b"5\r\nhello\r\n", b"0\r\n\r\n", b"Content-Encoding: gzip\r\n", SECRET.encode(),
             SECRET[:9].encode(), SECRET[9:].encode(), b"X: " + SECRET.encode() + b"\r\n", b"\n"]
        ),
        st.binary(max_size=12),
    ),
    max_size=14,
).map(b"".join)  # fmt: skip


@BOUNDED
@given(soup=ANSWER_SOUP)
def test_answers_at_random(play: tuple[Stage, Mirror], soup: bytes) -> None:
    """I7: however an origin answers, the secret is not in what the client reads."""
    stage, origin = play
    origin.reply = soup or b"x"
    talk = stage.visit()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        talk.send(get("/a"))
        talk.sock.settimeout(0.05)
    data = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
        while piece := talk.sock.recv(65536):
            data += piece
    talk.close()
    assert SECRET.encode() not in data
    stage.drop_kept()
    well_behaved(play)


def real_hello(stage: Stage) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = stage.client_context().wrap_bio(incoming, outgoing, server_hostname="ok.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@BOUNDED
@given(data=st.data())
def test_hellos_at_random(play: tuple[Stage, Mirror], data: st.DataObject) -> None:
    """I4: a changed, cut or repeated hello ends in an alert, a close, or a handshake."""
    stage, _ = play
    hello = bytearray(real_hello(stage))
    for _ in range(data.draw(st.integers(0, 6))):
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip" if hello:
                hello[data.draw(st.integers(0, len(hello) - 1))] ^= data.draw(st.integers(1, 255))
            case "cut":
                del hello[data.draw(st.integers(0, len(hello))) :]
            case "insert":
                at = data.draw(st.integers(0, len(hello)))
                hello[at:at] = data.draw(st.binary(max_size=16))
            case _:
                hello += hello[:64]
    plain = stage.namespace.connect("ok.example")
    with plain, contextlib.suppress(ConnectionError):
        plain.sendall(bytes(hello))
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65536):
            pass
    well_behaved(play)


def test_two_gibibytes_each_way_pass_in_little_memory(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I9."""
    block = bytes(256 * 1024)
    taken: list[int] = []

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        request = Message(talk.until(END))
        buffer, total = memoryview(bytearray(len(block))), len(talk._buffer)
        if request.start.startswith("GET"):
            talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(BULK // len(block)):
                talk.send(b"%x\r\n" % len(block), block, b"\r\n")
            talk.send(b"0\r\n\r\n")
            return
        while total < BULK:
            total += sock.recv_into(buffer)
        taken.append(total)
        talk.send(ok(b"thanks", b"Connection: close"))

    with serving(handler, tls) as server, set_up(authority) as stage:
        stage.open(service("own", "ok.example"), LIMITS, ok_example=server)
        down = stage.ask(get("/down", "Connection: close"))
        peak = Peak()
        buffer, total = memoryview(bytearray(len(block))), 0
        while count := down.sock.recv_into(buffer):
            total += count
        assert BULK <= total < BULK + 64 * MIB
        up = stage.ask(head("POST", "/up", f"Content-Length: {BULK}"))
        for _ in range(BULK // len(block)):
            up.sock.sendall(block)
        assert up.answer().body == b"thanks"
        assert taken == [BULK]
        assert peak.grown < FLAT
