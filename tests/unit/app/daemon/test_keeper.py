"""The keeper and the gateway's end of it: nothing that is asked is lost, and nothing stays."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from keyhole.app.daemon.keeper import NO_THREAD, NOTHING, Keeper, KeeperShares
from keyhole.app.daemon.keeper_client import KeeperClient
from keyhole.app.daemon.keeper_process import KeeperProcess
from keyhole.app.processes.message_frames import MessageBuffer, frame_message
from keyhole.app.processes.messages import (
    ChangeRefused,
    KeeperAnswer,
    KeeperMessage,
    pack_message,
    packed,
    unpack_keeper_message,
)
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    import pytest

    from keyhole.app.setup.provision_reader import (
        ProvisionReader,
        ProvisionRequest,
        SourcedProvision,
    )


def test_what_is_asked_while_the_keeper_starts_is_answered(tmp_path: Path) -> None:
    """Its interpreter takes longer to start than the first question to come."""
    places = HostPaths(tmp_path, tmp_path / "config", tmp_path / "state", tmp_path / "run")
    keeping = KeeperProcess.start(places, {})
    kept = KeeperClient(*keeping.open_link())

    async def ask() -> object:
        kept.attach(asyncio.get_running_loop(), lambda *_: None)
        return await asyncio.wait_for(kept.touch("store:none"), PATIENCE)

    try:
        assert asyncio.run(ask()) == []
        keeping.greet(None)
    finally:
        kept.close()
        keeping.close()


def test_a_change_that_fails_loses_no_answer_behind_it() -> None:
    """I9: what one session's change breaks is told, and others are answered."""
    ours, theirs = socket.socketpair()
    judges, their_judges = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = KeeperClient(ours, judges)
    told: list[str] = []

    def changed(*_: object) -> None:
        raise ZeroDivisionError

    async def ask() -> object:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["message"])))
        kept.attach(loop, changed)
        refused, answer = ChangeRefused("why", "x"), KeeperAnswer(1, packed(["y"]))
        theirs.sendall(pack_message(refused) + pack_message(answer))
        return await asyncio.wait_for(kept.touch("store:none"), PATIENCE)

    with theirs, their_judges:
        try:
            assert asyncio.run(ask()) == ["y"]
        finally:
            kept.close()
    assert told == ["a change of a session failed"]


class SlowProvider:
    """Gives a session when the test says so."""

    def __init__(self) -> None:
        self.asked, self.go_on, self.closed = (threading.Event() for _ in range(3))
        self.places = SimpleNamespace(spending=Path("/nowhere"))

    def provide(self, wanted: ProvisionRequest) -> SourcedProvision:
        self.asked.set()
        assert self.go_on.wait(PATIENCE)
        return cast(
            "SourcedProvision", SimpleNamespace(vault=SimpleNamespace(close=self.closed.set))
        )


def test_a_session_that_ends_while_it_is_opened_is_not_kept() -> None:
    """I9: whoever asks and leaves, again and again, leaves no secret and no thread behind."""
    ours, theirs = socket.socketpair()
    judges, their_judges = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    provider = SlowProvider()
    keeper = Keeper(theirs, their_judges, cast("ProvisionReader", provider), KeeperShares())
    thread = threading.Thread(target=keeper.serve)
    thread.start()
    with ours, theirs, judges, their_judges:
        opening = {"number": 1, "session": "x", "policy": "/p", "search_path": "", "writable": []}
        _say(ours, {"do": "open"} | opening)
        assert provider.asked.wait(PATIENCE)
        _say(ours, {"do": "end", "session": "x"})
        # Heard when what comes after it is answered.
        _say(ours, {"do": "touch", "number": 2, "reference": "store:x"})
        assert _answer(ours) == KeeperAnswer(2, packed([]))
        provider.go_on.set()
        assert _answer(ours) == KeeperAnswer(1, NOTHING, "the session has ended")
        assert provider.closed.is_set()
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_host_without_threads_costs_an_answer_and_not_the_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I9: sandboxes that take all processes of the user must not end the keeper of all others."""
    ours, theirs = socket.socketpair()
    judges, their_judges = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = Keeper(theirs, their_judges, cast("ProvisionReader", SlowProvider()), KeeperShares())
    thread = threading.Thread(target=keeper.serve)
    thread.start()
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ours, theirs, judges, their_judges:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        _say(ours, {"do": "touch", "number": 1, "reference": "store:x"})
        assert _answer(ours) == KeeperAnswer(1, NOTHING, NO_THREAD)
        monkeypatch.setattr(threading.Thread, "start", start)
        _say(ours, {"do": "touch", "number": 2, "reference": "store:x"})
        assert _answer(ours) == KeeperAnswer(2, packed([]))
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _say(sock: socket.socket, words: dict[str, object]) -> None:
    sock.sendall(frame_message(json.dumps(words).encode()))


def _answer(sock: socket.socket) -> KeeperMessage:
    sock.settimeout(PATIENCE)
    frames = MessageBuffer()
    while not (found := frames.feed(sock.recv(65536))):
        """The rest is under way."""
    (frame,) = found
    return unpack_keeper_message(frame)
