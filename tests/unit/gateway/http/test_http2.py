"""Clients of HTTP/2 as conversations: every duty of HTTP/1.1 for each stream, and no stream for
another's."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, cast

import pytest

from keyhole.gateway.http.patience import HEAD_TIMEOUT
from keyhole.gateway.http.stream import MAX_KEPT, UNREAD_RETRIES
from keyhole.gateway.session import MAX_SPARE_WINDOW
from keyhole.gateway.turn import UNBOUNDED, Turn
from keyhole.gateway.upstream.inquiry import Questions
from keyhole.gateway.upstream.pool import IDLE_ORIGIN, MAX_SHARED_ORIGINS, OriginPool
from keyhole.http.frames import Code, Setting
from keyhole.http.http2_stream import MAX_STREAMS, STREAM_WINDOW
from keyhole.model.errors import UpstreamFailed
from keyhole.model.event import EventKind
from keyhole.wire.websocket import accept_for
from tests.rigs.gateway.http2 import Http2Talk
from tests.rigs.gateway.stage import SECRET, STAND_IN, forge, service
from tests.rigs.gateway.talk import ok
from tests.rigs.http.http2 import (
    data,
    get,
    goaway,
    headers,
    ping,
    post,
    request,
    rst,
    settings,
    status,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.gateway.upstream.http2 import Http2Origin
    from keyhole.gateway.upstream.origin import OriginConnection

WEBSOCKETS = service("own", "ok.example", allow="GET,WEBSOCKET /**")
SMUGGLED = b"DELETE /all HTTP/1.1\r\nHost: ok.example\r\nAuthorization: mine\r\n\r\n"
CORP = service("own", "ok.example", inject='{ header = "X-Corp", value = "{secret}" }')


class Postponed(Turn):
    """The turn of a session that a test gives."""

    def __init__(self) -> None:
        self.left = 1.0
        self.work: list[Callable[[], None]] = []

    def later(self, work: Callable[[], None]) -> None:
        self.work.append(work)


def connect(stream: int = 1) -> bytes:
    return headers(stream, request((":protocol", "websocket"), method="CONNECT"), end=False)


def switching(heard: bytes) -> bytes:
    """The right answer to a handshake."""
    lines = [each.partition(b": ") for each in heard.split(b"\r\n")]
    (key,) = (value for name, _, value in lines if name == b"sec-websocket-key")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept_for(key)
    )


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_each_stream_is_judged_and_gets_the_credential(protocol: str) -> None:
    """I3, I6."""
    policy = service("own", "ok.example", allow="GET /v1/**")
    talk = Http2Talk(policy, origin_protocol=protocol)
    mine = ("authorization", f"Bearer {STAND_IN}")
    heard = talk.says(get(1, mine, path="/v1/a"), get(3, mine, path="/v2/b"))
    assert heard[0].startswith("3 HEADERS :status=403 ")
    if protocol:
        (up,) = talk.origin_hears()
        assert up.count("authorization=") == 1
        assert f"authorization=Bearer {SECRET} END" in up
        heard = talk.origin_says(settings(), status(1), data(1, b"hi", end=True))
    else:
        up = talk.origin.heard().decode()
        assert up.lower().count("authorization:") == 1
        assert f"Authorization: Bearer {SECRET}\r\n" in up
        heard = talk.origin_says(ok(b"hi"))
    assert "/v1/a" in up
    assert heard == ["1 HEADERS :status=200 content-length=2", "1 DATA hi END"]
    assert talk.reasons == ["no-rule", "rule"]
    assert talk.is_at_rest()


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_over_any_frames_is_replaced(cut: int) -> None:
    """I7: in fields, data and trailers."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(get(1))
    heard = talk.origin_says(settings(), status(1, ("x-echo", f"a{SECRET}b")))
    for piece in (SECRET[:cut], SECRET[cut:]):
        heard += talk.origin_says(data(1, piece.encode()))
    heard += talk.origin_says(headers(1, [("x-end", SECRET)]))
    said = "".join(each.partition("DATA ")[2] for each in heard)
    assert said == STAND_IN
    assert heard[0].endswith(f"x-echo=a{STAND_IN}b")
    assert heard[-1] == f"1 HEADERS x-end={STAND_IN} END"
    assert talk.reasons == ["rule", "secret-scrubbed"]
    assert talk.is_at_rest()


def test_a_request_that_announces_no_body_may_end_later() -> None:
    talk = Http2Talk()
    talk.says(headers(1, request(("content-length", "0"), method="POST"), end=False))
    assert talk.says(data(1, b"", end=True)) == []
    assert talk.origin.heard().endswith(b"Content-Length: 0\r\n\r\n")
    assert talk.origin_says(ok(b"hi"))[-1] == "1 DATA hi END"
    assert talk.is_at_rest()


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_fields_may_follow_a_body_that_has_announced_its_length(protocol: str) -> None:
    """HTTP/1.1 has no place for them, and gets the body alone."""
    talk = Http2Talk(origin_protocol=protocol)
    length = ("content-length", "2")
    talk.says(post(1, length), data(1, b"h"), data(1, b"i"))
    if protocol:
        assert talk.origin_hears()[1:] == ["1 DATA hi"]
        talk.says(headers(1, [("x-sum", "1")]))
        assert talk.origin_hears() == ["1 HEADERS x-sum=1 END"]
        # The control: a body that ends with its last byte needs no further frame.
        talk.says(post(3, length), data(3, b"hi", end=True))
        assert talk.origin_hears()[1:] == ["3 DATA hi END"]
        talk.says(post(5, length), data(5, b"hi"))
        assert talk.origin_hears()[1:] == ["5 DATA hi"]
        talk.says(data(5, b"", end=True))
        assert talk.origin_hears() == ["5 DATA  END"]
        return
    talk.says(headers(1, [("x-sum", "1")]))
    assert talk.origin.heard().endswith(b"Content-Length: 2\r\n\r\nhi")
    assert talk.origin_says(ok(b"hi"))[-1] == "1 DATA hi END"
    assert talk.is_at_rest()


