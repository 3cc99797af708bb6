"""The client against gateways that are broken, old or not what they seem."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.control import client, values
from keyhole.control.client import ControlClient, ControlFailed, RequestDeclined
from keyhole.control.socket_directory import SOCKET
from tests.rigs.control.rig import OPENING, open_descriptors
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def answering(directory: Path) -> Iterator[Callable[..., ControlClient]]:
    """Makes a client of a server that reads nothing and says these bytes, in turn."""
    directory.mkdir(mode=0o700)
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET))
        listener.listen()

        def answer(*said: bytes) -> ControlClient:
            def serve() -> None:
                for each in said:
                    sock = listener.accept()[0]
                    with sock:
                        sock.sendall(each)

            thread = threading.Thread(target=serve)
            thread.start()
            threads.append(thread)
            return ControlClient(directory, PATIENCE)

        yield answer
        for thread in threads:
            thread.join(PATIENCE)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "before it answered"),
        (b"HTTP/1.1 200 OK\r\n", "before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "in the middle"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "another version"),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", "another version"),
        (b"HTTP/1.1 200 OK\r\nno field\r\n\r\n", "another version"),
        (b"HTTP/1.1 200 OK\r\nA: 1\r\nA: 1\r\n\r\n", "another version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "another version"),
        (b"HTTP/1.1 2xx OK\r\n\r\n{}", "another version"),
        (b"\xff\xfe\r\n\r\n", "another version"),
        (ok(b""), "another version"),
        (ok(b"[]"), "another version"),
        (ok(b'{"revoked":-1}'), "another version"),
        (ok(b'{"revoked":1,"more":1}'), "another version"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}", "another version"),
    ],
)
def test_an_answer_that_cannot_be_read_says_what_to_do(
    answering: Callable[..., ControlClient], said: bytes, why: str
) -> None:
    with pytest.raises(ControlFailed, match=why) as failed:
        answering(said).revoke_all()
    assert not isinstance(failed.value, RequestDeclined)
    assert answering(ok(b'{"revoked":3}')).revoke_all() == 3


def test_an_answer_without_end_is_cut(
    answering: Callable[..., ControlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(client, "MAX_ANSWER", 100_000)
    with pytest.raises(ControlFailed, match="more than 100000 bytes"):
        answering(b"x" * 200_000).metrics()


def test_a_page_that_leads_back_is_not_asked_for_again(
    answering: Callable[..., ControlClient],
) -> None:
    again = answering(
        ok(b'{"sessions":[],"next":"000000000002"}'), ok(b'{"sessions":[],"next":"000000000001"}')
    )
    assert again.sessions() == []


def test_what_the_server_would_refuse_is_not_sent(directory: Path) -> None:
    wrong = values.SessionRequest("relative", OPENING.trusted, "x", OPENING.granted)
    with pytest.raises(RequestDeclined, match="absolute path") as declined:
        ControlClient(directory).open_session(wrong)
    assert declined.value.error == "malformed"


def test_a_socket_that_nobody_accepts_on_does_not_hold_the_client(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(directory / SOCKET))
        listener.listen(0)
        first.connect(str(directory / SOCKET))
        before = open_descriptors()
        with pytest.raises(ControlFailed, match=r"cannot be reached|did not answer"):
            ControlClient(directory, 0.1).status()
        assert open_descriptors() == before


def test_descriptors_beside_an_answer_are_not_taken(directory: Path) -> None:
    """A gateway has nothing to hand to a command."""
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, open(os.devnull, "rb") as null:
        listener.bind(str(directory / SOCKET))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as sock:
                socket.send_fds(sock, [ok(b'{"revoked":1}')], [null.fileno()])

        before = open_descriptors()
        thread = threading.Thread(target=serve)
        thread.start()
        assert ControlClient(directory, PATIENCE).revoke_all() == 1
        thread.join()
        assert open_descriptors() == before
