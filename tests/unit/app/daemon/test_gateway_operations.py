"""Sessions that come while a person cuts everything off, or ends the gateway; what a data plane
says that it may not say."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.daemon.data_plane_process import SPOKE, DaemonDataPlaneProcess, DataPlaneListener
from keyhole.app.daemon.gateway_operations import GatewayOperations
from keyhole.app.daemon.plane_messages import DoorClosed, SessionCounters, SessionProvisioned
from keyhole.app.processes.heartbeat import make_heartbeat_pipe
from keyhole.app.processes.message_frames import frame_message
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_register import SessionRegister
from keyhole.audit.log import AuditLog
from keyhole.control.peer import Peer
from keyhole.control.values import OpenedSession, SessionPhase, SessionQuery, SessionRequest
from keyhole.model.errors import Refused
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from keyhole.app.daemon.workers import Workers

DIGEST = "sha256:" + "0" * 64


class SlowPlane:
    """A data plane that opens a session when the test says so."""

    quiet = False
    pid = 1

    def __init__(self) -> None:
        self.id = ""
        """Of another session, where it lies."""
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.gone = asyncio.Event()
        self.told: list[str] = []

    async def call(self, name: str, words: dict[str, Any], _: object = ()) -> object:
        if name != "open":
            raise Refused("nothing else is asked")
        self.asked.set()
        await self.go_on.wait()
        figures = SessionCounters(
            self.id or words["session"], None, 0, 0, 0, 0, 0, (), (), (), (), 0, 0, frozen=False
        )
        return SessionProvisioned("", (), figures)

    async def call_acknowledged(self, name: str, *_: object) -> None:
        self.told.append(name)

    def tell(self, name: str, _: object) -> None:
        self.told.append(name)


class OnePlane:
    """The only one there is."""

    restarts = 0

    def __init__(self) -> None:
        self.now = SlowPlane()
        self.planes = [self.now]

    def choose(self) -> SlowPlane:
        return self.now

    def number(self, _: object) -> int:
        return 1

    def divide(self) -> None:
        """There is nothing to divide."""

    def replace(self, _: object, why: str) -> tuple[str, bool]:
        return why, True


def opening() -> SessionRequest:
    return SessionRequest(policy="/p", trusted=DIGEST, label="sh", granted=DIGEST)


def own_peer() -> Peer:
    return Peer(os.getpid(), os.geteuid(), os.getegid(), 1, os.pidfd_open(os.getpid()))


def operate(directory: Path, planes: OnePlane, log: AuditLog) -> GatewayOperations:
    made = GatewayOperations(
        asyncio.get_running_loop(),
        cast("Workers", planes),
        SessionRegister(directory / "sessions"),
        log,
        lambda: None,
        lambda _: None,
    )
    made.sessions.most = 10
    return made


async def race(
    directory: Path, meanwhile: Callable[[GatewayOperations, Peer], Awaitable[object]]
) -> tuple[object, int, bool]:
    """What becomes of a session that is being opened meanwhile; how many there are; whether the
    data plane lets it go."""
    planes = OnePlane()
    plane = planes.now
    peer = own_peer()
    with AuditLog(directory / "audit") as log:
        operations = operate(directory, planes, log)
        task = asyncio.ensure_future(operations.open_session(opening(), None, peer))
        await plane.asked.wait()
        await meanwhile(operations, peer)
        plane.go_on.set()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        views = (await operations.list_sessions(SessionQuery())).sessions
        assert [view.id for view in views] == list(operations.sessions.entries)
        count = len(views)
        dropped = "drop" in plane.told
        await operations.sessions.close()
    peer.close()
    return outcome, count, dropped


def test_a_session_that_is_being_opened_is_cut_off_with_all_others(tmp_path: Path) -> None:
    """I2: the kill switch. Control: without it, the session comes."""

    async def nothing(*_: object) -> None:
        """Nobody asks for anything."""

    assert asyncio.run(race(tmp_path / "control", nothing))[1] == 1
    outcome, count, let_go = asyncio.run(
        race(tmp_path, lambda operations, peer: operations.revoke_all(peer))
    )
    assert isinstance(outcome, Refused)
    assert "revoked" in outcome.message
    assert (count, let_go) == (0, True)


def test_no_session_comes_to_a_gateway_that_is_about_to_end(tmp_path: Path) -> None:
    """It would be told of by nobody, and its sandbox be left to the next gateway."""

    async def close(operations: GatewayOperations, peer: Peer) -> None:
        await operations.sessions.close()
        with pytest.raises(Refused, match="about to end"):
            await operations.open_session(opening(), None, peer)

    outcome, count, let_go = asyncio.run(race(tmp_path, close))
    assert isinstance(outcome, Refused)
    assert "about to end" in outcome.message
    assert (count, let_go) == (0, True)


def test_a_data_plane_has_no_say_in_which_session_it_is(tmp_path: Path) -> None:
    """I5: whose a session is, and its file in the register, hang on the id."""
    other = "0123456789ab"

    async def lie(operations: GatewayOperations, peer: Peer) -> None:
        plane = cast("SlowPlane", operations._workers.planes[0])
        plane.id = other

    outcome, count, _ = asyncio.run(race(tmp_path, lie))
    assert isinstance(outcome, OpenedSession)
    assert (outcome.id != other, count) == (True, 1)


def test_a_worker_that_was_taken_over_does_not_speak_for_sessions_of_another(
    tmp_path: Path,
) -> None:
    """I5, I12. Control: the session's own worker closes it."""

    async def speak() -> list[SessionPhase]:
        planes, other, peer = OnePlane(), cast("Any", SlowPlane()), own_peer()
        planes.now.go_on.set()
        with AuditLog(tmp_path / "audit") as log:
            operations = operate(tmp_path, planes, log)
            opened = await operations.open_session(opening(), None, peer)
            sessions = operations.sessions
            entry = sessions.find(opened.id)
            entry.state = SessionPhase.OPEN
            heard, ending = sessions.heard(lambda: None), DoorClosed(opened.id, EndReason.EXPIRED)
            heard.closed(other, ending)
            heard.lost(other, "it broke off")
            states = [entry.state]
            heard.closed(cast("Any", planes.now), ending)
            states.append(entry.state)
            await sessions.close()
        peer.close()
        return states

    assert asyncio.run(speak()) == [SessionPhase.OPEN, SessionPhase.REVOKED]


