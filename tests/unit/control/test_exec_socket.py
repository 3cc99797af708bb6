"""Requests of `keyhole exec`, and the socket at which they arrive."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from keyhole.control.exec_socket import (
    EXECS,
    MAX_VALUE,
    ExecRequest,
    claim_exec_socket,
    find_exec_sockets,
    remove_leftover_sockets,
    request_exec,
)
from keyhole.model.errors import Refused, ResourceUnusable, Unparsable

if TYPE_CHECKING:
    import socket
    from pathlib import Path

ONE, TWO = "0123456789ab", "01ffffffffff"
REQUEST = ExecRequest(("sh", "-c", "\udcff"), "/p", {"TERM": "xterm"}, interactive=True)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "keyhole"


def test_a_request_is_read_as_it_was_written() -> None:
    assert ExecRequest.read(REQUEST.packed()) == REQUEST


@pytest.mark.parametrize(
    "change",
    [
        {"command": []},
        {"command": "sh"},
        {"command": ["a\0b"]},
        {"command": [1]},
        {"directory": None},
        {"interactive": 1},
        {"environment": {"LD_PRELOAD": "x"}},
        {"environment": {"TERM": "a\nb"}},
        {"environment": {"TERM": "x" * (MAX_VALUE + 1)}},
        {"environment": {"TERM": 1}},
    ],
)
def test_any_other_request_is_refused(change: dict[str, object]) -> None:
    """Control: without the change it is read, as the test above shows."""
    table = json.loads(REQUEST.packed()) | change
    with pytest.raises(Unparsable):
        ExecRequest.read(json.dumps(table).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(Unparsable):
        ExecRequest.read(data)


def test_a_socket_is_found_by_the_beginning_of_its_id_and_closed_to_others(runtime: Path) -> None:
    claims = [claim_exec_socket(runtime, each) for each in (ONE, TWO)]
    assert find_exec_sockets(runtime, "01") == [ONE, TWO]
    assert find_exec_sockets(runtime, "012") == [ONE]
    made = runtime / EXECS / f"{ONE}.sock"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    for each in claims:
        each.release()
        each.release()
    assert find_exec_sockets(runtime, "") == []


def test_a_directory_that_others_can_write_is_not_used(runtime: Path) -> None:
    claim_exec_socket(runtime, ONE).release()
    (runtime / EXECS).chmod(0o777)
    with pytest.raises(ResourceUnusable):
        claim_exec_socket(runtime, ONE)
    with pytest.raises(ResourceUnusable):
        find_exec_sockets(runtime, ONE)


def test_without_a_listener_there_is_no_sandbox_and_its_socket_is_removed(runtime: Path) -> None:
    assert request_exec(runtime, ONE, REQUEST, (0, 1, 2)) is None
    assert find_exec_sockets(runtime, ONE) == []
    claim = claim_exec_socket(runtime, ONE)
    claim.listener.close()  # as when the process was killed
    assert find_exec_sockets(runtime, ONE) == [ONE]
    assert request_exec(runtime, ONE, REQUEST, (0, 1, 2)) is None
    assert find_exec_sockets(runtime, ONE) == []
    claim.release()


@pytest.mark.parametrize("answer", [b'{"started": 1}', b"{", b'{"refused": 1}', b"[]"])
def test_an_answer_of_another_form_is_no_start(runtime: Path, answer: bytes) -> None:
    claim = claim_exec_socket(runtime, ONE)
    with pytest.raises(Refused, match="has just ended"):
        _answered(runtime, claim.listener, answer)
    with pytest.raises(Refused, match="too many"):
        _answered(runtime, claim.listener, b'{"refused": "too many"}')  # the control
    claim.release()


def _answered(runtime: Path, listener: socket.socket, answer: bytes) -> None:
    child = os.fork()
    if child == 0:
        listener.setblocking(True)
        connection = listener.accept()[0]
        connection.recv(16)
        connection.send(answer)
        os._exit(0)
    try:
        request_exec(runtime, ONE, REQUEST, (0, 1, 2))
    finally:
        os.waitpid(child, 0)


def test_leftovers_are_removed_and_a_socket_that_listens_is_not(runtime: Path) -> None:
    claim_exec_socket(runtime, ONE).listener.close()  # as a killed run leaves it
    living = claim_exec_socket(runtime, TWO)
    assert find_exec_sockets(runtime, "") == [ONE, TWO]
    remove_leftover_sockets(runtime)
    assert find_exec_sockets(runtime, "") == [TWO]
    living.release()
