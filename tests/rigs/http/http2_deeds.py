"""What holds of a machine of HTTP/2 whatever came, and what a gateway may do to it at any time.

For tests that feed arbitrary frames: hypothesis's and the fuzzers'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.http.frames import ConnectionFault
from keyhole.http.http2_server import Http2Server
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    EXTRA_WINDOW,
    MAX_FORGOTTEN,
    MAX_STREAMS,
    STREAM_WINDOW,
)
from keyhole.model.errors import Misuse
from tests.rigs.http.http2 import NOPE, OK

if TYPE_CHECKING:
    from keyhole.http.http2_client import Http2Client
    from tests.rigs.http.http2 import ClientTalk, ServerTalk

DEEDS = (
    "begin", "data", "end", "reply", "reset", "pause", "unpause", "resume", "refill", "interim",
)  # fmt: skip


def check_bounds(machine: Http2Server | Http2Client) -> None:
    """I9: whatever came."""
    assert len(machine.streams) <= MAX_STREAMS
    assert len(machine._forgotten) <= MAX_FORGOTTEN
    assert machine._waiting.keys() <= machine.streams.keys()
    held = sum(each.held_size for each in machine.streams.values())
    assert held == machine._count_held <= MAX_STREAMS * STREAM_WINDOW + EXTRA_WINDOW
    extra = sum(each.span - STREAM_WINDOW for each in machine.streams.values())
    assert extra + machine._spare.left == EXTRA_WINDOW
    assert all(len(each.held or b"") <= each.held_size for each in machine.streams.values())
    assert machine._window <= CONNECTION_WINDOW
    assert not any(
        each.pending is None for each in map(machine.streams.get, machine._waiting) if each
    )


def take_step(talk: ServerTalk | ClientTalk, step: bytes | tuple[str, int]) -> None:
    """Bytes of the peer, or a deed for a stream. Nothing but a fault of the connection is raised,
    and a peer cannot make us break the protocol."""
    machine = talk.machine
    try:
        if isinstance(step, bytes):
            machine.receive(memoryview(step))
            while machine.behind:
                machine.read_on()
        elif isinstance(machine, Http2Server):
            talk.sent(serve(machine, *step))
        else:
            talk.sent(ask(machine, *step))
    except ConnectionFault as fault:
        check_bounds(machine)
        talk.sent(machine.fail(fault))
    except Misuse:
        if isinstance(step, bytes):
            raise
    talk.sent()
    check_bounds(machine)


def serve(machine: Http2Server, deed: str, number: int) -> bytes:
    """What a gateway may do at any time; some of it is a fault at that moment."""
    if deed == "begin":
        return machine.begin_response(number, OK, [b"A: b\r\n"], -1)
    if deed == "data":
        return machine.send_data(number, bytes(40_000))
    if deed == "end":
        return machine.end_response(number, b"X-Sum: 1\r\n")
    if deed == "reply":
        return machine.send_reply(number, NOPE)
    if deed == "interim":
        return machine.send_interim(number, b"HTTP/1.1 103 Early Hints\r\n")
    return do(machine, deed, number)


def ask(machine: Http2Client, deed: str, number: int) -> bytes:
    """The same of a client's machine."""
    if deed == "data":
        return machine.send_data(number, bytes(40_000))
    if deed == "end":
        return machine.end_request(number)
    return do(machine, deed, number)


def do(machine: Http2Server | Http2Client, deed: str, number: int) -> bytes:
    """The same of both sides."""
    if deed == "reset":
        return machine.reset(number)
    if deed == "refill":
        machine.refill()
    elif deed in {"pause", "unpause", "resume"}:
        getattr(machine, deed)(number)
    return b""