def test_a_session_has_one_allowance_for_the_windows_of_all_its_clients() -> None:
    """I9: what waits for a slow origin is bounded, however many connections a client opens."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(post(1))
    talk.origin_says(settings((Setting.INITIAL_WINDOW_SIZE, 1 << 20)), window(0, 1 << 20))
    for _ in range(20):
        talk.says(data(1, bytes(16384)))
    spent = MAX_SPARE_WINDOW - talk.state.spare_window.left
    assert spent == talk.http2.machine.streams[1].span - STREAM_WINDOW > 0
    talk.client.ends()
    assert talk.state.spare_window.left == MAX_SPARE_WINDOW


def test_streams_that_are_refused_are_written_down_together() -> None:
    """I8, I9: a client that opens thousands of streams makes one line between two sweeps."""
    talk = Http2Talk(origin_protocol="h2")
    for number in range(1, 2 * MAX_STREAMS + 7, 2):
        talk.says(get(number))
    assert talk.reasons == []
    for _ in range(2):
        talk.connection.sweep(talk.clock.now, 900.0)
    (event,) = talk.audit
    assert (event.kind, event.reason, event.rule) == ("limit", "over-limit", "http2.streams")
    assert event.details == (("streams", 3),)
    talk.says(get(2 * MAX_STREAMS + 7))
    talk.client.ends()
    assert talk.audit[1].details == (("streams", 1),)


def test_a_reset_reaches_the_origin_behind_the_head_that_it_ends() -> None:
    """A reset of a stream that the origin does not know would end the requests of all others."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(get(1), post(3), data(3, b"hello"), rst(3))
    up = [each.split()[:2] for each in talk.origin_hears()]
    assert up == [["1", "HEADERS"], ["3", "HEADERS"], ["3", "DATA"], ["3", "RST"]]
    assert talk.reasons == ["client-left"]
    heard = talk.origin_says(settings(), status(1), data(1, b"hi", end=True))
    assert heard[-1] == "1 DATA hi END"
    assert talk.is_at_rest()


@pytest.mark.parametrize("properly", [True, False])
def test_responses_that_came_before_an_origin_closed_are_passed_on(properly: bool) -> None:
    """They may be more than are read in one turn. Control: one that is missing its end."""
    talk = Http2Talk(origin_protocol="h2")
    talk.state.turn = turn = Postponed()
    numbers = range(1, 81, 2)
    for number in (*numbers, 81):
        talk.says(get(number))
    origin = cast("Http2Origin", talk.origins[-1].user)
    whole = [status(number) + data(number, b"hi", end=True) for number in numbers]
    origin.received(memoryview(b"".join((settings(), *whole, status(81)))))
    assert origin.machine.behind
    talk.origins[-1].ends(properly=properly)
    while turn.work:
        turn.work.pop()()
    heard = talk.hears()
    for number in numbers:
        assert f"{number} DATA hi" in {each.removesuffix(" END") for each in heard}
        assert [each for each in heard if each.startswith(f"{number} ")][-1].endswith("END")
    assert heard[-1] == "81 RST INTERNAL_ERROR"
    assert talk.is_at_rest()


def test_a_whole_response_that_waits_for_its_client_outlives_the_origins_connection() -> None:
    talk = Http2Talk(origin_protocol="h2")
    talk.says(settings((Setting.INITIAL_WINDOW_SIZE, 1)), get(1), get(3))
    talk.origin_says(settings(), status(1), data(1, b"he"))
    talk.origin_says(data(1, b"llo", end=True), status(3), data(3, b"x"))
    talk.origins[-1].ends()
    assert "3 RST INTERNAL_ERROR" in talk.hears()
    assert talk.says(window(1, 9))[-1] == "1 DATA ello END"
    assert talk.is_at_rest()


