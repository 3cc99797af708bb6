"""The doorkeeper between a door and a session that ends before it."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.containers import door_receiver
from keyhole.app.containers.door_receiver import REVOKED, DoorReceiver
from keyhole.app.containers.door_receiver_client import ExpectedSandbox
from keyhole.app.containers.sandbox_files import SandboxFiles
from keyhole.app.session.end_reason import EndReason
from keyhole.app.setup.host_paths import HostPaths
from keyhole.control.values import OpenedSession, SessionPhase
from keyhole.model.errors import Refused, ResourceUnusable, SetupFailed
from keyhole.sandbox.files.mount_plan import TextFile
from keyhole.sandbox.launch import ResourceLimits
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


class FakeRegistration:
    """A holder that registers its door again and again."""

    def __init__(self, _: Path) -> None:
        """As the real one."""

    async def accept(self) -> socket.socket:
        return socket.socket(socket.AF_UNIX)


class FakeLine:
    """The gateway's end, as far as it is heard."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def say(self, **message: str) -> None:
        self.said.put_nowait(message)


@pytest.mark.parametrize("ending", [EndReason.REVOKED, EndReason.IDLE])
def test_behind_a_session_that_was_cut_off_nothing_is_started_anew(
    tmp_path: Path, ending: EndReason
) -> None:
    """I2. Control: until then it would be; and what runs still finds its files."""
    session_files = SandboxFiles(
        OpenedSession("0123456789ab", SessionPhase.OPEN, ""), 60.0, tmp_path, {},
        (TextFile("/etc/keyhole/ca.pem", "a certificate"),), ResourceLimits(16, 1 << 30), (),
    )  # fmt: skip
    session_files.place("net:[1]", b"a cookie")
    entry = tmp_path / "entry"
    assert entry.exists()  # control

    async def cut_off() -> None:
        places = HostPaths(tmp_path, tmp_path, tmp_path, tmp_path)
        line = FakeLine()
        expected = ExpectedSandbox(tmp_path, tmp_path, tmp_path / "keyhole.toml")
        keeper = DoorReceiver(expected, places, cast("Any", line))
        ours, holder = socket.socketpair()
        endings: asyncio.Queue[EndReason] = asyncio.Queue()
        with ours, holder:
            holding = asyncio.ensure_future(keeper._hold(ours, endings, session_files))
            endings.put_nowait(ending)
            assert await line.said.get() == {"lacks": REVOKED}
            assert not entry.exists()
            assert (tmp_path / "ca.pem").read_text() == "a certificate"
            assert not holding.done()  # what runs goes on, until its door is gone
            holder.close()
            await holding

    asyncio.run(cut_off())


def test_a_program_that_is_missing_ends_it_and_a_door_that_is_refused_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next door would not find the program either; the next policy may be accepted."""
    monkeypatch.setattr(door_receiver, "DoorRegistration", FakeRegistration)
    monkeypatch.setattr(door_receiver, "PAUSE_SECONDS", 0.0)
    errors = [Refused("not accepted"), SetupFailed("too long"), ResourceUnusable("no bwrap")]
    line = FakeLine()

    async def serve() -> None:
        places = HostPaths(tmp_path, tmp_path, tmp_path, tmp_path)
        expected = ExpectedSandbox(tmp_path, tmp_path, tmp_path / "keyhole.toml")
        receiver = DoorReceiver(expected, places, cast("Any", line))

        async def fail(_: socket.socket) -> None:
            raise errors.pop(0)

        monkeypatch.setattr(receiver._files_writer, "prepare", lambda: None)
        monkeypatch.setattr(receiver, "_serve", fail)
        opened = asyncio.Event()
        opened.set()
        async with asyncio.timeout(PATIENCE):
            await receiver.serve(opened)

    with pytest.raises(ResourceUnusable, match="no bwrap"):
        asyncio.run(serve())
    said = [line.said.get_nowait() for _ in range(line.said.qsize())]
    assert [each["say"] for each in said if "say" in each] == [
        "a door was not taken: not accepted", "a door was not taken: too long"
    ]  # fmt: skip
