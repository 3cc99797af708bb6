"""Doors that come beside a request: exactly as many, of the right kind, from elsewhere (I5)."""

from __future__ import annotations

import array
import asyncio
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.control import connection, values
from keyhole.control.client import RequestDeclined
from keyhole.control.received_door import MAX_DESCRIPTORS, ReceivedDoor
from tests.rigs.control.namespaces import elsewhere, here, own_namespace
from tests.rigs.control.rig import KNOWN, OPENING, Rig, open_descriptors, request, status_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

DOOR = ("tcp", "udp", "tcp6")


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(rig: Rig) -> Iterator[None]:
    """Whatever a test sends, the server keeps none of it beyond what was taken."""
    rig.client.status()
    rig.settled()
    before = open_descriptors()
    yield
    rig.settled()
    rig.gateway.close()
    assert open_descriptors() == before


def opening(*door: str) -> values.SessionRequest:
    return values.SessionRequest(
        OPENING.policy, OPENING.trusted, OPENING.label, OPENING.granted, door=door
    )


def filenos(sockets: list[socket.socket]) -> list[int]:
    return [each.fileno() for each in sockets]


def asked(*door: str) -> bytes:
    body = {
        "policy": "/p",
        "trusted": OPENING.trusted,
        "label": "x",
        "granted": OPENING.granted,
        "door": list(door),
    }
    return request("POST", "/v1/sessions", json.dumps(body).encode())


# ── what works ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("names", [("tcp", "udp"), DOOR, ("udp", "tcp6", "tcp")])
def test_a_door_from_elsewhere_is_handed_to_the_gateway(rig: Rig, names: tuple[str, ...]) -> None:
    with elsewhere(*names) as sockets:
        opened = rig.client.open_session(opening(*names), filenos(sockets))
        assert opened.state is values.SessionPhase.OPEN
        (door,) = rig.gateway.doors
        taken = {"tcp": door.tcp, "udp": door.udp, "tcp6": door.tcp6}
        for name, sent in zip(names, sockets, strict=True):
            got = taken[name]
            assert got is not None
            assert os.fstat(got.fileno()).st_ino == os.fstat(sent.fileno()).st_ino
            assert not os.get_inheritable(got.fileno())
    assert rig.gateway.namespaces[0] not in (b"", own_namespace())


def test_a_session_is_prepared_first_and_gets_its_door_from_the_same_process(rig: Rig) -> None:
    opened = rig.client.open_session(opening())
    assert opened.state is values.SessionPhase.PREPARED
    assert opened.notes == ("a note",)
    with elsewhere("tcp", "udp") as sockets:
        rig.client.open_door(KNOWN, ("tcp", "udp"), filenos(sockets))
    assert len(rig.gateway.doors) == 1


