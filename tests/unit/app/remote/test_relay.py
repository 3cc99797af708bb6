"""The gateway's relay of one remote door: what it takes from the door, and how much (I2, I9, I12).

The relay and the door's end are real, over real sockets; nothing is in an empty network here, so
only what never connects is tried.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from keyhole.app.remote import relay as relay_room
from keyhole.app.remote.carriage import MAX_STREAMS, Carriage
from keyhole.app.remote.parcel_channel import ParcelChannel
from keyhole.app.remote.relay import WORDS_PER_SECOND, Relay
from keyhole.wire.carried_frames import CarriedFrame, FrameKind, open_frame
from tests.rigs.waiting import until_in_loop


class Door:
    """A remote door's end, the relay, and what the relay tells the control process."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self.relay = Relay(loop, theirs)
        self.words: list[dict[str, Any]] = []
        self.lost: list[bool] = []
        self.trunk = Carriage(lambda *_: None, self.words.append, lambda _: self.lost.append(True))

    async def join(self) -> None:
        """Connect, as the listener does it."""
        one, other = socket.socketpair()
        other.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.trunk, other)
        self.relay.heard({"trunk": "192.0.2.2"}, one)
        await until_in_loop(lambda: {"carried": True} in self.words)
        assert self.told() == {"note": "remote-connected", "address": "192.0.2.2"}

    def told(self) -> dict[str, Any]:
        """The next message to the control process; empty if there is none."""
        try:
            message: dict[str, Any] = json.loads(self._control.recv(1 << 16))
        except BlockingIOError:
            return {}
        return message

    def close(self) -> None:
        self.relay.close()
        self.trunk.close()
        self._control.close()


def test_a_door_that_talks_too_much_is_cut_off_i12() -> None:
    async def main() -> None:
        door = Door()
        await door.join()
        for number in range(WORDS_PER_SECOND - 1):
            door.trunk.say(note="exec", number=number)
        await asyncio.sleep(1.1)
        door.trunk.say(note="attach")
        told: list[dict[str, Any]] = []

        def have_all() -> bool:
            told.extend(iter(door.told, {}))
            return len(told) >= WORDS_PER_SECOND

        await until_in_loop(have_all)
        assert not door.lost, "the control: as many as it may"
        assert told[-1] == {"note": "attach"}
        for _ in range(WORDS_PER_SECOND + 1):
            door.trunk.say(note="exec")
        await until_in_loop(lambda: door.lost)
        door.close()

    asyncio.run(main())


def test_only_messages_that_a_door_may_send_are_passed_on_i9() -> None:
    async def main() -> None:
        door = Door()
        await door.join()
        for each in ({"closed": "done"}, {"head": "x"}, {"say": "boo"}, {"ended": 3}):
            door.trunk.say(**each)
        await until_in_loop(lambda: (found := door.told()) and found == {"ended": 3})
        door.close()

    asyncio.run(main())


def test_a_destination_on_the_gateways_own_loopback_is_refused_i2() -> None:
    """A server listens there, so a relay that connected would reach it."""

    async def main() -> None:
        door = Door()
        await door.join()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.3)
            stream = door.trunk.open(1)
            door.trunk.send(open_frame(1, "127.0.0.1", server.getsockname()[1]))
            await until_in_loop(lambda: 1 not in door.trunk)
            assert stream.number == 1
            try:
                reached: object = await asyncio.to_thread(server.accept)
            except TimeoutError:
                reached = None
            assert reached is None
        assert not door.lost
        door.close()

    asyncio.run(main())


def test_a_door_that_answers_is_cut_off_i9() -> None:
    async def main() -> None:
        door = Door()
        await door.join()
        door.trunk.send(CarriedFrame(FrameKind.ANSWER, 1, b"x"))
        await until_in_loop(lambda: door.lost)
        door.close()

    asyncio.run(main())