# ── what a data plane that was taken over may say ─────────────────────────────────────────────────

READY: dict[str, Any] = {"ready": {"protections": []}}


def said(*messages: bytes) -> str:
    """Why a data plane is ended that says this; nothing where it goes on."""

    async def listen() -> str:
        loop = asyncio.get_running_loop()
        calls, their_calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, their_answers = socket.socketpair()
        pulse, their_pulse = make_heartbeat_pipe()
        sleeping = await asyncio.create_subprocess_exec("sleep", "60")
        plane = DaemonDataPlaneProcess(calls, answers, pulse, sleeping.pid)
        why: asyncio.Future[str] = loop.create_future()
        spoken: list[str] = []
        plane.attach(
            loop,
            DataPlaneListener(
                lambda _, event: spoken.append(event.session),
                lambda _, event: spoken.append(event.text),
                lambda _, event: spoken.append(event.ask.id),
                lambda: spoken.append("lacking"),
                spoken.append,
                lambda: None,
                lambda _, words: why.set_result(words),
            ),
        )
        asked = loop.create_task(plane.call("facts", {}))
        await asyncio.sleep(0)
        for each in messages:
            their_answers.sendall(each)
        done, _ = await asyncio.wait(
            {why, asked}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
        )
        assert done
        result = why.result() if why.done() else ""
        plane.end("it is over")
        if not why.done():
            await why
        await asyncio.gather(asked, return_exceptions=True)
        await sleeping.wait()
        their_calls.close()
        their_answers.close()
        os.close(their_pulse)
        return result

    return asyncio.run(listen())


def json_frame(message: object) -> bytes:
    return frame_message(json.dumps(message).encode())


FACTS = {"connections": 0, "admitting": True, "keeper": True, "frozen": 0}


def test_what_a_data_plane_says_is_read_by_its_shape() -> None:
    """The positive control."""
    assert said(json_frame(READY), json_frame({"answer": 1, "value": FACTS})) == ""
    # An answer that nobody waits for is none.
    twice = json_frame({"answer": 7, "value": {"x": 1}})
    assert said(twice, json_frame({"answer": 1, "value": FACTS})) == ""


@pytest.mark.parametrize(
    "message",
    [
        json_frame({"answer": 1, "value": FACTS | {"more": 1}}),
        json_frame({"answer": 1, "value": FACTS | {"connections": -1}}),
        json_frame({"answer": 1, "value": FACTS | {"connections": 1e300}}),
        json_frame({"answer": 1, "value": None}),
        json_frame({"answer": 1}),
        json_frame({"answer": "1", "value": FACTS}),
        json_frame({"closed": {"session": "0123456789ab", "why": "because"}}),
        json_frame({"closed": {"session": "../../etc", "why": "revoked"}}),
        json_frame({"said": {"session": "", "text": "\x1b[2J"}}),
        json_frame({"said": {"session": "", "text": "x" * 5000}}),
        json_frame({"exec": "sh"}),
        json_frame({"log_ended": {"head": "x"}}) * 2,
        json_frame({"lacking": 1}),
        json_frame([]),
        frame_message(b"\x80\x04N."),
        frame_message(b'{"answer": 1, "answer": 2}'),
        frame_message(b"[" * 100_000),
        b"\xff\xff\xff\xff",
    ],
)
def test_a_data_plane_that_says_anything_else_is_ended(message: bytes) -> None:
    """I9: it reads hostile bytes, and is the less trusted of both."""
    assert said(json_frame(READY), message) == SPOKE