def test_another_process_cannot_give_a_prepared_session_its_door(rig: Rig) -> None:
    """I5: the peer is pinned by the kernel; the same user's other process is another."""
    rig.client.open_session(opening())
    program = (
        "import sys, pathlib\n"
        "from keyhole.control.client import ControlClient, RequestDeclined\n"
        "try: ControlClient(pathlib.Path(sys.argv[1])).open_door(sys.argv[2], ('tcp', 'udp'), "
        "[int(n) for n in sys.argv[3:]])\n"
        "except RequestDeclined as error: print(error.status)\n"
    )
    with elsewhere("tcp", "udp") as sockets:
        numbers = [str(number) for number in filenos(sockets)]
        done = subprocess.run(
            [sys.executable, "-c", program, str(rig.directory), KNOWN, *numbers],
            pass_fds=filenos(sockets), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout == "404\n"
        assert not rig.gateway.doors
        rig.client.open_door(KNOWN, ("tcp", "udp"), filenos(sockets))
    assert len(rig.gateway.doors) == 1


def test_the_gateway_learns_when_the_process_ends_that_opened_a_session(rig: Rig) -> None:
    program = (
        "import sys, pathlib\n"
        "from keyhole.control.client import ControlClient\n"
        "from keyhole.control.values import SessionRequest\n"
        "digest = sys.argv[2]\n"
        "client = ControlClient(pathlib.Path(sys.argv[1]))\n"
        "client.open_session(SessionRequest('/p', digest, 'x', digest))\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(rig.directory), OPENING.trusted], stdin=subprocess.PIPE
    ) as opener:
        until(lambda: bool(rig.gateway.watched))
        poll = select.poll()
        poll.register(rig.gateway.watched[0])
        assert poll.poll(0) == []
        opener.kill()
        assert poll.poll(PATIENCE * 1000)


def test_bytes_may_come_in_pieces_and_descriptors_with_any_of_them(rig: Rig) -> None:
    whole = asked("tcp", "udp")
    with elsewhere("tcp", "udp") as sockets, rig.connect() as sock:
        sock.sendall(whole[:50])
        rights = array.array("i", filenos(sockets))
        sock.sendmsg([whole[50:51]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        sock.sendall(whole[51:])
        assert status_of(sock.recv(65536)) == 200


# ── what does not ─────────────────────────────────────────────────────────────────────────────────


def test_a_door_of_the_gateways_own_namespace_is_refused(rig: Rig) -> None:
    """I5: anything on this host could connect to it and would be taken for the sandbox."""
    own = pytest.raises(RequestDeclined, match="a network namespace of its own")
    with here("tcp", "udp") as sockets, own:
        rig.client.open_session(opening("tcp", "udp"), filenos(sockets))
    assert not rig.gateway.calls


def test_a_door_of_two_namespaces_is_refused(rig: Rig) -> None:
    """I5: two sandboxes would be one session."""
    two = pytest.raises(RequestDeclined, match="one network namespace")
    with elsewhere("tcp") as one, elsewhere("udp") as other, two:
        rig.client.open_session(opening("tcp", "udp"), filenos(one + other))
    assert not rig.gateway.calls


@pytest.mark.parametrize(
    "sent", [("udp", "tcp"), ("deaf", "udp"), ("tcp6", "udp"), ("tcp", "tcp"), ("udp", "udp")]
)
def test_a_socket_of_another_kind_than_its_name_says_is_refused(
    rig: Rig, sent: tuple[str, ...]
) -> None:
    with elsewhere(*sent) as sockets, pytest.raises(RequestDeclined, match="of the kind"):
        rig.client.open_session(opening("tcp", "udp"), filenos(sockets))
    assert not rig.gateway.calls


@pytest.mark.parametrize("path", ["/dev/null", "/", "/proc/self/ns/net"])
def test_what_is_no_socket_is_refused(rig: Rig, path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with elsewhere("tcp") as sockets, pytest.raises(RequestDeclined, match="not a socket"):
            rig.client.open_session(opening("tcp", "udp"), [*filenos(sockets), descriptor])
    finally:
        os.close(descriptor)
    assert not rig.gateway.calls


@pytest.mark.parametrize(
    ("names", "sent"),
    [
        (("tcp", "udp"), 0),
        (("tcp", "udp"), 1),
        (("tcp", "udp"), 3),
        (("tcp", "udp", "tcp6"), 2),
        (("tcp",), 1),
        (("udp",), 1),
        ((), 1),
        (("tcp", "tcp6"), 2),
    ],
)
def test_there_are_exactly_as_many_as_are_named(
    rig: Rig, names: tuple[str, ...], sent: int
) -> None:
    with elsewhere(*DOOR) as sockets:
        answer = rig.talk(asked(*names), descriptors=filenos(sockets)[:sent])
        assert status_of(answer) == 400
    assert not rig.gateway.calls


@pytest.mark.parametrize("count", [MAX_DESCRIPTORS + 1, 8, 200])
def test_more_than_a_door_has_are_refused(rig: Rig, count: int) -> None:
    """I9: the room for them ends at three; the kernel closes the rest."""
    with elsewhere(*DOOR) as sockets:
        many = (filenos(sockets) * count)[:count]
        answer = rig.talk(asked(*DOOR), descriptors=many)
    assert status_of(answer) == 400
    assert b"more descriptors" in answer


def test_more_than_a_door_has_in_several_messages_are_refused(rig: Rig) -> None:
    whole = asked(*DOOR)
    with elsewhere(*DOOR) as sockets, rig.connect() as sock:
        rights = array.array("i", filenos(sockets))
        for at in range(2):
            piece = whole[at : at + 1]
            sock.sendmsg([piece], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        assert b"more descriptors" in sock.recv(65536)


def test_what_takes_no_descriptors_refuses_them(rig: Rig) -> None:
    with elsewhere("tcp", "udp") as sockets:
        answer = rig.talk(request("GET", "/v1/status"), descriptors=filenos(sockets))
    assert status_of(answer) == 400
    assert b"takes no descriptors" in answer


def test_what_one_connection_sent_is_nothing_to_another(rig: Rig) -> None:
    """Attack: while a door is on its way, somebody else asks for a session with it."""
    whole = asked("tcp", "udp")
    with elsewhere("tcp", "udp") as sockets, rig.connect() as sock:
        rights = array.array("i", filenos(sockets))
        sock.sendmsg([whole[:-1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        until(lambda: rig.call(lambda: any(map(_holds_some, rig.server._conversations))))
        answer = rig.talk(asked("tcp", "udp"))
        assert status_of(answer) == 400
        assert b"not as many" in answer
        sock.sendall(whole[-1:])
        assert status_of(sock.recv(65536)) == 200
    assert len(rig.gateway.doors) == 1


def _holds_some(conversation: connection.ControlConnection) -> bool:
    return bool(conversation._descriptors)


@pytest.mark.parametrize("label", ["refuse", "x"])
def test_a_door_is_closed_when_the_session_is_refused(rig: Rig, label: str) -> None:
    """The positive control is that the same door is kept when it is not."""
    with elsewhere("tcp", "udp") as sockets:
        wanted = values.SessionRequest(
            "/p", OPENING.trusted, label, OPENING.granted, door=("tcp", "udp")
        )
        if label == "refuse":
            with pytest.raises(RequestDeclined, match="not accepted"):
                rig.client.open_session(wanted, filenos(sockets))
        else:
            rig.client.open_session(wanted, filenos(sockets))
    assert len(rig.gateway.doors) == (label != "refuse")


def test_a_door_is_closed_when_the_gateway_takes_too_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORK_SECONDS", 0.05)
    rig.gateway.hold = asyncio.Event()
    wanted = values.SessionRequest(
        "/p", OPENING.trusted, "wait", OPENING.granted, door=("tcp", "udp")
    )
    with elsewhere("tcp", "udp") as sockets, pytest.raises(RequestDeclined, match="too long"):
        rig.client.open_session(wanted, filenos(sockets))


def test_descriptors_of_a_request_that_never_ends_are_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RECEIVE_SECONDS", 0.05)
    with elsewhere("tcp", "udp") as sockets:
        answer = rig.talk(asked("tcp", "udp")[:-1], descriptors=filenos(sockets))
    assert status_of(answer) == 408


def test_a_socket_that_lingers_does_not_hold_up_the_loop(rig: Rig) -> None:
    """I9. Attack: unsent bytes and SO_LINGER make close() wait, with the gateway behind it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
        sender.setblocking(False)
        try:
            while True:
                sender.send(b"x" * 65536)
        except BlockingIOError:
            pass
        descriptor = sender.detach()
        with rig.connect() as sock:
            rights = array.array("i", [descriptor])
            sock.sendmsg([request("GET", "/v1/status")], [(1, socket.SCM_RIGHTS, rights)])
            os.close(descriptor)  # the copy on its way is the last
            begun = time.monotonic()
            rig.client.status()
            assert status_of(sock.recv(65536)) == 400
        assert time.monotonic() - begun < 5
        receiver.close()


def test_a_door_is_taken_once() -> None:
    with here("tcp", "udp") as sockets:
        door = ReceivedDoor(dict(zip(("tcp", "udp"), sockets, strict=True)))
        assert door.take().tcp is sockets[0]
        with pytest.raises(RuntimeError, match="once"):
            door.take()
        door.close()
        assert sockets[0].fileno() >= 0
