"""A session that changes while it runs: other credentials, another policy, other limits."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import queue
import ssl
import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.model.errors import Refused
from tests.rigs.gateway.frames import OFFER, frame, right
from tests.rigs.gateway.origins import Origin, Service, echo, echo_head
from tests.rigs.gateway.rig import Rig, policy
from tests.rigs.gateway.stage import SECRET, STAND_IN, Serve, Stage, service
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok
from tests.system.gateway.test_inspected_git import FakeJudge

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.gateway.door.handle import DoorHandle
    from tests.rigs.gateway.namespace import Namespace

    Make = Callable[..., Origin]

NEW = "sk-next-9876543210zyxwvutsrq"
OWN = service("own", "ok.example")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def handle_of(stage: Stage) -> DoorHandle:
    assert stage.handle is not None
    return stage.handle


def is_gone(sock: socket.socket) -> bool:
    """Whether a connection that said nothing was ended; before it is attached, by a close."""
    with sock, contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


def bearer(message: Message) -> str | None:
    return message.one("authorization")


class Slow:
    """An origin that answers each request with what the test says, when it says so."""

    def __init__(self) -> None:
        self.seen: queue.Queue[Message] = queue.Queue()
        self.say: queue.Queue[bytes | None] = queue.Queue()

    def __call__(self, sock: socket.socket) -> None:
        """None ends the answers to one request."""
        talk = Talk(sock)
        while True:
            message = talk.request()
            if message is None:
                return
            self.seen.put(message)
            while (piece := self.say.get(timeout=20)) is not None:
                talk.send(piece)


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


# ── rotation ──────────────────────────────────────────────────────────────────────────────────────


def test_a_kept_connection_carries_the_new_secret_at_its_next_request(
    stage: Stage, served: Serve
) -> None:
    """I1: and a connection to the origin that saw the old one is not used again."""
    seen = Service()
    server = served(seen)
    talk = stage.ask(get("/a"))
    assert talk.answer().status == 200
    talk.send(get("/b"))
    assert talk.answer().status == 200
    assert [m.connection for m in seen.seen] == [1, 1]
    (kept,) = server.open - {sock for sock in server.open if not isinstance(sock, ssl.SSLSocket)}
    stage.change(OWN, secrets={"own": NEW}, ok_example=server)
    talk.send(get("/c"))
    assert talk.answer().status == 200
    assert [bearer(m) for m in seen.seen] == [f"Bearer {SECRET}"] * 2 + [f"Bearer {NEW}"]
    assert seen.seen[2].connection == 2
    while kept in server.open:
        stage.rig.call(lambda: None)


def test_the_old_secret_does_not_come_back_after_rotation_in_whatever_pieces(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I7: also at a host of the service that is asked for the first time only then."""
    slow = Slow()
    server = origin(slow, tls)
    both = service("own", "ok.example", "other.example")
    stage.open(both, ok_example=server, other_example=server)
    for _ in range(3):
        stage.change(both, secrets={"own": NEW}, ok_example=server, other_example=server)
    for name in ("ok.example", "other.example"):
        talk = stage.ask(get("/a", host=name), name=name)
        assert bearer(slow.seen.get(timeout=20)) == f"Bearer {NEW}"
        text = f"old {SECRET} new {NEW} end".encode()
        for piece in (CHUNKED, *(chunk(text[i : i + 1]) for i in range(len(text))), chunk(b".")):
            slow.say.put(piece)
        slow.say.put(b"0\r\n\r\n")
        slow.say.put(None)
        assert talk.answer().body == f"old {STAND_IN} new {STAND_IN} end.".encode()


def test_a_stream_that_began_before_is_searched_for_the_new_secret(
    stage: Stage, served: Serve
) -> None:
    """I7: an origin may show on one connection what it was sent on another."""
    server = served(slow := Slow())
    talk = stage.ask(get("/stream"))
    slow.seen.get(timeout=20)
    slow.say.put(CHUNKED + chunk(b"begun "))
    talk.until(END)
    assert talk.chunk() == b"begun "
    stage.change(OWN, secrets={"own": NEW}, ok_example=server)
    half = len(NEW) // 2
    slow.say.put(chunk(NEW[:half].encode()))
    slow.say.put(chunk(f"{NEW[half:]} and {SECRET} end\n".encode()) + b"0\r\n\r\n")
    slow.say.put(None)
    said = b""
    while piece := talk.chunk():
        said += piece
    assert said == f"{STAND_IN} and {STAND_IN} end\n".encode()