@pytest.mark.parametrize(
    ("fields", "says", "ends"),
    [
        ((), False, True),
        ((), True, False),
        ((("content-type", "application/grpc"),), False, False),
    ],
    ids=["upload", "answered", "call"],
)
def test_an_upload_must_go_on_and_a_stream_of_both_sides_may_wait(
    fields: tuple[tuple[str, str], ...], says: bool, ends: bool
) -> None:
    """I9: a place cannot be held for a byte now and then; two sides that talk may be silent."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(headers(1, request(*fields, method="POST"), end=False), data(1, b"x"))
    if says:
        talk.origin_says(settings(), status(1))
    allowed = talk.state.limits.body_time
    for seconds in (0, allowed + 1):
        talk.connection.sweep(talk.clock.now + seconds, 10 * allowed)
    assert ("1 RST INTERNAL_ERROR" in talk.hears()) is ends
    assert ("client-slow" in talk.reasons) is ends


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_the_origin_left_unread_is_sent_again_some_times(method: str) -> None:
    """I9: of any method (RFC 9113 §8.7), by a connection each, and not for ever."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(headers(1, request(("content-length", "0"), method=method)))
    for attempt in range(1 + UNREAD_RETRIES):
        assert len(talk.origins) == 1 + attempt
        heard = talk.origin_hears()
        assert any(f":method={method}" in each for each in heard)
        if attempt == 2:
            break
        assert talk.origin_says(settings(), goaway(0)) == []
    heard = talk.origin_says(settings(), status(1), data(1, b"hi", end=True))
    assert heard[-1] == "1 DATA hi END"
    talk.says(get(3))
    for _ in range(UNREAD_RETRIES):
        assert talk.origin_says(settings(), goaway(1 if len(talk.origins) == 3 else 0)) == []
    assert talk.origin_says(settings(), goaway(0))[0].startswith("3 HEADERS :status=502 ")
    assert len(talk.origins) == 3 + UNREAD_RETRIES


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "under way"])
@pytest.mark.parametrize(
    "leaves", [goaway(0), rst(1, Code.REFUSED_STREAM)], ids=["leaves", "refuses"]
)
@pytest.mark.parametrize("length", [(), (("content-length", "8"),)], ids=["", "with a length"])
def test_a_short_body_is_sent_again_when_the_origin_has_not_read_it(
    length: tuple[tuple[str, str], ...], leaves: bytes, ended: bool
) -> None:
    """RFC 9113 §8.7: any request may be, whatever its method."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(post(1, *length), data(1, b"body"))
    if ended:
        talk.says(data(1, b", it"), data(1, b"", end=True))
    talk.origin_hears()
    counted = talk.state.up
    assert talk.origin_says(settings(), leaves) == []
    if not ended:
        talk.says(data(1, b", it", end=True))
        counted += len(b", it")
    assert talk.state.up == counted
    up = [each for each in talk.origin_hears() if " DATA " in each]
    assert "".join(each.split("DATA ")[1] for each in up).replace(" END", "") == "body, it"
    assert up[-1].endswith(" END")
    number = int(up[-1].split()[0])
    heard = talk.origin_says(settings(), status(number), data(number, b"hi", end=True))
    assert heard[-1] == "1 DATA hi END"
    assert talk.reasons == ["rule"]
    assert talk.is_at_rest()


@pytest.mark.parametrize("size", [MAX_KEPT, MAX_KEPT + 1])
def test_a_long_body_is_not_kept(size: int) -> None:
    """I9: what is kept of each request is bounded."""
    talk = Http2Talk(origin_protocol="h2")
    body = b"x" * size
    talk.says(post(1), data(1, body[:9]), data(1, body[9:-9]), data(1, body[-9:], end=True))
    heard = talk.origin_says(settings(), goaway(0))
    if size > MAX_KEPT:
        assert heard[0].startswith("1 HEADERS :status=502 ")
    else:
        assert heard == []
        again = [each.split()[2] for each in talk.origin_hears() if " DATA " in each]
        assert "".join(again).removesuffix("END").encode() == body


def test_a_request_with_trailers_is_not_sent_again() -> None:
    talk = Http2Talk(origin_protocol="h2")
    talk.says(post(1), data(1, b"body"), headers(1, [("x-sum", "1")]))
    assert talk.origin_says(settings(), goaway(0))[0].startswith("1 HEADERS :status=502 ")


# ── peers that do not read ────────────────────────────────────────────────────────────────────────


def is_paused(talk: Http2Talk) -> bool:
    return talk.client.paused


WIDE = settings((Setting.INITIAL_WINDOW_SIZE, 2**31 - 1)) + window(0, 2**30)


@pytest.mark.parametrize("path", ["/no", "/v1/x"])
def test_a_client_that_reads_nothing_is_read_no_further(path: str) -> None:
    """I9. Attack: windows of 2 GiB, a head at a time, and the answers stay in our buffer."""
    talk = Http2Talk(service("own", "ok.example", allow="GET /v1/**"), origin_protocol="h2")
    talk.says(WIDE)
    talk.client.slow = True
    talk.client.says(get(1, path=path))
    if path != "/no":
        talk.origin_says(settings(), status(1), data(1, b"hi", end=True))
    assert is_paused(talk)
    assert talk.state.busy == 1, "its place is not another's"
    talk.client.slow = False
    talk.http2.caught_up()
    assert not is_paused(talk)
    assert talk.is_at_rest()


@pytest.mark.parametrize("announced", [True, False])
def test_a_slow_client_gets_what_came_before_the_origin_reset_the_stream(announced: bool) -> None:
    """RFC 9113 §8.1. Without a length, it also learns that the response is not whole."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(WIDE, post(1))
    length = (("content-length", "5"),) if announced else ()
    talk.origin_says(settings(), status(1, *length))
    talk.client.slow = True
    assert talk.origin_says(data(1, b"a\n")) == ["1 DATA a\n"]
    assert talk.origin_says(data(1, b"bc\n"), rst(1, Code.NO_ERROR)) == []
    talk.client.slow = False
    talk.http2.caught_up()
    if announced:
        assert talk.hears()[0] == "1 DATA bc\n END"
        assert talk.reasons == ["rule"]
    else:
        assert talk.hears() == ["1 DATA bc\n", "1 RST INTERNAL_ERROR"]
        assert talk.reasons == ["rule", "upstream-closed"]
    assert talk.is_at_rest()


