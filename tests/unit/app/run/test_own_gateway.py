"""A run's own gateway against a data plane that lies, hangs or dies (I2, I8, I12).

The data plane is a fake: a thread that speaks on the other ends of the sockets, or keeps silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.processes.message_frames import MessageBuffer
from keyhole.app.processes.messages import (
    CloseDoor,
    CommandAnswered,
    JudgeStarted,
    ReportFigures,
    RunMessage,
    unpack_run_message,
)
from keyhole.app.run import data_plane_process, own_gateway
from keyhole.app.run.data_plane_process import RunDataPlaneProcess
from keyhole.app.run.own_gateway import OwnGateway, OwnGatewaySession
from keyhole.app.run.run_endpoint import RunEndpoint
from keyhole.app.run.run_operations import MAX_COUNT, RunOperations
from keyhole.app.session.end_reason import EndReason
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.provision import Provision
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogReader
from keyhole.audit.verify import verify_log
from keyhole.control.runs import ProcessIdentity, RunRecord
from keyhole.control.values import SessionPhase
from keyhole.model.errors import SANDBOX_LOST, ResourceUnusable, SetupFailed
from tests.rigs.policies import loaded
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

ID = "0123456789ab"
POLICY = loaded("").policy


class FakePlane:
    """The process is one that sleeps; what it would say is said here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        self.link: socket.socket
        self.line: socket.socket

        def start(
            _: str, sockets: Sequence[socket.socket], env: Mapping[str, str], *, apart: bool
        ) -> int:
            self.env = dict(env)
            self.link, self.line = (each.dup() for each in sockets)
            for each in sockets:
                each.close()
            return self.process.pid

        monkeypatch.setattr(data_plane_process, "start_child", start)
        self.plane = RunDataPlaneProcess({"HOME": "/home/you", "RES_OPTIONS": "ndots:2"})

    def say(self, message: object) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.line.send(data)

    def told(self) -> list[RunMessage]:
        """What the run has said by now, after its first words."""
        self.link.setblocking(False)
        frames, found = MessageBuffer(), []
        try:
            while data := self.link.recv(1 << 16):
                found += frames.feed(data)
        except BlockingIOError:
            pass
        words = max((n for n, each in enumerate(found) if each.startswith(b'{"do": ')), default=-1)
        return [unpack_run_message(each) for each in found[words + 1 :]]

    def die(self) -> None:
        self.process.kill()
        for each in (self.link, self.line):
            each.close()

    def close(self) -> None:
        self.plane.close()
        self.process.kill()
        self.process.wait()
        for each in (self.link, self.line):
            each.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlane]:
    made = FakePlane(monkeypatch)
    yield made
    made.close()


class Stage:
    """A gateway that is being opened, and what the person and the run heard."""

    def __init__(self, fake: FakePlane, directory: Path) -> None:
        self.said: list[str] = []
        self.endings: list[EndReason] = []
        self.lost = False
        """Whether the sources cannot be read."""
        self.places = HostPaths(*(directory / each for each in ("home", "config", "state", "run")))
        self.places.runtime.mkdir(mode=0o700)
        provision = Provision("sha256:" + "0" * 64, POLICY, None, {})
        policy = directory / "keyhole.toml"
        own_session = OwnGatewaySession(ID, "claude", policy, provision, self.places, self._sources)
        self.gateway = OwnGateway(fake.plane, own_session, RunEndpoint.claim, self.said.append)
        own = ProcessIdentity.of(os.getpid())
        self.record = RunRecord(ID, "claude", str(policy), 1, own, own)

    def _sources(self) -> Any:  # noqa: ANN401 - nothing is followed here
        if self.lost:
            raise ResourceUnusable("the policy is gone")
        return None

    async def open(self, fake: FakePlane) -> asyncio.Task[None]:
        self.gateway.begin(_Launch())  # type: ignore[arg-type]
        self.gateway.admit([])
        opening = asyncio.ensure_future(self.gateway.open(self.endings.append))
        await asyncio.sleep(0)
        return opening

    async def serve(self, fake: FakePlane) -> None:
        """Open it, and have the data plane report that it serves."""
        opening = await self.open(fake)
        fake.say({"opened": True})
        await opening

    def reasons(self) -> list[str]:
        story = LogReader(LogDirectory.open(self.places.audit)).read()
        return [each.record.reason for each in story if each.record and each.record.session]

    def is_whole(self) -> bool:
        return verify_log(LogDirectory.open(self.places.audit)).whole