def test_a_websocket_that_began_before_ends_at_the_new_secret(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I7; the control is the frame before it."""
    say: queue.Queue[bytes] = queue.Queue()

    def chat(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(right())
        while data := say.get(timeout=20):
            talk.send(data)

    server = origin(chat, tls)
    own = service("own", "ok.example", allow="WEBSOCKET /chat")
    stage.open(own, ok_example=server)
    talk = stage.ask(get("/chat", *OFFER))
    assert talk.answer().status == 101
    stage.change(own, secrets={"own": NEW}, ok_example=server)
    say.put(frame(b"hello"))
    assert talk.exactly(len(frame(b"hello"))) == frame(b"hello")
    say.put(frame(NEW.encode()))
    assert NEW.encode()[:8] not in talk.cut()
    say.put(b"")
    stage.watch.until("secret-reflected")


def test_a_pipelined_request_goes_by_what_is_in_force_when_its_turn_comes(
    stage: Stage, served: Serve
) -> None:
    """I3: it was sent before the change; the first, which is under way, is answered."""
    server = served(slow := Slow())
    talk = stage.ask(get("/a"), get("/a"), get("/gone"))
    assert bearer(slow.seen.get(timeout=20)) == f"Bearer {SECRET}"
    denied = service("own", "ok.example", more='deny = ["* /gone"]')
    stage.change(denied, secrets={"own": NEW}, ok_example=server)
    for body in (b"first", b"second"):
        slow.say.put(ok(body))
        slow.say.put(None)
    assert talk.answer().body == b"first"
    assert talk.answer().body == b"second"
    assert bearer(slow.seen.get(timeout=20)) == f"Bearer {NEW}"
    assert talk.answer().status == 403
    stage.watch.until("denied-by-rule", path="/gone")
    assert slow.seen.empty()


# ── policy ────────────────────────────────────────────────────────────────────────────────────────


def test_connections_of_a_host_that_is_no_longer_granted_are_cut_at_once(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I3: idle ones, one in its hello, tunnels; the control is another host's."""
    server, plain = origin(Service(echo_head), tls), origin(echo)
    both = OWN + service("two", "other.example", inject="")
    tunnels = '[egress]\nallow = ["a.example:9000", "b.example:9000"]\n'
    stage.open(
        both + tunnels, ok_example=server, other_example=server, a_example__9000=plain,
        b_example__9000=plain,
    )  # fmt: skip
    idle, stays = stage.ask(get("/a")), stage.ask(get(host="other.example"), name="other.example")
    assert idle.answer().status == stays.answer().status == 200
    hello = stage.namespace.connect("ok.example")
    cut, kept = (Talk(stage.namespace.connect(name, 9000)) for name in ("a.example", "b.example"))
    for talk in (cut, kept):
        talk.send(b"x")
        assert talk.exactly(1) == b"x"
    less = service("two", "other.example", inject="") + '[egress]\nallow = ["b.example:9000"]\n'
    stage.change(less, other_example=server, b_example__9000=plain)
    assert idle.cut() == cut.cut() == b""
    assert is_gone(hello)
    for rule in ("services.own", "egress.allow[0]"):
        assert any(
            (event.rule, dict(event.details).get("end")) == (rule, "policy-changed")
            for event in stage.watch.events
        )
    stage.watch.until("policy-changed", port=443)
    kept.send(b"y")
    assert kept.exactly(1) == b"y"
    stays.send(get(host="other.example"))
    assert stays.answer().status == 200
    cut.close()
    kept.close()


def test_a_stream_on_a_path_that_is_no_longer_allowed_is_cut(stage: Stage, served: Serve) -> None:
    """I3; the control is the stream that both policies allow."""
    began = threading.Barrier(3)

    def stream(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(CHUNKED + chunk(b"a "))
        began.wait(20)
        talk.send(chunk(b"z") + b"0\r\n\r\n")
        talk.rest()

    server = served(stream)
    good, bad = stage.ask(get("/good")), stage.ask(get("/bad"))
    for talk in (good, bad):
        talk.until(END)
        assert talk.chunk() == b"a "
    stage.change(service("own", "ok.example", allow="GET /good"), ok_example=server)
    assert bad.cut() == b""
    began.wait(20)
    assert (good.chunk(), good.chunk()) == (b"z", b"")
    stage.watch.until("policy-changed", path="/bad")


def test_a_request_that_waits_for_its_answer_is_told(stage: Stage, served: Serve) -> None:
    server = served(slow := Slow())
    talk = stage.ask(get("/bad"))
    slow.seen.get(timeout=20)
    stage.change(service("own", "ok.example", allow="GET /good"), ok_example=server)
    answer = talk.answer()
    assert answer.status == 403
    assert b'"reason": "policy-changed"' in answer.body
    slow.say.put(None)


def test_a_host_that_is_granted_in_another_way_is_connected_to_anew(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I6: an uninspected connection must not go on to a host that gets a credential."""
    server = origin(echo)
    allowed = '[egress]\nallow = ["ok.example"]\n'
    stage.open(allowed, ok_example=server)
    tunnel = stage.namespace.connect("ok.example")
    stage.change(OWN, ok_example=server)
    assert is_gone(tunnel)
    secure = origin(Service(), tls)
    stage.change(OWN, ok_example=secure)
    talk = stage.ask(get())
    assert talk.answer().status == 200
    stage.change(allowed, ok_example=server)
    assert talk.cut() == b""


def test_a_connection_to_an_address_that_is_no_longer_dialled_is_cut(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I4: the name is still granted, its address is not; the control is the other name."""
    plain, slow = origin(echo), Slow()
    server = origin(slow, tls)
    text = OWN + '[egress]\nallow = ["a.example:9000", "b.example:9000"]\n'
    stage.open(text, ok_example=server, a_example__9000=plain, b_example__9000=plain)
    cut, kept = (Talk(stage.namespace.connect(name, 9000)) for name in ("a.example", "b.example"))
    for talk in (cut, kept):
        talk.send(b"x")
        assert talk.exactly(1) == b"x"
    waiting = stage.ask(get())
    slow.seen.get(timeout=20)
    stage.change(text, b_example__9000=plain)
    assert cut.cut() == b""
    assert b"policy-changed" in waiting.answer().body
    slow.say.put(None)
    kept.send(b"y")
    assert kept.exactly(1) == b"y"
    cut.close()
    kept.close()


def test_an_encoded_answer_that_was_not_searched_is_cut_when_there_is_a_secret(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I7: it cannot be decoded from its midst. The control is a change that brings no secret."""
    slow = Slow()
    server = origin(slow, tls)
    bare = service("own", "ok.example", inject="")
    stage.open(bare, ok_example=server)
    talk = stage.ask(get("/a", "Accept-Encoding: gzip"))
    slow.seen.get(timeout=20)
    data = gzip.compress(bytes(10_000))
    slow.say.put(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(data), data[:10])
    )
    talk.until(END)
    assert talk.exactly(10) == data[:10]
    stage.change(bare, ok_example=server)
    slow.say.put(data[10:12])
    assert talk.exactly(2) == data[10:12]
    stage.change(OWN, ok_example=server)
    talk.cut()
    slow.say.put(None)


def test_limits_change_and_what_was_counted_stays_counted(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I9."""
    server = origin(Service(), tls)
    stage.open(OWN, AMPLE_UPLOAD.format("1MiB"), ok_example=server)
    talk = stage.visit()
    body = bytes(2048)
    post = head("POST", "/a", f"Content-Length: {len(body)}") + body
    talk.send(post)
    assert talk.answer().status == 200
    stage.change(OWN, AMPLE_UPLOAD.format("1KiB"), ok_example=server)
    talk.send(get())
    assert talk.cut() == b""
    stage.watch.until("over-limit")
    stage.change(OWN, AMPLE_UPLOAD.format("1MiB") + 'body = "1KiB"\n', ok_example=server)
    assert stage.ask(post).answer().status == 413


AMPLE_UPLOAD = 'requests_per_second = 1000\nupload = "{}"\n'


def test_more_connections_are_taken_as_soon_as_the_limit_is_raised(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(echo)

    def text(limit: int) -> str:
        more = f"[limits]\nconnections = {limit}\n"
        return policy("ok.example:9000", more=more, **{"ok.example:9000": server.address})

    handle, watch = rig.open(namespace.door, text(1))
    first = Talk(namespace.connect("ok.example", 9000))
    second = Talk(namespace.connect("ok.example", 9000))  # in the kernel's queue
    second.send(b"x")
    watch.until("over-limit")
    session = rig.session(watch, text(2))
    rig.call(lambda: handle.change(session))
    assert second.exactly(1) == b"x"
    first.close()
    second.close()


def test_a_door_stays_its_sessions(namespace: Namespace, rig: Rig) -> None:
    """I5."""
    handle, watch = rig.open(namespace.door, policy("ok.example"))
    other = replace(rig.session(watch, policy("ok.example")), id="s2")
    with pytest.raises(ValueError, match="one session"):
        rig.call(lambda: handle.change(other))
    rig.call(handle.close)
    rig.call(lambda: handle.change(rig.session(watch, policy())))  # too late to matter


def test_a_door_that_cannot_be_changed_is_closed(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I2, I3: a failure in the midst must not leave open what the new policy takes away."""
    stage.open(OWN, ok_example=origin(Service(), tls))
    talk = stage.ask(get())
    assert talk.answer().status == 200
    session = handle_of(stage).session
    assert session.interception is not None

    def broken(rules: object, *, git: bool = False) -> None:
        raise RuntimeError("no credential can be made")

    other = replace(session, interception=replace(session.interception, credential=broken))
    with pytest.raises(RuntimeError):
        stage.rig.call(lambda: handle_of(stage).change(other))
    assert talk.cut() == b""
    assert not stage.rig.call(lambda: handle_of(stage)._open)


# ── doors and figures ─────────────────────────────────────────────────────────────────────────────


def test_a_namespace_has_one_door(namespace: Namespace, neighbour: Namespace, rig: Rig) -> None:
    """I5: two sessions must not share what tells them apart; the control is the neighbour."""
    rig.open(namespace.door, policy("ok.example"))
    with pytest.raises(Refused):
        rig.open(namespace.door, policy("other.example"))
    mixed = replace(neighbour.door, udp=namespace.door.udp)
    with pytest.raises(Refused):
        rig.open(mixed, policy("other.example"))
    handle, _ = rig.open(neighbour.door, policy("other.example"))
    rig.call(handle.close)


def test_figures_say_what_was_done_and_when_a_credential_last_served(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    statuses = iter([b"200 OK", b"404 Not Found", b"302 Found"])
    server = origin(Service(lambda _: ok(status=next(statuses))), tls)
    bare = service("bare", "other.example", inject="", allow="GET /a")
    stage.open(OWN + bare, ok_example=server, other_example=origin(Service(), tls))
    handle, rig = handle_of(stage), stage.rig
    opened = rig.call(lambda: handle.figures)
    assert opened.credentialed <= rig.call(stage.rig.loop.time)
    talk, other = stage.visit(), stage.visit("other.example")
    times = [opened.credentialed]
    for talks, request in ((talk, get()), (talk, get()), (other, get("/a", host="other.example")),
                           (other, get("/no", host="other.example")), (talk, get())):  # fmt: skip
        talks.send(request)
        talks.answer()
        times.append(rig.call(lambda: handle.figures).credentialed)
    success, missing, uninspected, denied, moved = times[1:]
    assert times[0] < success == missing == uninspected == denied < moved
    now = rig.call(lambda: handle.figures)
    assert (now.connections, now.requests, now.denied) == (2, 5, 1)
    assert (now.up, now.down) == handle.usage
    assert now.up > 0
    for _ in range(3):
        rig.call(lambda: handle.change(handle.session))  # counted once, however often it changes
    other.send(get("/no", host="other.example"))
    assert other.answer().status == 403
    assert rig.call(lambda: handle.figures.denied) == 2


def test_one_door_of_many_does_not_close_the_judge_that_they_share(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """Whoever makes it closes it."""
    judge = FakeJudge()
    stage.services = dataclasses.replace(stage.services, judge=judge)
    stage.open(OWN, ok_example=origin(Service(), tls))
    stage.rig.call(handle_of(stage).close)
    assert not judge.closed
