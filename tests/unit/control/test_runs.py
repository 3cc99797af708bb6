"""Endpoints of runs: claimed, found, cleared up, and closed where nobody answers (I5, I12)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.control import runs
from keyhole.control.client import SILENT, ControlFailed, NoGateway
from keyhole.control.endpoints import ClosedSessions, ControlEndpoint, ask_all, find_endpoints
from keyhole.control.runs import ProcessIdentity, RunRecord, claim_run, find_runs, socket_of
from keyhole.control.server import ControlServer
from keyhole.control.socket_directory import BACKLOG
from keyhole.control.values import SessionPhase
from keyhole.model.errors import ResourceUnusable
from tests.rigs.control.rig import FakeGateway

if TYPE_CHECKING:
    from collections.abc import Iterator

ID, OTHER = "0123456789ab", "ba9876543210"
CLAIMS = """
import pathlib, sys, time
from keyhole.control.runs import ProcessIdentity, RunRecord, claim_run
import os
own = ProcessIdentity.of(os.getpid())
mine = claim_run(pathlib.Path(sys.argv[1]), RunRecord(sys.argv[2], "x", "/p", 1, own, own))
print("claimed", flush=True)
time.sleep(1000)
"""


def record(session: str = ID, plane: int | None = None) -> RunRecord:
    own = ProcessIdentity.of(os.getpid())
    policy = "/home/you/keyhole.toml"
    return RunRecord(
        session, "claude", policy, 1_800_000_000, own, ProcessIdentity.of(plane or own.pid)
    )


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    made = tmp_path / "keyhole"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_run_is_found_while_it_lives_and_leaves_nothing(runtime: Path) -> None:
    assert find_runs(runtime) == []
    claim = claim_run(runtime, record())
    try:
        assert find_runs(runtime) == [record()]
        place = runtime / "runs"
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE((place / socket_of(ID)).stat().st_mode) == 0o600
    finally:
        claim.release()
    claim.release()  # a second time does nothing
    assert find_runs(runtime) == []
    assert list((runtime / "runs").iterdir()) == []


def test_what_a_killed_run_left_is_recognised_and_removed(runtime: Path) -> None:
    words = [sys.executable, "-c", CLAIMS, str(runtime), OTHER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        claim = claim_run(runtime, record())
        assert [each.session for each in find_runs(runtime)] == [ID, OTHER]
        process.kill()
        process.wait()
        assert {path.stem for path in (runtime / "runs").iterdir()} == {ID, OTHER}
        assert [each.session for each in find_runs(runtime)] == [ID]
        assert {path.stem for path in (runtime / "runs").iterdir()} == {ID}
        claim.release()


def test_a_claim_that_is_being_made_is_not_taken_for_a_leftover(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_run(runtime, record()).release()
    new = runtime / "runs" / f"{ID}.0badcafe.new"
    new.touch()
    assert find_runs(runtime) == []
    assert new.exists()
    os.utime(new, (1, 1))
    assert find_runs(runtime) == []
    assert not new.exists()


@pytest.mark.parametrize(
    "said",
    [
        b"", b"[]", b"{", b'{"label": 1}', b"[" * 100_000,
        b'{"label": "x", "policy": "/p", "opened": 1, "main": [1], "plane": [1, 2]}',
    ],
)  # fmt: skip
def test_a_lock_file_that_says_something_else_is_no_run(runtime: Path, said: bytes) -> None:
    claim_run(runtime, record(OTHER)).release()
    path = runtime / "runs" / f"{ID}.lock"
    path.write_bytes(said)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert find_runs(runtime) == []
        assert path.exists()


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    claim_run(runtime, record(OTHER)).release()
    target = tmp_path / "other"
    target.write_text("{}")
    (runtime / "runs" / f"{ID}.lock").symlink_to(target)
    (runtime / "runs" / "odd.lock").touch()
    assert find_runs(runtime) == []
    assert target.read_text() == "{}"


def test_a_place_that_others_could_change_is_refused(runtime: Path) -> None:
    claim_run(runtime, record()).release()
    (runtime / "runs").chmod(0o777)
    for attempt in (lambda: find_runs(runtime), lambda: claim_run(runtime, record())):
        with pytest.raises(ResourceUnusable, match="is open to others"):
            attempt()


def test_a_directory_that_cannot_be_made_is_named_and_has_no_runs() -> None:
    """The run goes on, and warns that no verb knows it."""
    nowhere = Path("/proc/nope/keyhole")
    with pytest.raises(ResourceUnusable, match=r"^/proc/nope: there is no such directory$"):
        claim_run(nowhere, record())
    assert find_runs(nowhere) == []


def test_a_path_longer_than_an_address_has_room_for_serves(tmp_path: Path) -> None:
    runtime = tmp_path / ("long" * 40) / "keyhole"
    runtime.parent.mkdir(mode=0o700)
    runtime.mkdir(mode=0o700)
    claim = claim_run(runtime, record())
    assert len(str(runtime / "runs" / socket_of(ID))) > 108
    assert [each.session for each in find_runs(runtime)] == [ID]
    with pytest.raises(
        ControlFailed, match="did not answer within"
    ):  # it connects, and nobody answers
        ControlEndpoint(runtime, record()).client(0.05).status()
    claim.release()


def test_a_process_is_ended_only_if_it_is_the_one_that_was_named(
    sleeper: subprocess.Popen[bytes],
) -> None:
    other = ProcessIdentity(sleeper.pid, ProcessIdentity.of(sleeper.pid).started + 1)
    assert other.end()
    assert sleeper.poll() is None
    assert ProcessIdentity.of(sleeper.pid).end()
    assert sleeper.wait() == -signal.SIGKILL
    assert ProcessIdentity(sleeper.pid, 7).end()


# all endpoints


class Served:
    """A run's endpoint on a loop of its own thread."""

    def __init__(self, runtime: Path, record: RunRecord) -> None:
        self.gateway = FakeGateway(ids=[record.session])
        self._claim = claim_run(runtime, record)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> None:
        self._server = ControlServer(self._loop, self._claim, self._claim.listener, self.gateway)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def test_one_endpoint_that_does_not_answer_keeps_no_other_waiting(
    runtime: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """I12: its data plane, here a process that sleeps, is ended instead."""
    healthy = Served(runtime, record(OTHER))
    silent = claim_run(runtime, record(ID, sleeper.pid))
    try:
        endpoints = find_endpoints(runtime)
        assert [each.run and each.run.session for each in endpoints] == [None, ID, OTHER]
        listed = [each.sessions() for each in endpoints[1:]]
        (unseen,), (seen,) = listed
        assert (unseen.id, unseen.state, unseen.label) == (ID, SessionPhase.SILENT, "claude")
        assert (seen.id, seen.state) == (OTHER, SessionPhase.OPEN)
        start = time.monotonic()
        answers = [answer for _, answer in ask_all(endpoints[1:], lambda each: each.revoke_all())]
        took = time.monotonic() - start
        assert answers == [ClosedSessions(1, ended=True), ClosedSessions(1)]
        assert sleeper.wait() == -signal.SIGKILL
        assert [call[0] for call in healthy.gateway.calls] == ["revoke_all"]
        assert took < 1.0
    finally:
        healthy.close()
        silent.release()


def test_a_run_whose_queue_of_connections_is_full_is_closed(
    runtime: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """I12: a run that is stopped (Ctrl-Z) and was asked by `keyhole ps --watch` all the while."""
    silent = claim_run(runtime, record(ID, sleeper.pid))
    try:
        endpoint = find_endpoints(runtime)[1]
        for _ in range(BACKLOG + 8):
            with pytest.raises(ControlFailed) as raised:
                endpoint.client(0.001).status()
        assert raised.value.reason != SILENT  # the kernel takes no more of them
        assert sleeper.poll() is None
        assert endpoint.revoke_all() == ClosedSessions(1, ended=True)
        assert sleeper.wait() == -signal.SIGKILL
        with pytest.raises(NoGateway):
            endpoint.revoke(ID)
    finally:
        silent.release()


def test_a_run_whose_socket_was_removed_is_seen_and_closed(
    runtime: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """I12: by its lock file, which is held."""
    silent = claim_run(runtime, record(ID, sleeper.pid))
    try:
        (runtime / "runs" / socket_of(ID)).unlink()
        endpoint = find_endpoints(runtime)[1]
        assert [each.state for each in endpoint.sessions()] == [SessionPhase.SILENT]
        assert not endpoint.revoke(ID)
        assert sleeper.wait() == -signal.SIGKILL
        assert endpoint.sessions() == []
        for ask in (endpoint.revoke_all, lambda: endpoint.stop(ID)):
            with pytest.raises(NoGateway):
                ask()
    finally:
        silent.release()


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: a command that has no descriptor left says so, and not that a door is closed."""

    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    known = ProcessIdentity.of(sleeper.pid)
    with monkeypatch.context() as patched:
        patched.setattr("keyhole.control.runs.os.pidfd_open", refuse)
        assert known.lives
        assert not known.end()
    with monkeypatch.context() as patched:
        patched.setattr("keyhole.control.runs.started_ticks", lambda _: None)
        assert known.lives
        assert not known.end()
    assert sleeper.poll() is None


def test_an_endpoint_that_cannot_be_asked_is_told_of(runtime: Path) -> None:
    def ask(_: ControlEndpoint) -> None:
        raise OSError(24, "Too many open files")

    ((_, answer),) = ask_all([ControlEndpoint(runtime)], ask)
    assert isinstance(answer, ControlFailed)
    assert "Too many open files" in str(answer)


def test_whoever_lists_runs_keeps_none_from_taking_its_place(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file that is just made is not locked by the one that lists."""
    claim_run(runtime, record(OTHER)).release()
    held: list[str] = []
    read = runs._read

    def noted(directory: int, name: str) -> tuple[bool, bytes] | None:
        held.append(name)
        return read(directory, name)

    monkeypatch.setattr(runs, "_read", noted)
    (runtime / "runs" / f"{ID}.0badcafe.new").touch()
    assert find_runs(runtime) == []
    assert held == []


def test_the_directory_is_bounded(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: what is listed beyond the bound is not looked at."""
    claims = [claim_run(runtime, record(f"{n:012x}")) for n in range(4)]
    monkeypatch.setattr(runs, "MAX_RUNS", 1)
    assert len(find_runs(runtime)) < 4
    monkeypatch.undo()
    assert len(find_runs(runtime)) == 4
    for each in claims:
        each.release()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("script", "code"),
    [("trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done", 3),
     ("trap '' TERM; echo up; while :; do sleep 0.05; done", -signal.SIGKILL)],
)  # fmt: skip
def test_a_process_is_asked_to_end_before_it_is_killed(
    script: str, code: int, stopped: bool
) -> None:
    """A run that is killed cannot give the terminal back."""
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        if stopped:
            process.send_signal(signal.SIGSTOP)
        assert ProcessIdentity.of(process.pid).end(grace=1.0)
        assert process.wait() == code
