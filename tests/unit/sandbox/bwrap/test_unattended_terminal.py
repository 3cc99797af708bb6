"""The terminal of a named sandbox: output for all who are attached, and keys from each."""

from __future__ import annotations

import os
import socket
import termios
import tty
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.bwrap import unattended_terminal
from keyhole.sandbox.bwrap.unattended_terminal import MAX_ATTACHED, UnattendedTerminal
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Session:
    """A terminal whose command is this test, and people who attach."""

    def __init__(self) -> None:
        self.terminal = UnattendedTerminal()
        self.inner = os.dup(self.terminal.streams.stdin)
        tty.setraw(self.inner, termios.TCSANOW)
        self.terminal.start(lambda: False)
        self._opened: list[int] = []
        self._people: list[socket.socket] = []

    def attach(self) -> socket.socket:
        stream, outer = self.terminal.attach()
        self._opened.append(outer)
        person = socket.socket(fileno=stream)
        person.settimeout(PATIENCE)
        self._people.append(person)
        return person

    def close(self) -> None:
        os.close(self.inner)
        self.terminal.close()
        for person in self._people:
            person.close()
        for outer in self._opened:
            os.close(outer)


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.close()


def _exactly(person: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = person.recv(size - len(data))
        assert more, data[-100:]
        data += more
    return data


def test_all_see_the_output_and_the_command_gets_the_keys_of_each(session: Session) -> None:
    one, two = session.attach(), session.attach()
    os.write(session.inner, b"said")
    assert _exactly(one, 4) == _exactly(two, 4) == b"said"
    one.sendall(b"1")
    assert os.read(session.inner, 9) == b"1"
    two.sendall(b"2")
    assert os.read(session.inner, 9) == b"2"
    assert session.terminal.last_line == "said"


def test_the_keys_that_detach_end_one_connection_and_are_not_passed_on(session: Session) -> None:
    """Control: each of them alone is a key as any other."""
    one, two = session.attach(), session.attach()
    one.sendall(b"a\x10")
    assert os.read(session.inner, 9) == b"a"
    one.sendall(b"b")
    assert os.read(session.inner, 9) == b"\x10b"
    one.sendall(b"\x11")
    assert os.read(session.inner, 9) == b"\x11"
    one.sendall(b"c\x10")
    assert os.read(session.inner, 9) == b"c"
    one.sendall(b"\x11d")
    assert one.recv(9) == b""
    two.sendall(b"e")
    assert os.read(session.inner, 9) == b"e"


def test_one_that_does_not_read_is_detached_and_the_other_sees_all(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: it holds neither the command nor another terminal."""
    monkeypatch.setattr(unattended_terminal, "STALLED_SECONDS", 0.2)
    stuck, other = session.attach(), session.attach()
    size = 0
    for _ in range(200):
        os.write(session.inner, b"y" * 4000)
        size += 4000
        assert _exactly(other, 4000) == b"y" * 4000
    received = 0
    while more := stuck.recv(65536):
        received += len(more)
    assert received < size


def test_keys_that_the_command_does_not_read_wait_and_are_not_lost(session: Session) -> None:
    person = session.attach()
    keys = bytes(range(32, 127)) * 700
    person.sendall(keys)
    read = b""
    while len(read) < len(keys):
        read += os.read(session.inner, 4096)
    assert read == keys


def test_attached_terminals_are_bounded(session: Session) -> None:
    """I9: the place of one that has left is free again."""
    people = [session.attach() for _ in range(MAX_ATTACHED)]
    with pytest.raises(OSError, match="terminals are attached"):
        session.terminal.attach()
    people[0].close()

    def attaches() -> bool:
        try:
            session.attach()
        except OSError:
            return False
        return True

    until(attaches)


def test_all_are_detached_when_the_command_has_ended() -> None:
    made = Session()
    person = made.attach()
    os.write(made.inner, b"last words\n")
    made.close()
    assert made.terminal.last_line == "last words"
    with pytest.raises(OSError, match="its terminal is closed"):
        made.terminal.attach()
    assert person.fileno() == -1