@pytest.mark.parametrize(("slow", "ended"), [(True, "aborted"), (False, "parted")])
def test_a_client_that_reads_nothing_for_too_long_is_cut(slow: bool, ended: str) -> None:
    """I9: it may have left, which nobody notices who does not read. Control: an idle one is told
    goodbye."""
    talk = Http2Talk(service("own", "ok.example", allow="GET /v1/**"))
    talk.client.slow = slow
    talk.says(get(1, path="/no"))
    for seconds in (0, talk.state.limits.body_time + 1):
        talk.connection.sweep(talk.clock.now + seconds, 3600)
    assert talk.client.ended == ended


def test_a_slow_origin_gets_no_further_request_and_is_given_up() -> None:
    """I9: heads would pile up for it. Control: it gets the first."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(get(1))
    talk.origins[0].slow = True
    talk.says(get(3))
    assert len(talk.origins) == 2
    pool = talk.host.pool
    for seconds in (1, 2, IDLE_ORIGIN + 3):
        pool.sweep(talk.clock.now + seconds)
    assert talk.origins[0].ended == "aborted"


def test_an_origin_that_refuses_every_stream_is_not_dialled_for_each() -> None:
    """I9."""
    talk = Http2Talk(origin_protocol="h2", limits="requests_per_second = 100000\n")
    talk.origins[0].says(settings())
    for number in range(1, 101, 2):
        talk.client.says(get(number))
        talk.origins[0].says(rst(number, Code.REFUSED_STREAM))
    assert len(talk.origins) <= MAX_SHARED_ORIGINS + 1
    assert sum(not each.ended for each in talk.origins) <= MAX_SHARED_ORIGINS + 1


@pytest.mark.parametrize("refusal", [rst(1, Code.REFUSED_STREAM), goaway(0)])
def test_a_question_is_repeated_once_at_most(refusal: bytes) -> None:
    """I9: a push asks its origin; one that refuses all streams would be dialled for ever."""
    talk = Http2Talk(origin_protocol="h2")
    before = len(talk.origins)

    async def ask() -> None:
        loop = asyncio.get_running_loop()

        async def connect() -> OriginConnection | Http2Origin:
            made = talk._connect(talk.host.origin)
            says = talk.origins[-1].says
            loop.call_soon(lambda: loop.call_soon(says, settings() + refusal))
            return made

        questions = Questions(
            connect, OriginPool(), talk.host.outbound.question, lambda _: True, UNBOUNDED
        )
        with pytest.raises(UpstreamFailed):
            async for _ in questions.ask("own", "GET", "/x", []):
                pass

    asyncio.run(ask())
    assert len(talk.origins) - before <= 2


def test_a_connection_of_http2_is_kept_as_long_as_one_of_http1() -> None:
    talk = Http2Talk(origin_protocol="h2")
    talk.says(get(1))
    talk.origin_says(settings(), status(1), data(1, b"hi", end=True))
    origin = cast("Http2Origin", talk.origins[-1].user)
    for seconds, closed in ((1, False), (IDLE_ORIGIN, False), (IDLE_ORIGIN + 2, True)):
        talk.host.pool.sweep(talk.clock.now + seconds)
        assert origin.closed is closed


def test_a_refused_body_leaves_no_clock() -> None:
    talk = Http2Talk(forge("own", "ok.example"))
    media = ("content-type", "application/vnd.git-lfs+json")
    talk.says(post(1, media, path="/acme/w.git/info/lfs/objects/batch"), data(1, b"x"))
    talk.http2.sweep(talk.http2.now() + 1, 600)
    talk.says(data(1, b"not json", end=True))
    assert talk.is_at_rest()


# ── WebSockets ────────────────────────────────────────────────────────────────────────────────────


def test_frames_wait_for_the_switch_also_when_the_origin_takes_more() -> None:
    """I4."""
    talk = Http2Talk(WEBSOCKETS)
    talk.says(connect(), data(1, SMUGGLED))
    head = talk.origin.heard()
    talk.origins[-1].user.caught_up()
    assert talk.origin.heard() == b""
    # The control: once it has switched, they go up.
    talk.origin_says(switching(head))
    assert talk.origin.heard() == SMUGGLED


def test_a_success_that_is_no_switch_is_not_taken_for_a_websocket() -> None:
    """RFC 8441 §5: the client reads frames behind every success."""
    talk = Http2Talk(WEBSOCKETS)
    talk.says(connect())
    assert talk.origin_says(ok(b"\x81\x02hi"))[0].startswith("1 HEADERS :status=502")
    assert talk.reasons == ["upstream-malformed"]


def test_a_websockets_dial_says_nothing_about_the_origins_version() -> None:
    talk = Http2Talk(WEBSOCKETS, origin_protocol="h2")
    talk.says(connect())
    assert not talk.host.pool._idle


def test_frames_reach_no_origin_that_has_not_switched() -> None:
    """I4: an origin that refuses a WebSocket would read them as a request that nobody judged."""
    talk = Http2Talk(WEBSOCKETS)
    assert talk.says(connect(), data(1, SMUGGLED)) == []
    assert talk.origin.heard().endswith(b"Upgrade: websocket\r\n\r\n")
    assert talk.says(data(1, SMUGGLED)) == []
    heard = talk.origin_says(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
    assert heard == ["1 HEADERS :status=403 content-length=2", "1 DATA no END", "1 RST NO_ERROR"]
    assert talk.origin.heard() == b""
    assert talk.origin.ended == "closed"
    assert talk.is_at_rest()


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_frames_that_are_sent_with_the_handshake_follow_it(protocol: str) -> None:
    """The control; and an origin of HTTP/2 is asked for a WebSocket by HTTP/1.1."""
    talk = Http2Talk(WEBSOCKETS, origin_protocol=protocol)
    talk.says(connect(), data(1, b"\x81\x81\0\0\0\0x"))
    heard = talk.origins[-1].heard()
    assert heard.startswith(b"GET /a HTTP/1.1\r\n")
    assert talk.origin_says(switching(heard)) == ["1 HEADERS :status=200"]
    assert talk.origins[-1].heard() == b"\x81\x81\0\0\0\0x"
    assert talk.origin_says(b"\x81\x02hi") == ["1 DATA \x81\x02hi"]
    assert talk.says(data(1, b"\x88\x80\0\0\0\0", end=True)) == ["1 DATA  END"]
    assert talk.origins[-1].ended == "closed"
    assert talk.is_at_rest()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["", "h2"])
@pytest.mark.parametrize(
    "frames",
    [
        get(1, ("x-long", "x" * 900)),
        post(1) + data(1, b"x" * 900),
        post(1) + data(1, b"x") + headers(1, [("x-long", "x" * 900)]),
    ],
)
def test_upload_over_its_limit_ends_the_stream_and_gives_all_back(
    frames: bytes, protocol: str
) -> None:
    """I9: in head, body and trailers. Another stream goes on."""
    limits = "requests_per_second = 100\nupload = '600B'\n"
    talk = Http2Talk(limits=limits, origin_protocol=protocol)
    heard = talk.says(frames)
    assert heard == ["1 RST INTERNAL_ERROR"]
    assert "over-limit" in talk.reasons
    assert talk.is_at_rest()
    talk.says(get(3))
    assert talk.origin_hears() if protocol else talk.origins[-1].heard()


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_a_collected_body_over_the_limit_ends_its_stream(protocol: str) -> None:
    """I9: it is counted when it is whole."""
    limits = "requests_per_second = 100\nupload = '300B'\n"
    talk = Http2Talk(forge("own", "ok.example"), limits=limits, origin_protocol=protocol)
    body = b'{"operation":"download","transfers":["basic"],"objects":[{"oid":"%b","size":3}]}'
    media = ("content-type", "application/vnd.git-lfs+json")
    ask = post(1, media, path="/acme/w.git/info/lfs/objects/batch")
    heard = talk.says(ask, data(1, body % (b"a" * 64), end=True))
    assert heard == ["1 RST INTERNAL_ERROR"]
    assert "over-limit" in talk.reasons
    assert talk.is_at_rest()


@pytest.mark.parametrize(
    "answer",
    [
        status(1, ("x-long", "x" * 900), code="103"),
        status(1, ("x-long", "x" * 900)),
        status(1) + data(1, b"x" * 900),
        status(1) + data(1, b"x") + headers(1, [("x-long", "x" * 900)]),
    ],
)
def test_download_over_its_limit_ends_the_stream_and_gives_all_back(answer: bytes) -> None:
    """I9: in an interim response, head, body and trailers."""
    limits = "requests_per_second = 100\ndownload = '600B'\n"
    talk = Http2Talk(limits=limits, origin_protocol="h2")
    talk.says(get(1))
    assert "1 RST INTERNAL_ERROR" in talk.origin_says(settings(), answer)
    assert "over-limit" in talk.reasons
    assert talk.is_at_rest()
    assert talk.origin_hears()[-1] == "1 RST CANCEL" or b"x-long" in answer
    talk.says(get(3))
    assert talk.origin_hears()[-1].startswith("3 HEADERS ")


def test_a_head_that_is_no_request_is_counted() -> None:
    """I8, I9."""
    talk = Http2Talk()
    long = ("x-long", "x" * 900)
    heard = talk.says(headers(1, request(long, authority="evil.example")))
    assert heard[0].startswith("1 HEADERS :status=400 ")
    assert heard[-1] == "1 RST PROTOCOL_ERROR"
    assert (talk.state.requested, talk.http.requests) == (1, 1)
    assert talk.state.up == talk.http.up > 900
    assert talk.reasons == ["http-malformed"]
    small = Http2Talk(limits="requests_per_second = 100\nupload = '600B'\n")
    assert small.says(headers(1, request(long, authority="evil.example"))) == [
        "1 RST INTERNAL_ERROR"
    ]
    assert small.reasons == ["http-malformed", "over-limit"]
    assert small.is_at_rest()


def test_many_windows_in_one_frame_cost_no_more_than_one() -> None:
    """I12."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(settings((4, 0)), window(0, 2**30))
    for number in range(1, 200, 2):
        talk.says(get(number))
        talk.origin_says(status(number), data(number, b"x" * 10, end=True))
    assert len(talk.http2.machine.streams) == 100
    flood = settings(*[(4, n % 2) for n in range(2_730)])
    began = time.process_time()
    talk.says(flood)
    assert time.process_time() - began < 0.02


