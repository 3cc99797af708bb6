"""A decoy freezes the session where the policy says so: what is open is cut, nothing is admitted,
and a person alone lets it go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyhole.inject.canary import CANARY
from tests.rigs.gateway.frames import OFFER, masked, right
from tests.rigs.gateway.origins import Service, echo
from tests.rigs.gateway.stage import (
    AMPLE,
    SECRET,
    STAND_IN,
    Stage,
    make_services,
    service,
    serving,
    set_up,
)
from tests.rigs.gateway.talk import END, Talk, get, head
from tests.rigs.waiting import until
from tests.system.gateway.test_change import CHUNKED, Slow, chunk, handle_of, is_gone

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

    from tests.rigs.gateway.origins import Origin

STOLEN = "pk-of-another-service-0123456789"
BAIT = "AKIAKEYHOLE234567234"
FREEZE = AMPLE + 'on_decoy = "freeze"\n'
POLICY = (
    service("own", "ok.example")
    + service("slow", "other.example", inject="")
    + '[egress]\nallow = ["tunnel.example:7", "plain.example:80"]\n'
)


class Scene:
    """A door with four origins behind it."""

    def __init__(
        self, stage: Stage, service: Service, slow: Slow, origins: dict[str, Origin]
    ) -> None:
        self.stage = stage
        self.service = service
        self.slow = slow
        self.origins = origins

    def open(self, limits: str = FREEZE) -> None:
        self.stage.open(POLICY, limits, **self.origins)

    def thaw(self) -> bool:
        handle = handle_of(self.stage)
        thawed: list[bool] = []
        self.stage.rig.call(lambda: thawed.append(handle.thaw()))
        return thawed[0]

    def events(self, reason: str) -> int:
        return len([each for each in self.stage.watch.events if each.reason == reason])


@pytest.fixture
def scene(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Scene]:
    services = make_services(authority, own=SECRET)
    services.placeholders.update({"other": STOLEN, CANARY: BAIT})
    seen, slow = Service(), Slow()
    with (
        serving(seen, tls) as server,
        serving(slow, tls) as slow_server,
        serving(echo, None) as echoing,
        serving(seen, None) as plain,
        set_up(authority, services) as stage,
    ):
        origins = {
            "ok_example": server,
            "other_example": slow_server,
            "tunnel_example__7": echoing,
            "plain_example__80": plain,
        }
        yield Scene(stage, seen, slow, origins)


def post(path: str, body: bytes, *lines: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def is_refused(stage: Stage, name: str = "ok.example", port: int = 443) -> bool:
    """Whether a new connection is reset, at once or a moment later."""
    try:
        return is_gone(stage.namespace.connect(name, port))
    except AssertionError as error:
        return "ConnectionResetError" in str(error)


def test_a_decoy_cuts_what_is_open_and_nothing_passes_until_it_is_resumed(scene: Scene) -> None:
    """Control: before, and after the session is resumed, the same requests are served."""
    stage = scene.stage
    scene.open()
    tunnel = stage.namespace.connect("tunnel.example", 7)
    tunnel.sendall(b"a")
    assert tunnel.recv(1) == b"a"
    running = stage.ask(get("/a", host="other.example"), name="other.example")
    scene.slow.say.put(CHUNKED + chunk(b"some"))
    scene.slow.seen.get(timeout=20)
    kept = stage.ask(get("/a"))
    assert kept.answer().status == 200
    served = len(scene.service.seen)
    thief = stage.ask(get("/a", f"Authorization: Bearer {STOLEN}"), get("/next"))
    answer = thief.answer()
    assert (answer.status, json.loads(answer.body)["reason"]) == (403, "frozen")
    event = stage.watch.until("decoy-used")
    assert (event.rule, event.host) == ("services.other", "ok.example")
    assert stage.watch.until("frozen").host == "ok.example"
    assert is_gone(tunnel)
    assert b"some" in running.cut()
    assert is_refused(stage)
    assert is_refused(stage, "tunnel.example", 7)
    assert len(scene.service.seen) == served
    scene.slow.say.put(None)
    (told,) = [line for line in stage.watch.lines if "frozen: " in line]
    assert "the placeholder of services.other was sent to ok.example" in told
    assert "keyhole resume" in told
    assert scene.thaw()
    assert stage.ask(get("/after")).answer().status == 200
    assert not scene.thaw()


def test_a_policy_that_changes_does_not_resume_the_session(scene: Scene) -> None:
    scene.open()
    assert scene.stage.ask(get("/a", f"X: {STOLEN}")).answer().status == 403
    scene.stage.change(POLICY, AMPLE, None, **scene.origins)
    assert is_refused(scene.stage)
    assert scene.thaw()
    assert scene.stage.ask(get("/a")).answer().status == 200


def test_without_the_limit_a_decoy_is_noted_alone(scene: Scene) -> None:
    scene.open(AMPLE)
    assert scene.stage.ask(get("/a", f"X: {STOLEN}")).answer().status == 200
    assert scene.stage.ask(post("/a", BAIT.encode())).answer().status == 200
    until(lambda: scene.events("decoy-used") == 2)
    assert scene.events("frozen") == 0


def test_a_placeholder_at_its_own_host_freezes_nothing(scene: Scene) -> None:
    scene.open()
    answer = scene.stage.ask(get("/a", f"Authorization: Bearer {STAND_IN}")).answer()
    assert answer.status == 200
    assert scene.stage.ask(post("/a", STOLEN.encode())).answer().status == 200
    assert scene.events("decoy-used") == 0


@pytest.mark.parametrize("cut", [1, 7, len(BAIT)])
def test_the_key_of_the_canary_file_freezes_from_a_body_in_whatever_pieces(
    scene: Scene, cut: int
) -> None:
    """Attack: read the file, and post it to a host that the policy allows. The bytes with its end
    do not go on."""
    scene.open()
    stage = scene.stage
    body = f"x=[default] {BAIT}&more".encode()
    at = body.index(BAIT.encode()) + cut
    talk = stage.ask(head("POST", "/a", f"Content-Length: {len(body)}") + body[:at])
    talk.send(body[at:])
    event = stage.watch.until("decoy-used")
    assert (event.rule, event.host) == ("limits.on_decoy", "ok.example")
    until(lambda: scene.events("frozen") > 0)
    assert is_refused(stage)
    assert not any(BAIT.encode() in seen.body for seen in scene.service.seen)


def test_the_key_of_the_canary_file_freezes_from_the_frames_of_a_websocket(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """Attack: send the file over a WebSocket, masked and in two frames. Control: other text passes
    first."""
    services = make_services(authority, own=SECRET)
    services.placeholders.update({CANARY: BAIT})
    came: list[bytes] = []

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(right())
        while data := sock.recv(65536):
            came.append(data)

    with serving(origin, tls) as server, set_up(authority, services) as stage:
        own = service("own", "ok.example", allow="GET,WEBSOCKET /**")
        stage.open(own, FREEZE, ok_example=server)
        talk = stage.ask(get("/chat", *OFFER))
        assert talk.answer().status == 101
        plain = masked(b"hello")
        talk.send(plain)
        until(lambda: b"".join(came) == plain)
        cut = len(BAIT) // 2
        talk.send(masked(BAIT[:cut].encode(), final=False), masked(BAIT[cut:].encode(), 0))
        event = stage.watch.until("decoy-used")
        assert (event.rule, event.host) == ("limits.on_decoy", "ok.example")
        talk.cut()
        assert is_refused(stage)
        assert masked(BAIT[cut:].encode(), 0) not in b"".join(came)


@pytest.mark.parametrize("decoy", [STOLEN, BAIT, STAND_IN])
def test_a_placeholder_in_plain_http_freezes_too(scene: Scene, decoy: str) -> None:
    """No placeholder has a meaning in the clear, not even at its own host. Control: the same
    request without one."""
    scene.open()
    stage = scene.stage

    def ask(line: str) -> bytes:
        sock: socket.socket = stage.namespace.connect("plain.example", 80)
        with sock:
            sock.sendall(f"GET /a HTTP/1.1\r\nHost: plain.example\r\n{line}\r\n\r\n".encode())
            return sock.recv(65536)

    assert ask("X: y").startswith(b"HTTP/1.1 200")
    served = len(scene.service.seen)
    refused = ask(f"X: {decoy}")
    assert refused.startswith(b"HTTP/1.1 403")
    assert b"the session is frozen" in refused
    assert len(scene.service.seen) == served
    assert is_refused(stage, "plain.example", 80)
