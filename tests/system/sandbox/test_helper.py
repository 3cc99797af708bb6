"""The helper, started ahead of what it is to start."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.helper import TOLD, Helper
from keyhole.sandbox.handover import DoorReader


def test_a_helper_that_is_never_told_ends_with_its_parent_s_interest() -> None:
    """I2: nothing is left of it, neither process nor descriptor."""
    before = os.listdir("/proc/self/fd")
    helper = Helper()
    assert Path(f"/proc/{helper.pid}").exists()
    helper.close()
    assert not Path(f"/proc/{helper.pid}").exists()
    assert os.listdir("/proc/self/fd") == before


def test_a_helper_whose_other_end_is_closed_ends_by_itself() -> None:
    helper = Helper()
    helper.let_go()
    assert helper.wait() != 0


def test_a_helper_inherits_nothing_of_what_its_parent_was_started_with() -> None:
    """I2: a socket of the host that somebody left open does not reach the helper's children."""
    with socket.socket() as left_open:
        os.set_inheritable(left_open.fileno(), True)
        helper = Helper("halt:namespaces")
        try:
            os.waitpid(helper.pid, os.WUNTRACED)
            held = {os.readlink(f) for f in Path(f"/proc/{helper.pid}/fd").iterdir()}
            ours = f"socket:[{os.fstat(left_open.fileno()).st_ino}]"
            assert ours not in held
            # Control: it holds its own end of the socket to us, and the null device.
            assert os.devnull in held
            assert any(name.startswith("socket:") for name in held)
        finally:
            helper.close()


def _answered(*pieces: bytes) -> DoorReader:
    reader = DoorReader()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for piece in pieces:
            theirs.send(piece)
            assert not reader.complete
            reader.read(ours)
    return reader


def test_a_message_may_come_in_pieces() -> None:
    message = b'{"door": "net:[1]"}'
    framed = len(message).to_bytes(4, "little") + message
    reader = _answered(framed[:2], framed[2:9], framed[9:])
    assert reader.complete
    assert reader.sockets() == []


def test_why_there_is_no_door_is_told() -> None:
    message = b'{"error": "no local route"}'
    reader = _answered(len(message).to_bytes(4, "little") + message)
    with pytest.raises(SetupFailed, match="no local route"):
        reader.sockets()


def test_silence_is_a_failure() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(SetupFailed, match="ended"):
            DoorReader().read(ours)


def test_a_helper_that_ends_without_having_read_what_it_was_told_is_a_failure() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(TOLD)
        theirs.close()
        with pytest.raises(SetupFailed, match="ended"):
            DoorReader().read(ours)


def test_a_helper_that_ends_before_it_says_whose_namespaces_it_has_is_a_failure() -> None:
    """I2: what is not known is not taken for the usual. Control: one that lives says it."""
    for fault in ("", "namespaces"):
        helper = Helper(fault)
        try:
            assert helper.refusal() == ""
        finally:
            helper.close()
    helper = Helper()
    try:
        helper.kill()
        helper.wait()
        with contextlib.suppress(BlockingIOError):
            helper.control.recv(4, socket.MSG_DONTWAIT)  # had it been quick
        with pytest.raises(SetupFailed, match="ended"):
            helper.refusal()
    finally:
        helper.close()


def test_the_word_is_short_enough_to_come_whole() -> None:
    assert len(TOLD) < 16
