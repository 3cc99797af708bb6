"""The remote receiver beside a listener and relays, all of which read hostile bytes (I5, I9, I12).

Real channels; the processes at their other ends are this test.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.remote import receiver as room
from keyhole.app.remote.invitation import MAX_INVITATIONS
from keyhole.app.remote.receiver import MAX_LABEL, RemoteReceiver
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OPENING = {"policy": "/p/keyhole.toml", "trusted": "t", "label": "", "granted": "g"}


class Beside:
    """A receiver, and what it says to the control process, the listener and its relays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.started: list[socket.socket] = []

        self._children: list[int] = []

        def start(module: str, sockets: tuple[socket.socket, ...], env: object) -> int:
            """A process that says nothing; this test speaks for it."""
            self.started.append(sockets[0].dup())
            sockets[0].close()
            self._children.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
            return self._children[-1]

        monkeypatch.setattr(room, "start_child", start)
        self.receiver = RemoteReceiver("/run/none", 4, {})
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._port = socket.socket()
        self.receiver.open(SandboxChannel(loop, theirs, lambda _: None, lambda: None), self._port)
        self.listener = self.started[0]
        assert self.told(self.listener) == {"lifetime": 4}
        self.say(self.listener, ready="00" * 16)

    def say(self, sock: socket.socket, **message: object) -> None:
        """Speak as one of the processes."""
        sock.send(json.dumps(message).encode())

    def told(self, sock: socket.socket) -> dict[str, Any]:
        """The next message to one of them."""
        message: dict[str, Any] = json.loads(sock.recv(1 << 17))
        return message

    async def hear(self, sock: socket.socket) -> dict[str, Any]:
        """The same, while the loop goes round."""
        return await asyncio.to_thread(self.told, sock)

    async def until_read(self, sock: socket.socket) -> None:
        """Until the receiver has read all that one of them said."""
        unread = struct.pack("i", 0)
        await until_in_loop(lambda: fcntl.ioctl(sock, termios.TIOCOUTQ, unread) == unread)

    async def invited(self) -> str:
        """The digest of a new invitation, as the listener gets it."""
        await until_in_loop(lambda: self.receiver._fingerprint)
        self.receiver.told({"invite": OPENING, "number": 1, "seconds": 60})
        return str((await self.hear(self.listener))["invite"])

    async def enrolled(self, opening: dict[str, object]) -> dict[str, Any]:
        """An enrolment: the first message of its relay, or the refusal."""
        digest, count = await self.invited(), len(self.started)
        self.say(self.listener, enrol=digest, number=9, opening=opening)
        await until_in_loop(
            lambda: len(self.started) > count or select.select([self.listener], [], [], 0)[0]
        )
        sock = self.started[-1] if len(self.started) > count else self.listener
        return await self.hear(sock)

    def close(self) -> None:
        for each in (self.control, self._port, *self.started):
            each.close()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def beside(
    work: Callable[[Beside], Awaitable[None]],
) -> Callable[[pytest.MonkeyPatch], None]:
    """A test on a loop, with a receiver."""

    async def main(monkeypatch: pytest.MonkeyPatch) -> None:
        made = Beside(monkeypatch)
        try:
            await work(made)
        finally:
            made.close()

    def test(monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(main(monkeypatch))

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@beside
async def test_a_door_chooses_its_label_and_placeholders_and_nothing_else_i5(made: Beside) -> None:
    opening: dict[str, object] = {
        "label": "x" * 200, "stand_ins": {"api": ["a"]}, "policy": "/etc/shadow",
        "trusted": "mine", "writable": ["/"],
    }  # fmt: skip
    asked = (await made.enrolled(opening))["opening"]
    assert (asked["policy"], asked["trusted"], asked["granted"]) == ("/p/keyhole.toml", "t", "g")
    assert asked["label"] == "x" * MAX_LABEL
    assert asked["stand_ins"] == [{"service": "api", "texts": ["a"]}]
    assert not asked.get("writable")


@pytest.mark.parametrize(
    "opening",
    [{}, {"label": 1, "stand_ins": {}}, {"label": "x", "stand_ins": [1]}, {"label": "x"}],
)
def test_an_opening_of_another_shape_is_refused_i9(
    opening: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        made = Beside(monkeypatch)
        assert "refused" in await made.enrolled(opening)
        made.close()

    asyncio.run(main())


@beside
async def test_an_invitation_that_nobody_made_starts_nothing_i5(made: Beside) -> None:
    await until_in_loop(lambda: made.receiver._fingerprint)
    made.say(made.listener, enrol="00", number=3, opening={"label": "x", "stand_ins": {}})
    assert "refused" in await made.hear(made.listener)
    assert len(made.started) == 1


@beside
async def test_certificates_for_one_door_are_signed_once_in_a_while_i12(made: Beside) -> None:
    """A door that asks in a loop keeps the listener from nothing."""
    await made.enrolled({"label": "x", "stand_ins": {}})
    relay = made.started[-1]
    made.say(relay, opened="s1", ca="", notes=[])
    assert (await made.hear(made.listener))["enrolled"] == "s1"
    for _ in range(50):
        made.say(relay, renew="key")
    await made.until_read(relay)
    made.say(made.listener, connect="s1", number=4, address="192.0.2.2")
    assert await made.hear(made.listener) == {"renew": "s1", "key": "key"}
    assert (await made.hear(made.listener))["taken"] == "s1", "no second one in between"
    await asyncio.sleep(room.RENEWALS_APART)
    made.say(relay, renew="key")
    assert "renew" in await made.hear(made.listener), "the control: later it is"


@beside
async def test_a_relay_speaks_for_its_own_session_and_its_end_ends_the_certificate_i5(
    made: Beside,
) -> None:
    await made.enrolled({"label": "x", "stand_ins": {}})
    relay = made.started[-1]
    made.say(relay, renew="too early")
    made.say(relay, opened="s1", ca="", notes=[])
    made.say(relay, opened="s2", ca="", notes=[])
    assert (await made.hear(made.listener))["enrolled"] == "s1"
    made.say(relay, closed=True)
    assert await made.hear(made.listener) == {"closed": "s1"}
    relay.close()
    assert await made.hear(made.listener) == {"gone": "s1"}


@beside
async def test_invitations_have_a_bound_which_is_said_i9(made: Beside) -> None:
    """Control: as many as there may be are made."""
    await until_in_loop(lambda: made.receiver._fingerprint)
    made.control.recv(4096)
    for number in range(MAX_INVITATIONS + 1):
        made.receiver.told({"invite": OPENING, "number": number, "seconds": 60})
        said = json.loads(await asyncio.to_thread(made.control.recv, 4096))
        assert bool(said["code"]) == (number < MAX_INVITATIONS)
    assert "invitations wait" in said["why"]


@beside
async def test_visitors_that_were_turned_away_are_told_at_a_bounded_rate_i8_i9(
    made: Beside,
) -> None:
    """A listener that somebody has taken over says no more than one that nobody has."""
    assert await made.hear(made.control) == {"ready": True}
    told = {"address": "192.0.2.9" * 99, "of": "s1\x1b[2J", "times": 2}
    made.say(made.listener, turned_away="an invention", **told)
    for _ in range(5):
        made.say(made.listener, turned_away="no-such-code", **told)
    made.say(made.listener, turned_away="certificate-not-valid", **told)
    first, second = [await made.hear(made.control) for _ in range(2)]
    assert [each["turned_away"] for each in (first, second)] == [
        "no-such-code", "certificate-not-valid",
    ]  # fmt: skip
    assert (len(first["address"]), first["times"]) == (64, 2)
    assert "\x1b" not in first["of"]
    await made.until_read(made.listener)
    assert not select.select([made.control], [], [], 0)[0]