def test_a_client_that_does_not_read_its_answers_is_not_asked_on() -> None:
    """I9, I12: a read holds thousands of requests; a few are answered in one turn, and no more
    when the answers are not taken."""
    policy = service("own", "ok.example", allow="GET /v1/**")
    flood = b"".join(get(number) for number in range(1, 200, 2))

    async def play() -> list[int]:
        talk = Http2Talk(policy)
        turn = talk.client.turn = Turn(asyncio.get_running_loop())
        talk.client.slow = True
        answered = [len(talk.says(flood))]
        for _ in range(5):
            await asyncio.sleep(0)
        answered.append(len(talk.hears()))
        assert talk.client.paused
        talk.client.slow = False
        talk.http2.caught_up()
        while turn.left <= 0:
            await asyncio.sleep(0)
            answered.append(len(talk.hears()))
        assert talk.is_at_rest()
        return answered

    answered = asyncio.run(play())
    assert 0 < answered[0] < 40
    assert answered[1] == 0
    assert sum(answered) == 200  # a head and a body each
    assert max(answered) == answered[0]


# ── time and windows ──────────────────────────────────────────────────────────────────────────────


def test_an_upload_may_take_longer_than_a_head() -> None:
    """A sweep always finds the beginning of some frame; only one that does not go on is late."""
    talk = Http2Talk()
    piece = data(1, b"x" * 100)
    talk.says(post(1), piece[:50])
    for _ in range(10):
        talk.clock.now += HEAD_TIMEOUT / 2
        talk.connection.sweep(talk.clock.now, 900.0)
        assert not talk.client.ended
        talk.says(piece[50:] + piece[:50])
    for _ in range(3):
        talk.connection.sweep(talk.clock.now, 900.0)
        talk.clock.now += HEAD_TIMEOUT / 2 + 1
    talk.connection.sweep(talk.clock.now, 900.0)
    assert talk.client.ended == "aborted"
    assert talk.state.busy == 0


