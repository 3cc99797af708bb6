"""Bytes to the control socket: strict, bounded, and never the end of the server (I9)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keyhole.control import connection, server, values
from keyhole.control.operation_table import OPERATIONS, Operation
from keyhole.control.request import MAX_BODY, MAX_HEAD, RequestBuffer, read_json
from keyhole.control.responses import ApiError, RequestRejected
from keyhole.model.errors import Unparsable
from tests.rigs.control.rig import ASK, KNOWN, Rig, drain, open_descriptors, request, status_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRANT = b'{"host":"a.example","seconds":1,"uses":1}'
GRANTS = f"/v1/sessions/{KNOWN}/grants"


def why(answer: bytes) -> str:
    found: str = json.loads(answer.partition(b"\r\n\r\n")[2])["why"]
    return found


# ── heads ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/status HTTP/1.0\r\nHost: keyhole\r\n\r\n",
        b"GET /v1/status HTTP/2.0\r\nHost: keyhole\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\nHost: keyhole\r\n\r\n",
        b"GET http://keyhole/v1/status HTTP/1.1\r\nHost: keyhole\r\n\r\n",
        b"GET  /v1/status HTTP/1.1\r\nHost: keyhole\r\n\r\n",
        b"GET /v1/status HTTP/1.1\nHost: keyhole\n\n",
        b"GET /v1/status HTTP/1.1\r\nHost : keyhole\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\n folded\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\nContent-Length: 1\r\n\r\nx",
        b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\n\r\nGET /v1/status HTTP/1.1\r\n",
        b"GET /v1/status?x=1 HTTP/1.1\r\nHost: keyhole\r\n\r\n",
        b"GET /v1/status? HTTP/1.1\r\nHost: keyhole\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_head_that_is_not_plain_is_refused(rig: Rig, sent: bytes) -> None:
    assert status_of(rig.talk(sent)) == 400
    assert status_of(rig.talk(request("GET", "/v1/status"))) == 200


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("Transfer-Encoding: chunked\r\n", "not in chunks"),
        ("Transfer-Encoding: gzip, chunked\r\n", "chunked"),
        (f"Content-Length: {len(GRANT)}\r\nExpect: 100-continue\r\n", "Expect"),
        (f"Content-Length: {len(GRANT)}\r\nContent-Length: {len(GRANT)}\r\n", "at most one"),
        (f"Content-Length: {len(GRANT)}\r\nTransfer-Encoding: chunked\r\n", "either"),
        (f"Content-Length: +{len(GRANT)}\r\n", "plain number"),
        (f"Content_Length: {len(GRANT)}\r\n", "almost the name"),
        ("", "takes a body"),
    ],
)
def test_only_the_plainest_framing_is_taken(rig: Rig, extra: str, said: str) -> None:
    head = f"Host: keyhole\r\nContent-Type: application/json\r\n{extra}"
    answer = rig.talk(request("POST", GRANTS, head=head) + GRANT)
    assert status_of(answer) == 400
    assert said in why(answer)
    assert not rig.gateway.calls
    assert status_of(rig.talk(request("POST", GRANTS, GRANT))) == 200


@pytest.mark.parametrize("kind", ["", "Content-Type: text/plain\r\n",
                                  "Content-Type: application/json; charset=utf-16\r\n",
                                  "Content-Type: application/dns-json\r\n"])  # fmt: skip
def test_a_body_is_json_and_says_so(rig: Rig, kind: str) -> None:
    head = f"Host: keyhole\r\nContent-Length: {len(GRANT)}\r\n{kind}"
    answer = rig.talk(request("POST", GRANTS, head=head) + GRANT)
    assert status_of(answer) == 400
    assert "Content-Type" in why(answer)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=51", "limit=+1", "limit=01", "limit=1&limit=1", "limit", "after=",
              "after=x", "x=1", "limit=1&", "&limit=1", "%6cimit=1", "limit=%31",
              "limit=" + "1" * 65]
)  # fmt: skip
def test_a_query_has_known_names_once_in_one_spelling(rig: Rig, query: str) -> None:
    assert status_of(rig.talk(request("GET", f"/v1/sessions?{query}"))) == 400
    assert status_of(rig.talk(request("GET", f"/v1/sessions?limit=1&after={KNOWN}"))) == 200


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"host":"a.example","seconds":1}',
        b'{"host":"a.example","seconds":1,"uses":1,"forever":true}',
        b'{"host":"a.example","seconds":1,"uses":1,"uses":1}',
        b'{"host":"a.example","seconds":1,"seconds":86400,"uses":1}',
        b'{"host":"a.example","seconds":1.0,"uses":1}',
        b'{"host":"a.example","seconds":1e3,"uses":1}',
        b'{"host":"a.example","seconds":true,"uses":1}',
        b'{"host":"a.example","seconds":"1","uses":1}',
        b'{"host":"a.example","seconds":0,"uses":1}',
        b'{"host":"a.example","seconds":-1,"uses":1}',
        b'{"host":"a.example","seconds":86401,"uses":1}',
        b'{"host":"a.example","seconds":1,"uses":10001}',
        b'{"host":"a.example","seconds":NaN,"uses":1}',
        b'{"host":"a.example","seconds":Infinity,"uses":1}',
        b'{"host":"a.example","seconds":' + b"9" * 5000 + b',"uses":1}',
        b'{"host":"*.example.org","seconds":1,"uses":1}',
        b'{"host":"10.0.0.1","seconds":1,"uses":1}',
        b'{"host":"a.example:0","seconds":1,"uses":1}',
        b'{"host":"a\\u0000.example","seconds":1,"uses":1}',
        b'{"host":"\\ud800","seconds":1,"uses":1}',
        b'{"host":["a.example"],"seconds":1,"uses":1}',
        b'{"host":"a.example","seconds":1,"uses":1} {}',
        b'\xef\xbb\xbf{"host":"a.example","seconds":1,"uses":1}',
        '{"host":"a.example","seconds":1,"uses":1}'.encode("utf-16"),
        b"\xff",
        b"[" * MAX_BODY,
        b'{"a":' * (MAX_BODY // 5),
    ],
)
def test_a_body_of_another_shape_is_refused(rig: Rig, body: bytes) -> None:
    answer = rig.talk(request("POST", GRANTS, body))
    assert status_of(answer) == 400
    assert not rig.gateway.calls
    assert status_of(rig.talk(request("POST", GRANTS, GRANT))) == 200


def test_the_refusal_does_not_repeat_what_was_sent(rig: Rig) -> None:
    """I1: a secret that a person pasted into the wrong place is not in an answer or a log."""
    for body in (b'{"ghp_secret":1}', b'{"host":"ghp_secret","seconds":1,"uses":[]}'):
        answer = rig.talk(request("POST", GRANTS, body))
        assert status_of(answer) == 400
        assert b"ghp_secret" not in answer


def test_duplicate_members_are_refused_at_any_depth() -> None:
    with pytest.raises(Unparsable, match="twice"):
        read_json(b'[{"a":{"b":1,"b":1}}]')
    assert read_json(b'[{"a":{"b":1}},{"a":2}]') == [{"a": {"b": 1}}, {"a": 2}]


# ── sizes and times ───────────────────────────────────────────────────────────────────────────────


def test_a_head_has_a_bound(rig: Rig) -> None:
    head = f"Host: keyhole\r\nX: {'x' * (MAX_HEAD - 100)}\r\n"
    assert status_of(rig.talk(request("GET", "/v1/status", head=head))) == 200
    head = f"Host: keyhole\r\nX: {'x' * MAX_HEAD}\r\n"
    assert status_of(rig.talk(request("GET", "/v1/status", head=head))) == 413
    assert status_of(rig.talk(b"G" * (MAX_HEAD + 1))) == 413


def test_a_body_has_a_bound_and_is_refused_before_it_comes(rig: Rig) -> None:
    answer = rig.talk(request("POST", GRANTS, GRANT.ljust(MAX_BODY)))
    assert status_of(answer) == 200
    head = f"Host: keyhole\r\nContent-Type: application/json\r\nContent-Length: {MAX_BODY + 1}\r\n"
    assert status_of(rig.talk(request("POST", GRANTS, head=head))) == 413


def test_a_flood_of_a_body_gets_its_answer_and_costs_nothing(rig: Rig) -> None:
    begun = time.monotonic()
    answer = rig.talk(request("POST", GRANTS, b"x" * (64 * 1024 * 1024)))
    assert status_of(answer) == 413
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\n",
                                  request("POST", GRANTS, GRANT)[:-1]])  # fmt: skip
def test_a_slow_sender_is_told_and_cut(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "RECEIVE_SECONDS", 0.05)
    with rig.connect() as sock:
        sock.sendall(sent)
        answer = drain(sock)
    assert status_of(answer) == 408
    rig.settled()


def test_a_sender_of_a_byte_at_a_time_does_not_gain_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is the request's, not that of the silence within it."""
    monkeypatch.setattr(connection, "RECEIVE_SECONDS", 0.2)
    whole = request("GET", "/v1/status", head=f"Host: keyhole\r\nX: {'x' * 4000}\r\n")
    begun = time.monotonic()
    with rig.connect() as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in whole:
                sock.sendall(bytes([byte]))
                time.sleep(0.001)  # the attack itself, not a wait for something
        assert status_of(drain(sock)) == 408
    assert time.monotonic() - begun < 10


