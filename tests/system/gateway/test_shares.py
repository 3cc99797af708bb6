"""One hostile and one ordinary session on one gateway: neither's share is the other's (I9, I12).

Each test has a control: the hostile session's own attempt is seen to have used up its share, or the
ordinary session is seen to be served in the same way without it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.git import fetches
from keyhole.gateway.git import quarantine as quarantine_module
from keyhole.gateway.session import SessionState
from keyhole.gateway.slots import FEW, Slots
from keyhole.gateway.turn import BUDGET
from keyhole.inject import encoded_scanner
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import OverLimit
from keyhole.model.event import EventKind
from keyhole.policy.budget import GatewayLimits
from keyhole.policy.push_trial import PushUnjudged
from keyhole.system.resolver import PLACES, SystemResolver
from keyhole.wire.pkt_line import encode
from tests.rigs.gateway.clients import CONVERSE
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.rig import PATIENCE, FakeResolver, Rig, policy
from tests.rigs.gateway.stage import AMPLE, SECRET, Stage, make_services, service
from tests.rigs.gateway.talk import Message, get, head, ok
from tests.system.gateway.test_inspected_git import (
    CAPABILITIES,
    FETCH_TYPE,
    NEW,
    OLD,
    POLICY,
    PUSH_TYPE,
    REPOSITORY,
    FakeJudge,
    GitOrigin,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Hashable, Iterator, Sequence

    import trustme

    from keyhole.model.decision import Address
    from keyhole.model.host import Host
    from keyhole.policy.push_trial import PushFinding

SOON = 2.0
"""Seconds: far beyond what an ordinary session needs, and far below what a hostile one could cost
it before there were shares."""


@dataclass
class Two:
    """A hostile and an ordinary session on one gateway."""

    rig: Rig
    hostile: Stage
    ordinary: Stage


@contextlib.contextmanager
def two(authority: trustme.CA, **options: object) -> Iterator[Two]:
    rig = Rig(FakeResolver(), **options)
    spaces = [Namespace.make(), Namespace.make()]
    stages = [
        Stage(space, rig, authority, make_services(authority, own=SECRET)) for space in spaces
    ]
    try:
        yield Two(rig, *stages)
    finally:
        for stage in stages:
            stage.close_talks()
        try:
            rig.close()
        finally:
            for space in spaces:
                space.close()


@pytest.fixture
def both(authority: trustme.CA) -> Iterator[Two]:
    with two(authority) as made:
        yield made


def slowest(stage: Stage, seconds: float) -> float:
    """Ask for something again and again; how long the slowest answer took."""
    talk, worst, end = stage.visit(), 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        talk.send(get("/a"))
        assert talk.answer().status == 200
        worst = max(worst, time.monotonic() - began)
    return worst


# ── lookups ───────────────────────────────────────────────────────────────────────────────────────


def test_names_that_never_resolve_do_not_hold_up_another_session_s(
    both: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a wildcard lets the sandbox choose names whose servers never answer."""
    go, asked = threading.Event(), list[str]()

    def getaddrinfo(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(name)
        if "stuck" in name:
            go.wait(PATIENCE)
            raise socket.gaierror(socket.EAI_AGAIN, "no server answered")
        return [(2, 1, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("keyhole.system.resolver.PLACE_WAIT", 0.5)
    rig = both.rig
    rig.gateway._shared.upstream._resolver = rig.call(lambda: SystemResolver(rig.loop))
    limits = f"[limits]\n{AMPLE}"
    _, hostile = rig.open(both.hostile.namespace.door, policy("*.stuck.example:25", more=limits))
    _, ordinary = rig.open(both.ordinary.namespace.door, policy("ok.example:25"))
    held = [both.hostile.namespace.connect(f"n{n}.stuck.example", 25) for n in range(40)]
    try:
        deadline = time.monotonic() + PATIENCE
        while sum("stuck" in name for name in asked) < PLACES.each:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        converse = both.ordinary.namespace.python(CONVERSE, "ok.example", "25", "read")
        assert converse == "ConnectionResetError"
        # It was looked up, and the address judged.
        ordinary.until("address-private", port=25)
        assert time.monotonic() - began < SOON
        # The hostile session's own names wait for its share, and are told so (I8).
        event = hostile.until("over-share", port=25)
        assert (event.verdict, event.rule) == (Verdict.DENY, "shares.lookups")
        assert sum("stuck" in name for name in asked) == PLACES.each
    finally:
        go.set()
        for sock in held:
            sock.close()


class OverResolver(FakeResolver):
    """Whoever asks has its whole share."""

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        over = Decision(reason=Reason.OVER_SHARE, rule="shares.lookups")
        raise OverLimit(over, "this session has 4 at work that do not end")


def test_a_request_over_its_session_s_share_of_lookups_may_be_tried_again(both: Two) -> None:
    """In the words of every refusal, with what a client needs to wait (DESIGN §3)."""
    both.rig.gateway._shared.upstream._resolver = OverResolver()
    both.hostile.open(service("own", "ok.example"))
    answer = both.hostile.ask(get("/a")).answer()
    assert answer.status == 429
    said = json.loads(answer.body)
    assert (said["reason"], said["rule"], said["retry"]) == ("over-share", "shares.lookups", True)
    assert both.hostile.watch.until("over-share", path="/a").verdict is Verdict.DENY


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────

FLOOD = """
import socket, ssl, sys, threading
ca, name, port, count, line = sys.argv[1:]
context = ssl.create_default_context(cadata=ca) if ca else None
address = socket.getaddrinfo(name, int(port), socket.AF_INET)[0][4]
data = (line.encode() + b"\\r\\nHost: " + name.encode() + b"\\r\\n\\r\\n") * 20000
def flood():
    sock = socket.create_connection(address)
    if context:
        sock = context.wrap_socket(sock, server_hostname=name)
    def drain():
        while sock.recv(1 << 20):
            pass
    threading.Thread(target=drain, daemon=True).start()
    while True:
        sock.sendall(data)
for _ in range(int(count)):
    threading.Thread(target=flood, daemon=True).start()
print("flooding", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def flooding(stage: Stage, name: str, port: int, line: str, count: int = 32) -> Iterator[None]:
    """A process inside that sends requests without a pause on many connections."""
    ca = stage.services.authority.pem.decode() if port == 443 else ""
    words = [sys.executable, "-I", "-c", FLOOD, ca, name, str(port), str(count), line]
    with subprocess.Popen(
        stage.namespace.command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooding\n"
        try:
            yield
        finally:
            process.kill()


def test_a_flood_of_refused_requests_leaves_the_loop_to_others(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """Attack: thousands of tiny requests in each read, on many connections. Each is refused, which
    the loop does by itself; before there were turns, others waited for over a minute."""
    server = origin(Service(lambda _: ok(b"fine")), tls)
    text = service("own", "ok.example", allow="GET /a")
    both.hostile.open(text, ok_example=server)
    both.ordinary.open(text, ok_example=server)
    assert slowest(both.ordinary, 0.2) < SOON
    with flooding(both.hostile, "ok.example", 443, "GET /no HTTP/1.1"):
        both.hostile.watch.until("no-rule", path="/no")
        assert slowest(both.ordinary, 1.5) < SOON
        # A name is answered, a connection taken and TLS begun as soon.
        began = time.monotonic()
        both.ordinary.visit()
        assert time.monotonic() - began < SOON
        # Control: meanwhile the flood went on, and each request of it was refused.
        refused = len(both.hostile.watch.events)
        slowest(both.ordinary, 0.5)
        assert len(both.hostile.watch.events) > refused


def test_tunnels_that_carry_all_they_can_leave_the_loop_to_others(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    def sink(sock: socket.socket) -> None:
        while sock.recv(1 << 20):
            pass

    server, drain = origin(Service(lambda _: ok(b"fine")), tls), origin(sink)
    tunnel = policy("sink.example:25", more=f'[limits]\n{AMPLE}upload = "1TiB"',
                    **{"sink.example:25": drain.address})  # fmt: skip
    handle, _ = both.rig.open(both.hostile.namespace.door, tunnel)
    both.ordinary.open(service("own", "ok.example", allow="GET /a"), ok_example=server)
    with flooding(both.hostile, "sink.example", 25, "x" * 1000):
        deadline = time.monotonic() + PATIENCE
        while not handle.usage[0]:
            assert time.monotonic() < deadline
        carried = handle.usage[0]
        assert slowest(both.ordinary, 1.5) < SOON
        assert handle.usage[0] > carried


def test_compressed_answers_that_decode_to_much_leave_the_loop_to_others(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """Just below what is cut as out of proportion: 130 times."""
    bomb = gzip.compress(b"".join(os.urandom(1024) + bytes(150 * 1024) for _ in range(200)))
    assert 100 < 200 * 151 * 1024 / len(bomb) < encoded_scanner.MAX_RATIO

    def answer(message: Message) -> bytes:
        return ok(bomb, b"Content-Encoding: gzip") if "/bomb" in message.start else ok(b"fine")

    server = origin(Service(answer), tls)
    text = service("own", "ok.example", allow="GET /**")
    both.hostile.open(text, f'{AMPLE}download = "1TiB"', ok_example=server)
    both.ordinary.open(text, ok_example=server)
    alone = both.ordinary.ask(get("/bomb")).answer()
    assert gzip.decompress(alone.body)[1024:2048] == bytes(1024)
    with flooding(both.hostile, "ok.example", 443, "GET /bomb HTTP/1.1", 8):
        both.hostile.watch.until("rule", path="/bomb")
        assert slowest(both.ordinary, 1.5) < SOON


def test_what_is_put_off_arrives_whole_and_in_order(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read of a session without a budget waits for another turn: nothing is lost, up or
    down, through TLS and through a tunnel."""
    monkeypatch.setattr("keyhole.gateway.turn.BUDGET", 1e-9)
    body = os.urandom(3 << 20)
    server = origin(Service(lambda message: ok(message.body)), tls)
    both.ordinary.open(service("own", "ok.example"), ok_example=server)
    for _ in range(3):
        talk = both.ordinary.ask(head("POST", "/a", f"Content-Length: {len(body)}"), body)
        assert talk.answer().body == body

    def echo(sock: socket.socket) -> None:
        while data := sock.recv(1 << 20):
            sock.sendall(data)

    back = origin(echo)
    both.rig.open(both.hostile.namespace.door,
                  policy("ok.example:25", **{"ok.example:25": back.address}))  # fmt: skip
    with both.hostile.namespace.connect("ok.example", 25) as sock:
        sender = threading.Thread(target=sock.sendall, args=(body,))
        sender.start()
        got = b""
        while len(got) < len(body):
            got += sock.recv(1 << 20)
        sender.join()
        assert got == body


QUESTIONS = """
import socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
name = b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[1].split("."))
question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + name + bytes(1) + struct.pack(">2H", 1, 1)
print("flooding", flush=True)
while True:
    sock.sendto(question, ("192.0.2.53", 53))
"""


def test_a_flood_of_questions_leaves_names_to_others(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """As many as a policy without a bound to speak of lets through."""
    server = origin(Service(lambda _: ok(b"fine")), tls)
    text = service("own", "ok.example", allow="GET /a")
    both.hostile.open(text, f"{AMPLE}dns_per_second = 100000", ok_example=server)
    both.ordinary.open(text, ok_example=server)
    words = both.hostile.namespace.command(sys.executable, "-I", "-c", QUESTIONS, "no.example")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooding\n"
        try:
            both.hostile.watch.until("no-rule", type="A")
            asked = len(both.hostile.watch.events)
            for _ in range(20):
                began = time.monotonic()
                both.ordinary.visit()
                assert time.monotonic() - began < SOON
            assert len(both.hostile.watch.events) > asked
        finally:
            process.kill()


def dropped(namespace: Namespace) -> int:
    """Datagrams inside that the kernel dropped, because a socket's buffer was full (proc(5))."""
    table = Path(f"/proc/{namespace.holder.pid}/net/udp").read_text().splitlines()[1:]
    assert table, "the door's socket, at least"
    return sum(int(line.split()[-1]) for line in table)


def test_a_session_that_uses_up_every_turn_still_gets_names_and_connections(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """Its own: dozens of busy connections leave nothing of a turn to whatever does not queue."""
    server = origin(Service(lambda _: ok(b"fine")), tls)
    stage = both.ordinary
    stage.open(service("own", "ok.example", allow="GET /a"), ok_example=server)
    handle = stage.handle
    assert handle is not None
    turn, loop, seen, busy = handle._state.turn, both.rig.loop, list[float](), [True]

    def work() -> None:
        end = time.perf_counter() + BUDGET
        while time.perf_counter() < end:
            pass
        if busy[0]:
            # As data does that came meanwhile: it is read when the turn is used up.
            loop.call_soon(lambda: loop.call_soon(come))

    def come() -> None:
        seen.append(turn.left)
        turn.later(work)

    def begin() -> None:
        for _ in range(4):
            turn.later(work)

    both.rig.call(begin)
    try:
        for _ in range(3):
            # By this process's own time: on a busy host each of its turns takes many times as long.
            began, before = time.process_time(), len(stage.watch.events)
            talk = stage.visit()
            talk.send(get("/a"))
            assert talk.answer().status == 200
            assert time.process_time() - began < SOON
            # The system's resolver asks again after 5 s: each question was read, and its answer.
            names = [e for e in stage.watch.events[before:] if e.kind is EventKind.DNS]
            asked = [dict(event.details)["type"] for event in names]
            assert asked, "the control"
            assert len(asked) == len(set(asked))
            assert dropped(stage.namespace) == 0
        assert len(seen) > 10
        assert max(seen) <= 0  # the control: nothing was ever left
    finally:
        busy[0] = False


# ── large fetches ─────────────────────────────────────────────────────────────────────────────────


def test_large_fetches_of_one_session_are_read_in_turns_with_another_s(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads them. Attack: a queue of the largest, each of which takes half a second."""
    go, read = threading.Semaphore(0), list[int]()

    def reading(body: bytes, _: int) -> bytes:
        read.append(len(body))
        assert go.acquire(timeout=PATIENCE)
        return body

    monkeypatch.setattr(fetches, "read_fetch", reading)
    server = origin(GitOrigin().service, tls)
    for stage in (both.hostile, both.ordinary):
        stage.services = replace(stage.services, judge=FakeJudge())
        stage.open(POLICY, ok_example=server)

    def fetch(size: int) -> bytes:
        words = (FETCH_TYPE, "Git-Protocol: version=2", f"Content-Length: {size}")
        return head("POST", f"{REPOSITORY}/git-upload-pack", *words) + bytes(size)

    size = fetches.LARGE + 1
    for _ in range(10):
        both.hostile.ask(fetch(size))
    deadline = time.monotonic() + PATIENCE
    while not read or len(both.rig.gateway._shared.fetches._waiting) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    talk = both.ordinary.ask(fetch(size + 1))
    while len(both.rig.gateway._shared.fetches._waiting) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(3):
        go.release()
    assert talk.answer().status == 200
    # Behind the one that was being read, and one more of the other's at most.
    assert size + 1 in read[:3]
    for _ in range(20):
        go.release()


# ── judges ────────────────────────────────────────────────────────────────────────────────────────


class BusyJudge(FakeJudge):
    """As the jail's when a session has its whole share."""

    async def judge(self, *_: object) -> tuple[PushFinding, ...]:
        over = Decision(reason=Reason.OVER_SHARE, rule="shares.judges")
        raise PushUnjudged("judges: 16 of this session wait already", over)


def test_a_push_over_its_session_s_share_of_judges_is_refused_by_name(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """I8: a stable reason, and the share as the rule. The jail itself is tried, with two sessions,
    in tests/system/judge/test_judge_pool.py. Control: the other session's push is taken."""
    git = GitOrigin()
    server = origin(git.service, tls)
    for stage, judge in ((both.hostile, BusyJudge()), (both.ordinary, FakeJudge())):
        stage.services = replace(stage.services, judge=judge)
        stage.open(POLICY, ok_example=server)
    answer = both.hostile.ask(*push(1000)).answer()
    assert b"the session has its whole share of what sessions share; try again" in answer.body
    event = both.hostile.watch.until("over-share", ref="refs/heads/agent/x")
    assert (event.rule, event.verdict) == ("shares.judges", Verdict.DENY)
    assert both.ordinary.ask(*push(1000)).answer().status == 200
    assert len(git.pushes) == 1


# ── room for pushes ───────────────────────────────────────────────────────────────────────────────


def push(size: int) -> tuple[bytes, bytes]:
    """The head of a push, and its body."""
    line = f"{OLD} {NEW} refs/heads/agent/x".encode() + b"\0" + CAPABILITIES
    body = encode(line) + b"0000" + bytes(size)
    target = f"{REPOSITORY}/git-receive-pack"
    return head("POST", target, PUSH_TYPE, f"Content-Length: {len(body)}"), body


def test_pushes_that_wait_leave_room_for_another_session_s(
    both: Two, tls: ssl.SSLContext, origin: Callable[..., Origin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: pushes that never become whole keep what they have sent on the disk."""
    disk, states = 40 << 20, list[SessionState]()

    def fstatvfs(_: int) -> SimpleNamespace:
        used = sum(state.quarantined for state in states)
        return SimpleNamespace(f_bavail=disk - used, f_frsize=1)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    monkeypatch.setattr(quarantine_module, "KEEP_FREE", 8 << 20)
    git = GitOrigin()
    server = origin(git.service, tls)
    for stage in (both.hostile, both.ordinary):
        stage.services = replace(stage.services, judge=FakeJudge())
        stage.open(POLICY, ok_example=server)
        assert stage.handle is not None
        states.append(stage.handle._state)
    first, whole = push(30 << 20)
    talk = both.hostile.visit()
    talk.send(first)
    with contextlib.suppress(OSError):
        talk.send(whole[:-1])
    # A half of what is there above the reserve, less what the ordinary session could still have.
    event = both.hostile.watch.until("over-share", method="POST")
    assert event.rule == "shares.spool"
    # Another of a size that is within its share stays there, and does not end.
    first, whole = push(15 << 20)
    talk = both.hostile.visit()
    talk.send(first, whole[:-1])
    deadline = time.monotonic() + PATIENCE
    while states[0].quarantined < len(whole) - 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    answer = both.ordinary.ask(*push(6 << 20)).answer()
    assert (answer.status, len(git.pushes)) == (200, 1)
    # What is too large for all is the disk's fault, not the session's.
    monkeypatch.setattr(quarantine_module, "KEEP_FREE", disk)
    assert both.ordinary.ask(*push(1 << 10)).answer().status == 507
    both.ordinary.watch.until("disk-full")


# ── connections ───────────────────────────────────────────────────────────────────────────────────


def test_connections_of_one_session_leave_some_for_another(
    authority: trustme.CA, tls: ssl.SSLContext, origin: Callable[..., Origin]
) -> None:
    """All doors together may have 32; a session that may have 256 does not get the last ones."""
    server = origin(Service(lambda _: ok(b"fine")), tls)
    text = service("own", "ok.example", allow="GET /a")
    with two(authority, limits=GatewayLimits(connections=32)) as both:
        both.hostile.open(text, ok_example=server)
        both.ordinary.open(text, ok_example=server)
        held = [both.hostile.namespace.connect("ok.example") for _ in range(40)]
        handle = both.hostile.handle
        assert handle is not None
        deadline = time.monotonic() + PATIENCE
        while handle.figures.connections < 28:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert slowest(both.ordinary, 0.2) < SOON
        assert handle.figures.connections == 28
        for sock in held:
            sock.close()


def test_slots_are_kept_for_doors_with_few() -> None:
    slots = Slots(8)
    assert [slots.take(FEW) for _ in range(8)] == [True] * 7 + [False]
    assert [slots.take(0), slots.take(0)] == [True, False]
    slots.free()
    assert slots.take(FEW - 1)