def test_a_stream_that_catches_up_may_end_another_that_waits() -> None:
    talk = Http2Talk(service("own", "ok.example", inject=""), origin_protocol="h2", secrets={})
    talk.says(settings((4, 2**20)), get(1), get(3))
    piece = data(1, b"a" * 16384)
    talk.origin_says(settings(), status(1), piece, piece, piece, piece)
    assert talk.http2.machine.unsent == 1  # the first window of a connection is a byte less
    talk.origin_says(data(1, b"b" * 16384))  # held: the client is slow
    talk.origin_says(status(3), data(3, b"c" * 10, end=True))
    heard = talk.says(window(0, 1000))
    assert heard[0] == "1 DATA a"
    assert "3 DATA cccccccccc END" in heard
    heard += talk.says(window(0, 2**20))
    assert sum(each.count("b") for each in heard) == 16384
    talk.origin_says(data(1, b"", end=True))
    assert talk.is_at_rest()


# ── another policy ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_trailers_that_wait_are_judged_by_the_policy_that_is_in_force(protocol: str) -> None:
    """I6: a field that has become the credential's does not pass behind a body."""
    for change in (False, True):
        talk = Http2Talk(origin_protocol=protocol)
        talk.says(post(1))
        talk.origin.slow = True
        talk.says(data(1, b"hi"))
        talk.says(headers(1, [("x-corp", "attackers-own")]))
        if change:
            talk.change(CORP)
        talk.origin.slow = False
        talk.origin.user.caught_up()
        sent = bytes(talk.origin.sent)
        assert (b"attackers-own" in sent) is not change
        if change:
            assert "1 HEADERS :status=400" in talk.hears()[0]
            assert talk.reasons == ["http-malformed"]
            assert talk.is_at_rest()


def test_a_connection_that_was_dialled_for_an_old_policy_serves_one_request() -> None:
    """I9: it is in no pool, so nothing else would close it."""
    talk = Http2Talk(origin_protocol="h2")
    pool, (kept,) = talk.host.pool, talk.origins
    made = talk.connection.connect(talk.host.origin)
    pool.retire()
    assert kept.ended == "closed"
    stream = pool.share("own", made)
    ends = [talk.origins[-1].ended]
    stream.abort()
    ends.append(talk.origins[-1].ended)
    assert ends == ["", "closed"]


@pytest.mark.parametrize("protocol", ["", "h2"])
def test_a_request_that_the_new_policy_denies_ends_and_the_others_go_on(protocol: str) -> None:
    """I3: whether its response has begun or not."""
    talk = Http2Talk(origin_protocol=protocol)
    talk.says(get(1, path="/a"))
    talk.says(get(3, path="/v1/a"))
    begun = (
        status(1) + data(1, b"x") if protocol else b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"
    )
    talk.origin.says((settings() if protocol else b"") + begun)
    talk.hears()
    talk.change(service("own", "ok.example", allow="GET /v1/**"))
    assert talk.hears() == ["1 RST INTERNAL_ERROR"]
    assert talk.reasons == ["rule", "policy-changed"]
    talk.says(get(5, path="/a"))
    assert talk.reasons[2:] == ["no-rule"]
    talk.origin_says(status(3, end=True) if protocol else ok())
    assert talk.reasons[3:] == ["rule"]
    assert talk.is_at_rest()