def test_a_slow_reader_is_cut(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SEND_SECONDS", 0.1)
    rig.gateway.samples = 10_000
    with rig.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(request("GET", "/v1/metrics"))
        rig.settled()
        assert len(drain(sock)) < 500_000
    assert len(rig.client.metrics()) > 500_000


def test_a_half_closed_peer_is_answered(rig: Rig) -> None:
    assert status_of(rig.talk(request("GET", "/v1/status"), end=True)) == 200
    assert status_of(rig.talk(b"GET /v1/status HTTP/1.1\r\n", end=True)) == 400
    assert rig.talk(b"", end=True) == b""


def test_one_connection_is_for_one_request(rig: Rig) -> None:
    with rig.connect() as sock:
        sock.sendall(request("GET", "/v1/status"))
        assert b"Connection: close\r\n" in drain(sock)
        with pytest.raises(BrokenPipeError):
            sock.sendall(request("GET", "/v1/status"))


def test_idle_connections_fill_their_places_and_the_next_waits_for_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: beyond the bound the kernel's queue holds them; when one ends, the next is served."""
    monkeypatch.setattr(server, "MAX_CONVERSATIONS", 4)
    idle = [rig.connect() for _ in range(4)]
    until(lambda: rig.call(lambda: len(rig.server._conversations)) == 4)
    late = rig.connect()
    late.sendall(request("GET", "/v1/status"))
    rig.call(lambda: None)
    assert rig.call(lambda: len(rig.server._conversations)) == 4
    idle[0].close()
    assert status_of(late.recv(65536)) == 200
    for sock in (*idle, late):
        sock.close()
    rig.settled()
    assert rig.client.status()


def test_many_at_once_are_all_answered(rig: Rig) -> None:
    answered: list[str] = []

    def ask() -> None:
        answered.extend(rig.client.status().version for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == 16 * 20


@pytest.mark.alone
def test_the_loop_goes_on_while_requests_of_every_size_come(rig: Rig) -> None:
    """What else the loop has to do waits for some milliseconds at most: of its own work, so that
    a busy machine does not count. Each request has five rounds, of which the best counts: a core
    that is shared with others makes CPU time longer, too, and a fault would show in all of them."""
    rig.gateway.ids = [f"{number:012x}" for number in range(500)]
    rig.gateway.samples = 10_000
    gaps = [0.0]
    stop = False

    async def tick() -> None:
        last = time.thread_time()
        while not stop:
            await asyncio.sleep(0)
            now = time.thread_time()
            gaps.append(now - last)
            last = now

    def longest(ask: Callable[[], object]) -> float:
        gaps[:] = [0.0]
        ask()
        seen = len(gaps)
        until(lambda: len(gaps) > seen + 1)  # the loop has gone on
        return max(gaps)

    ticking = asyncio.run_coroutine_threadsafe(tick(), rig.loop)
    for ask in (
        rig.client.sessions,
        rig.client.metrics,
        lambda: rig.talk(request("POST", GRANTS, b"[" * MAX_BODY)),
        lambda: rig.talk(request("POST", GRANTS, b'{"a":[' + b"0," * 30_000 + b"0]}")),
    ):
        assert min(longest(ask) for _ in range(5)) < 0.05, "it takes 4 ms on a quiet machine"
    stop = True
    ticking.result(20)


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────────

_WORDS = [b"GET", b"POST", b"DELETE", b" ", b"/v1/", b"status", b"sessions", b"metrics", b"?",
          b"limit=1", b" HTTP/1.1", b"\r\n", b"\n", b"\r\n\r\n", b"Host: keyhole", b"Host:",
          b"Content-Length: ", b"41", b"0", b"-1", b"99999999999", b"Transfer-Encoding: chunked",
          b"Content-Type: application/json", b"{", b"}", b'"host":', b'"a.example"', b",", b"[",
          KNOWN.encode(), b"/grants", GRANT, b"\0", b"\xff", b":"]  # fmt: skip
_BYTES = st.one_of(
    st.binary(max_size=400),
    st.lists(st.one_of(st.sampled_from(_WORDS), st.binary(max_size=4)), max_size=25).map(b"".join),
    st.builds(
        lambda whole, at, put: whole[: at % len(whole)] + put + whole[at % len(whole) :],
        st.sampled_from([request("POST", GRANTS, GRANT), request("GET", "/v1/sessions?limit=2")]),
        st.integers(0, 500),
        st.binary(max_size=3),
    ),
)


@given(st.lists(_BYTES, min_size=1, max_size=4))
@example([b"GET /v1/status HTTP/1.1\r\nHost: keyhole\r\n\r\n"])
def test_the_reader_of_requests_only_ever_refuses(pieces: Sequence[bytes]) -> None:
    """Nothing but Rejected comes out of it, and how bytes are cut does not matter."""

    def outcome(parts: Sequence[bytes]) -> object:
        buffer = RequestBuffer()
        try:
            for part in parts:
                asked = buffer.feed(part)
                if asked is not None:
                    return asked.operation.name
        except RequestRejected as rejected:
            return rejected.problem
        return None

    whole = b"".join(pieces)
    first = outcome([whole])
    bytewise = outcome([whole[n : n + 1] for n in range(len(whole))])
    # What comes after a whole request is refused with it, or comes too late to be looked at.
    done = isinstance(bytewise, str)
    assert first == bytewise or (done and first is ApiError.MALFORMED)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(_BYTES, min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=6), st.booleans()
)
def test_any_bytes_and_descriptors_get_a_bounded_answer_and_leave_nothing(
    rig: Rig, pieces: list[bytes], which: list[int], hang_up: bool
) -> None:
    """I9: never an exception, a bounded answer or a close, and as many descriptors as before."""
    rig.settled()
    before = open_descriptors()
    with (
        socket.socket() as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        open(os.devnull, "rb") as null,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        kinds = [tcp.fileno(), udp.fileno(), null.fileno(), unix.fileno()]
        rights = array.array("i", [kinds[each] for each in which])
        with rig.connect() as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                sock.sendmsg([pieces[0] or b"x"], beside)
                for piece in pieces[1:]:
                    sock.sendall(piece)
                if not hang_up:
                    sock.shutdown(socket.SHUT_WR)
            if not hang_up:
                answer = drain(sock)
                assert len(answer) < 100_000
                assert not answer or answer.startswith(b"HTTP/1.1 ")
    rig.settled()
    rig.gateway.close()
    assert open_descriptors() == before
    assert not rig.faults


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(OPERATIONS), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["host", "seconds", "uses", "policy", "trusted", "label", "door"])
        | st.text(max_size=5), inner, max_size=5), max_leaves=10))  # fmt: skip
def test_any_json_to_any_operation_is_refused_or_done(
    rig: Rig, operation: Operation, value: object
) -> None:
    path = operation.path.format(id=KNOWN, name="github", ask=ASK.id)
    answer = rig.talk(request(operation.method, path, json.dumps(value).encode()))
    assert status_of(answer) in (200, 204, 400, 404, 409)
    rig.gateway.close()
    rig.gateway.calls.clear()
    assert not rig.faults


def test_the_values_that_the_fuzzers_reach_are_those_of_a_person(rig: Rig) -> None:
    """The positive control of the fuzzers: the request that they mutate is done."""
    assert status_of(rig.talk(request("POST", GRANTS, GRANT))) == 200
    (call,) = rig.gateway.calls
    assert isinstance(call[2], values.GrantRequest)