class _Launch:
    command = ("claude",)


@pytest.fixture
def stage(fake: FakePlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(own_gateway, "SourceFollower", lambda *_: _Follower())
    return Stage(fake, tmp_path)


class _Follower:
    def close(self) -> None:
        return


def play(coroutine: Callable[[], Any]) -> None:
    asyncio.run(coroutine())


def test_the_data_plane_gets_none_of_the_variables_but_the_resolver_s(fake: FakePlane) -> None:
    """I1."""
    assert fake.env == {"RES_OPTIONS": "ndots:2"}


def test_one_that_dies_before_it_serves_ends_the_run(fake: FakePlane, stage: Stage) -> None:
    async def scene() -> None:
        opening = await stage.open(fake)
        fake.die()
        with pytest.raises(SetupFailed, match="ended by signal 9") as lost:
            await opening
        assert lost.value.reason == SANDBOX_LOST
        assert await stage.gateway.close(125)

    play(scene)
    assert stage.reasons()[-1] == "ended"
    assert stage.said == []  # the run ends with this very reason
    assert stage.is_whole()


def test_one_that_cannot_serve_says_why_and_ends_the_run(fake: FakePlane, stage: Stage) -> None:
    async def scene() -> None:
        opening = await stage.open(fake)
        fake.say({"failed": "the log is full"})
        with pytest.raises(SetupFailed, match="cannot serve: the log is full") as lost:
            await opening
        assert lost.value.reason == SANDBOX_LOST
        fake.say({"head": ""})
        await stage.gateway.close(125)

    play(scene)


def test_one_that_says_it_closed_the_door_is_ended_nevertheless(
    fake: FakePlane, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: it was taken over, and would go on serving."""
    monkeypatch.setattr(own_gateway, "FINISH_SECONDS", 0.05)

    async def scene() -> None:
        await stage.serve(fake)
        closing = asyncio.ensure_future(stage.gateway.shut(EndReason.REVOKED, 7))
        await until_in_loop(lambda: CloseDoor("revoked", 7) in fake.told())
        fake.say({"closed": "revoked"})
        assert await closing
        assert stage.endings == [EndReason.REVOKED]
        await until_in_loop(lambda: fake.process.poll() is not None)
        assert not await stage.gateway.shut(EndReason.REVOKED, 7)
        fake.die()
        await stage.gateway.close(0)

    play(scene)


def test_one_that_hangs_up_is_ended(fake: FakePlane, stage: Stage) -> None:
    """I2, I12: it was taken over, and would go on serving without being seen."""

    async def scene() -> None:
        await stage.serve(fake)
        fake.line.close()
        await until_in_loop(lambda: stage.endings == [EndReason.LOST])
        assert fake.process.wait(20) == -9
        assert await stage.gateway.close(0)

    play(scene)
    assert stage.reasons() == ["started", "data-plane-ended", "ended"]
    (said,) = stage.said
    assert said.endswith("(Ctrl-C, or `keyhole stop 0123456789ab`) and run it again")


def test_one_that_does_not_close_the_door_is_ended_at_once(fake: FakePlane, stage: Stage) -> None:
    async def scene() -> None:
        await stage.serve(fake)
        closing = asyncio.ensure_future(stage.gateway.shut(EndReason.REVOKED, 7))
        await until_in_loop(lambda: fake.process.poll() is not None)
        fake.die()
        assert await closing
        await until_in_loop(lambda: stage.endings == [EndReason.REVOKED])
        assert await stage.gateway.close(0)

    play(scene)
    assert stage.reasons() == ["started", "closed", "data-plane-ended", "ended"]
    assert stage.said == ["the data plane was ended: it did not close its door within 50 ms"]
    assert stage.is_whole()


def test_a_door_is_closed_also_when_that_cannot_be_written_down(
    fake: FakePlane, stage: Stage
) -> None:
    """I12: the kill switch does not hang on the log, whose thread may have ended."""

    async def scenario() -> None:
        await stage.serve(fake)
        assert stage.gateway._log is not None
        stage.gateway._log.close()
        assert await stage.gateway.shut(EndReason.REVOKED, 1)
        assert fake.process.wait(5) == -9
        fake.die()
        await asyncio.sleep(0.05)
        assert stage.endings == [EndReason.REVOKED]
        assert not await stage.gateway.shut(EndReason.REVOKED, 1)
        stage.gateway._log = None
        await stage.gateway.close(0)

    asyncio.run(scenario())


def test_one_that_is_silent_at_the_end_is_written_down(
    fake: FakePlane, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.app.run.run_gateway.FINISH_SECONDS", 0.05)

    async def scene() -> None:
        await stage.serve(fake)
        assert await stage.gateway.close(3)

    play(scene)
    assert stage.reasons() == ["started", "data-plane-ended", "ended"]


NONSENSE = (
    b"{", b"[]", b"null", b"\xff", b"[" * 60_000,
    {"closed": "nonsense"}, {"closed": 7}, {"opened": 1}, {"say": 7}, {"looked": "x"},
    {"looked": 99}, {"granted": 99}, {"ungranted": 99, "why": []}, {"judge": "x"}, {"head": 7},
)  # fmt: skip


def test_nonsense_is_not_heard(fake: FakePlane, stage: Stage) -> None:
    async def scene() -> None:
        opening = await stage.open(fake)
        for each in NONSENSE:
            fake.say(each)
        fake.say({"say": "the control"})
        await until_in_loop(lambda: stage.said == ["the control"])
        assert not opening.done()
        assert stage.gateway.is_open
        assert stage.endings == []
        fake.say({"opened": True})
        await opening
        fake.say({"head": "not a digest"})
        await stage.gateway.close(0)

    play(scene)
    assert stage.reasons() == ["started", "ended"]
    assert stage.is_whole()


def test_figures_are_believed_as_far_as_they_fit(fake: FakePlane, stage: Stage) -> None:
    said = {
        "figures": [-5, 2**70, "x", 4, 5, 6, 7],
        "grants": [["ok.example", 9, 1], ["", 1, 1], [1, 2, 3], ["a\x1b b", 1, 2**80], "x"],
        "budgets": "nonsense",
    }

    async def scene() -> None:
        await stage.serve(fake)
        operations = RunOperations(stage.gateway, stage.record)
        looking = asyncio.ensure_future(operations.show_session(ID))
        await until_in_loop(lambda: ReportFigures(1) in fake.told())
        fake.say({"looked": 1} | said)
        view = await looking
        assert (view.connections, view.requests, view.denied) == (0, MAX_COUNT, 0)
        assert (view.up, view.down, view.state) == (4, 5, SessionPhase.OPEN)
        assert [(g.host, g.uses) for g in view.grants] == [("ok.example", 1), ("ab", MAX_COUNT)]
        assert view.budgets == ()
        # One that does not answer shows what it said last.
        again = await operations.show_session(ID)
        assert again.requests == MAX_COUNT
        fake.say({"head": ""})
        await stage.gateway.close(0)

    play(scene)


def test_a_command_that_cannot_be_started_gives_its_place_back(
    fake: FakePlane, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_gateway, "MAX_COMMANDS", 1)

    async def scene() -> None:
        await stage.serve(fake)
        stage.lost = True
        for number in range(2):
            heard: list[CommandAnswered] = []
            fake.say({"consult": number, "ask": {}})

            def answered(heard: list[CommandAnswered] = heard) -> bool:
                heard.extend(each for each in fake.told() if isinstance(each, CommandAnswered))
                return bool(heard)

            await until_in_loop(answered)
            assert heard == [CommandAnswered(number, why="the policy is gone")]
        fake.say({"head": ""})
        await stage.gateway.close(0)

    play(scene)


def test_no_more_judges_are_started_than_there_is_work_for(
    fake: FakePlane, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a data plane that was taken over wishes for processes."""
    monkeypatch.setattr(own_gateway, "MAX_JUDGES", 1)

    async def scene() -> None:
        await stage.serve(fake)
        heard: list[JudgeStarted] = []
        for _ in range(3):
            fake.say({"judge": True})

        def answered() -> bool:
            heard.extend(each for each in fake.told() if isinstance(each, JudgeStarted))
            return len(heard) == 3

        await until_in_loop(answered)
        assert [bool(each.why) for each in heard] == [False, True, True]
        fake.say({"head": ""})
        await stage.gateway.close(0)

    play(scene)


@pytest.mark.parametrize("said", [b"{", b"[]", b'{"ca": 7}', b'{"ca": "\\u00e9"}', b"[" * 60_000])
def test_a_certificate_that_is_none_ends_the_set_up(fake: FakePlane, said: bytes) -> None:
    fake.say(said)
    with pytest.raises(SetupFailed):
        fake.plane.open(b"a session", inspects=True)
    fake.say({"ca": "PEM"})  # the control
    assert fake.plane.open(b"a session", inspects=True) == b"PEM"