# ── the end of a stream ───────────────────────────────────────────────────────────────────────────

MEDIA = ("content-type", "application/vnd.git-lfs+json")
BATCH = post(1, MEDIA, path="/acme/w.git/info/lfs/objects/batch")


@pytest.mark.parametrize("end", ["reset", "lost", "revoked"])
@pytest.mark.parametrize("protocol", ["", "h2"])
@pytest.mark.parametrize("stage", ["collect", "exchange", "body", "response", "unread", "relay"])
def test_a_client_that_leaves_at_any_stage_takes_its_request_along(
    stage: str, protocol: str, end: str
) -> None:
    """I8, I9: with one event, and nothing stays behind."""
    policy = forge("own", "ok.example") if stage == "collect" else WEBSOCKETS
    talk = Http2Talk(policy, origin_protocol=protocol)
    if stage == "collect":
        talk.says(BATCH, data(1, b"{"))
    elif stage == "relay":
        talk.says(connect())
        talk.origin_says(switching(talk.origins[-1].heard()))
    elif stage == "body":
        talk.says(headers(1, request(("content-length", "9"), method="GET"), end=False))
    else:
        talk.says(settings((4, 0)) if stage == "unread" else b"", get(1))
    if stage in ("response", "unread"):
        whole = stage == "unread"
        if protocol:
            talk.origin_says(settings(), status(1), data(1, b"x", end=whole))
        else:
            talk.origin_says(ok(b"x") if whole else ok(b"xy")[:-1])
    if end == "reset":
        talk.says(rst(1))
        assert not talk.client.ended
    elif end == "lost":
        talk.connection.lost(None)
    else:
        talk.connection.cut("revoked")
    assert talk.state.busy == 0
    assert not talk.http2.streams
    assert not talk.http2._unread
    said = [str(each.reason) for each in talk.audit if each.kind is EventKind.REQUEST]
    sent = stage in ("response", "unread", "relay")
    assert said == {"body": ["body-not-granted"]}.get(stage, ["rule" if sent else "client-left"])
    open_streams = [each for each in talk.origins if each.protocol and each.user.busy]  # type: ignore[attr-defined]
    assert not open_streams


@pytest.mark.parametrize(
    ("first", "end", "heard"),
    [
        (b"", rst(1), "1 HEADERS :status=502"),
        (b"", goaway(1) + rst(1), "1 HEADERS :status=502"),
        (status(1, code="103"), rst(1), "1 HEADERS :status=502"),
        (status(1), rst(1), "1 RST INTERNAL_ERROR"),
        (status(1), data(1, b"x") + rst(1), "1 RST INTERNAL_ERROR"),
        (status(1, ("content-length", "9")), data(1, b"x", end=True), "1 RST INTERNAL_ERROR"),
        (status(1), status(1), "1 RST INTERNAL_ERROR"),
        (b"", status(1, ("transfer-encoding", "chunked")), "1 HEADERS :status=502"),
        (b"", ping(b"short"), "1 HEADERS :status=502"),
        (status(1), ping(b"short"), "1 RST INTERNAL_ERROR"),
    ],
)
def test_an_origin_that_ends_a_stream_early_gives_no_whole_response(
    first: bytes, end: bytes, heard: str
) -> None:
    """I8: a cut response does not look finished."""
    talk = Http2Talk(origin_protocol="h2")
    talk.says(post(1), data(1, b"hello"))
    talk.origin_says(settings(), first)
    said = talk.origin_says(end)
    assert said[0].startswith(heard)
    assert len(said) == (1 if "RST" in heard else 3)  # a refusal has a body, and needs no more
    assert [each for each in talk.audit if each.kind is EventKind.REQUEST]
    assert talk.is_at_rest()


@pytest.mark.parametrize("last", [0, 1])
def test_a_request_that_a_leaving_origin_has_not_read_is_sent_once_more(last: int) -> None:
    talk = Http2Talk(origin_protocol="h2")
    talk.says(get(1), get(3))
    talk.origin_hears()
    talk.origin.says(settings() + goaway(last))
    again = [each for channel in talk.origins[1:] for each in talk.origin_hears(channel)]
    assert sum(":path=/a" in each for each in again) == 2 - (last + 1) // 2
    assert talk.hears() == []


def test_a_response_before_the_request_is_whole_ends_both() -> None:
    talk = Http2Talk(origin_protocol="h2")
    talk.says(post(1), data(1, b"hello"))
    heard = talk.origin_says(settings(), status(1), data(1, b"no", end=True))
    assert heard[-2:] == ["1 DATA no END", "1 RST NO_ERROR"]
    assert talk.origin_hears()[-1] == "1 RST CANCEL"
    assert talk.says(data(1, b"more", end=True)) == []
    assert talk.is_at_rest()


