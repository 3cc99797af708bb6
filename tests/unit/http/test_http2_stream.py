"""What a stream and a connection of HTTP/2 weigh while nothing happens on them."""

from __future__ import annotations

import tracemalloc

import pytest

from keyhole.http.http2_client import Http2Client
from keyhole.http.http2_server import Http2Server
from keyhole.http.http2_stream import MAX_STREAMS, Http2Stream
from keyhole.http.request import RequestReader, Treatment
from tests.rigs.http.http2 import KEY, PREFACE, ServerTalk, get, post, settings

CONNECTIONS = 50


@pytest.fixture
def weighed() -> ServerTalk:
    """A handler of requests; everything that is made once was made."""
    return ServerTalk.greeted()


def test_a_stream_that_waits_weighs_little(weighed: ServerTalk) -> None:
    """I9: a hundred of them are a few pages."""
    machine = weighed.machine
    heads = [memoryview(post(number)) for number in range(1, 2 * MAX_STREAMS, 2)]
    tracemalloc.start()
    for head in heads:
        machine.receive(head)
    weight, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(machine.streams) == MAX_STREAMS
    assert weight / MAX_STREAMS < 4096  # the head that the rig keeps is in it


def test_a_connection_that_waits_weighs_little(weighed: ServerTalk) -> None:
    """I9."""
    reader = RequestReader("ok.example", 443, lambda _: Treatment.KEEP, {})
    tracemalloc.start()
    kept: list[Http2Server | Http2Client] = []
    for _ in range(CONNECTIONS):
        server = Http2Server(reader, weighed, lambda: KEY)
        server.receive(memoryview(PREFACE + settings() + get()))
        server.reset(1)
        client = Http2Client({})
        client.receive(memoryview(settings()))
        client.take()
        kept += (server, client)
    weight, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert weight / len(kept) < 8192


def test_a_stream_has_no_place_for_more() -> None:
    with pytest.raises(AttributeError):
        Http2Stream(1, 0).other = 1  # type: ignore[attr-defined]