def test_a_door_records_events_of_its_own_sandbox_and_no_others_i8() -> None:
    """Attack: whoever has its key says that it connected from elsewhere, or that it is a pod."""

    async def main() -> None:
        door = Door()
        await door.join()
        for note in ("remote-connected", "remote-lost", "remote-refused", "pod-bound", "claimed"):
            door.trunk.say(note=note, address="203.0.113.9", uid="1", pod="other")
        door.trunk.say(note="home-full", bytes=5)
        found: dict[str, Any] = {}
        await until_in_loop(lambda: found.update(door.told()) or found)
        assert found == {"note": "home-full", "bytes": 5}
        door.close()

    asyncio.run(main())


def test_a_door_that_opens_and_resets_without_end_takes_bounded_sockets_i9(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway accepts at its own rate, so connections wait; here all of them do. Control: as
    many as a door may have are begun."""

    async def main() -> None:
        door = Door()
        await door.join()
        begun: list[object] = []
        over = asyncio.Event()

        async def wait(*words: object) -> None:
            begun.append(words)
            await over.wait()
            raise TimeoutError

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", wait)
        for number in range(1, 4 * MAX_STREAMS):
            door.trunk.send(open_frame(number, "192.0.2.1", 443))
            door.trunk.send(CarriedFrame(FrameKind.RESET, number))
        door.trunk.say(note="attach")
        await until_in_loop(lambda: door.told() == {"note": "attach"})
        await asyncio.sleep(0.05)  # what was begun by then has begun
        assert len(begun) == MAX_STREAMS
        assert not door.lost
        over.set()
        await until_in_loop(lambda: not door.relay._tasks)
        door.close()

    asyncio.run(main())


def test_a_connection_that_is_lost_at_once_leaves_the_session_waiting_i9() -> None:
    """Attack: with such a connection last, a session would never be given up."""

    async def main() -> None:
        door = Door()
        await door.join()
        door.trunk.close()
        await until_in_loop(lambda: door.told() == {"note": "remote-lost"})
        for _ in range(5):
            one, other = socket.socketpair()
            other.close()
            door.relay.heard({"trunk": "192.0.2.2"}, one)
        await until_in_loop(lambda: not door.relay._tasks)
        await asyncio.sleep(0.1)
        assert door.relay._trunk is None
        assert not door.relay._away.cancelled()
        door.close()

    asyncio.run(main())


@pytest.mark.parametrize("connected", [True, False])
def test_a_closed_session_is_over_when_its_door_is_gone_i5(
    connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the receiver hears at once that its certificate is worth nothing. Control: before that,
    the session waits for its door."""
    monkeypatch.setattr(relay_room, "ANSWER_SECONDS", 0.05)

    async def main() -> None:
        door = Door()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        loop = asyncio.get_running_loop()
        door.relay.open(ParcelChannel(loop, theirs, lambda *_: None, lambda: None))
        await door.join()
        if not connected:
            door.trunk.close()
            await until_in_loop(lambda: door.told() == {"note": "remote-lost"})
        assert not door.relay.over.is_set()
        door.relay._told({"closed": "revoked"})
        assert json.loads(ours.recv(4096)) == {"closed": True}
        if connected:
            await until_in_loop(lambda: {"closed": "revoked"} in door.words)
            await asyncio.sleep(0.1)
            assert not door.relay.over.is_set()
            door.trunk.close()
        await until_in_loop(door.relay.over.is_set)
        door.close()
        ours.close()

    asyncio.run(main())


def test_a_session_whose_door_stays_away_ends_and_one_that_comes_back_goes_on_i2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_room, "AWAY_SECONDS", 0.3)

    async def main() -> None:
        door = Door()
        await door.join()
        await asyncio.sleep(0.5)
        assert not door.relay.over.is_set(), "the control: a connected door may be silent"
        door.trunk.close()
        await until_in_loop(lambda: door.told() == {"note": "remote-lost"})
        assert not door.relay.over.is_set()
        await until_in_loop(door.relay.over.is_set)
        door.close()

    asyncio.run(main())