@pytest.mark.parametrize(("method", "code"), [("HEAD", "200"), ("GET", "204"), ("GET", "304")])
@pytest.mark.parametrize("protocol", ["", "h2"])
def test_a_response_that_has_no_body_ends_with_its_head(
    method: str, code: str, protocol: str
) -> None:
    talk = Http2Talk(origin_protocol=protocol)
    talk.says(headers(1, request(method=method)))
    length = ("content-length", "5") if method == "HEAD" else ("x-a", "b")
    if protocol:
        heard = talk.origin_says(settings(), status(1, length, code=code, end=True))
    else:
        heard = talk.origin_says(f"HTTP/1.1 {code} OK\r\n{': '.join(length)}\r\n\r\n".encode())
    assert heard == [f"1 HEADERS :status={code} {'='.join(length)} END"]
    assert talk.is_at_rest()


def test_a_decoy_in_any_field_is_noted() -> None:
    """I1: a placeholder of a service that is not this host's."""
    talk = Http2Talk()
    talk.host.authorizer._decoys = ((b"another-placeholder", "other"),)
    talk.says(get(1))
    assert talk.reasons == []
    for stream, more in enumerate(
        [("x-a", "another-placeholder"), ("cookie", "a=another-placeholder")]
    ):
        talk.says(get(2 * stream + 3, more))
    talk.says(get(7, path="/a?b=another-placeholder"))
    assert talk.reasons == ["decoy-used"] * 3


# ── at random ─────────────────────────────────────────────────────────────────────────────────────


def _of_client(dice: random.Random, new: int, old: int) -> bytes:
    body = dice.choice([b"hello", b"", b"x" * 2000, b"x" * 16000, SMUGGLED])
    return dice.choice(
        [
            get(new, path=dice.choice(["/a", "/no"])),
            get(new, ("authorization", f"Bearer {STAND_IN}")),
            post(new),
            post(new, ("content-length", dice.choice("059"))),
            post(new, ("expect", "100-continue")),
            connect(new),
            headers(new, request(method="HEAD")),
            headers(new, request(authority="evil.example"), end=False),
            data(old, body, end=dice.random() < 0.3, padding=dice.choice([-1, 0, 7])),
            data(old, body),
            headers(old, [(dice.choice(["x-t", "x-corp", "authorization"]), "v")]),
            rst(old),
            window(dice.choice([0, old]), dice.choice([1, 100, 70000])),
            settings((4, dice.choice([0, 1, 65535, 100000]))),
        ]
    )


def _of_origin(dice: random.Random, number: int) -> bytes:
    body = dice.choice([SECRET.encode(), SECRET[:9].encode(), b"y" * 3000, b"y" * 16000, b""])
    return dice.choice(
        [
            status(number, ("x", SECRET), code="103"),
            status(number, ("x", SECRET)),
            status(number, ("content-length", "5")),
            status(number, code=dice.choice(["200", "204"]), end=True),
            data(number, body, end=dice.random() < 0.4),
            data(number, body),
            headers(number, [("x-t", SECRET)]),
            rst(number, dice.choice([0, 7, 8])),
            window(dice.choice([0, number]), 70000),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_nothing_leaks_and_nothing_stays(seed: int) -> None:
    """I7, I9: neither a secret, nor a place among the requests, nor an exception."""
    dice = random.Random(seed)  # noqa: S311 - no secret is made of it
    policies = [service("own", "ok.example", more='deny = ["* /no"]'), WEBSOCKETS, CORP]
    limit = dice.choice(["", "upload = '3KiB'\n", "download = '3KiB'\n", "body = '50B'\n"])
    limits = f"requests_per_second = 100000\n{limit}"
    talk = Http2Talk(dice.choice(policies), limits=limits, origin_protocol=dice.choice(["", "h2"]))
    new, heard = 1, ""
    for _ in range(40):
        if talk.client.ended:
            break
        live = [talk.client, *(each for each in talk.origins if not each.ended)]
        side = dice.choice(live)
        match dice.randrange(12):
            case 0:
                side.slow = not side.slow
                if not side.slow:
                    side.user.caught_up()
            case 1:
                talk.change(dice.choice(policies))
            case 2:
                talk.clock.now += dice.choice([1, 40, 200])
                talk.connection.sweep(talk.clock.now, 900.0)
            case 3 if side is not talk.client:
                side.ends()
                side.ended = "gone"
            case 4 | 5 | 6 if side is not talk.client:
                if side.protocol:
                    last = max(1, side.user.machine.last)  # type: ignore[attr-defined]
                    side.says(_of_origin(dice, dice.randrange(1, last + 1) | 1))
                else:
                    side.says(dice.choice([ok(SECRET.encode()), ok(b"y" * 60000), ok(b"hi")[:-1]]))
            case _:
                frames = b""
                for _ in range(dice.randrange(1, 5)):
                    frames += _of_client(dice, new, dice.randrange(1, new + 2) | 1)
                    new += 2
                cut = dice.randrange(len(frames))
                for piece in (frames[:cut], frames[cut:]):
                    if not talk.client.ended:
                        talk.client.says(piece)
        heard += "".join(talk.hears())
        streams = talk.http2.streams.values()
        admitted = sum(each.admitted for each in streams) + len(talk.http2._unread)
        assert talk.state.busy == admitted
    if not talk.gone:
        talk.connection.lost(None)
    assert talk.is_at_rest()
    assert SECRET not in heard
