"""The keeper and its gateway's end of it: what is asked early, or taken back, gets lost nowhere."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.keeper import Keeper
from keyhole.app.kept import Kept, Sources
from keyhole.app.message import Frames, framed, unpacked
from keyhole.app.places import Places
from keyhole.sandbox.files.fileplan import Refused
from tests.sandbox.people import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.provider import Provider, Wanted


def test_what_is_asked_while_the_keeper_starts_is_answered(tmp_path: Path) -> None:
    """It comes in one piece with where things are, long before the keeper can read either."""
    places = Places(tmp_path, tmp_path / "config", tmp_path / "state", tmp_path / "run")
    kept = Kept.start(Sources(places, {}, None))

    async def ask() -> None:
        kept.attach(asyncio.get_running_loop(), lambda *_: None)
        opening = kept.open("0123456789ab", str(tmp_path / "keyhole.toml"), "", ())
        with pytest.raises(Refused, match="no policy at"):
            await asyncio.wait_for(opening, PATIENCE)

    try:
        asyncio.run(ask())
    finally:
        kept.close()


def test_a_session_that_is_taken_back_while_it_is_read_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1: its secret would stay in the keeper, and be read again, for as long as that lives."""
    followed: list[FakeFollowing] = []

    class FakeFollowing:
        def __init__(self, *_: object) -> None:
            followed.append(self)
            self.closed = False

        def look(self) -> None:
            return

        def reload(self) -> tuple[bool, str]:
            return False, ""

        def close(self) -> None:
            self.closed = True

    class Stock:
        provision = "what it stands on"

    class Slow:
        def __init__(self) -> None:
            self.asked = threading.Event()
            self.may = threading.Event()

        def provide(self, wanted: Wanted) -> Any:  # noqa: ANN401 - a stock, as far as it is looked at
            self.asked.set()
            assert self.may.wait(PATIENCE)
            return Stock()

    monkeypatch.setattr("keyhole.app.keeper.Following", FakeFollowing)
    link, theirs = socket.socketpair()
    judges, their_judges = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    provider = Slow()
    keeper = Keeper(theirs, their_judges, cast("Provider", provider))
    thread = threading.Thread(target=keeper.serve)
    thread.start()
    frames = Frames()
    answers: dict[int, Any] = {}

    def ask(**words: object) -> None:
        link.sendall(framed(json.dumps(words).encode()))

    def answer(number: int) -> Any:  # noqa: ANN401 - by what was asked
        while number not in answers:
            for frame in frames.feed(link.recv(65536)):
                _, name, value, why = unpacked(frame)
                assert not why
                answers[name] = value
        return answers[number]

    link.settimeout(PATIENCE)
    opening = {"do": "open", "policy": "/p", "search_path": "", "writable": []}
    try:
        ask(**opening, number=1, session="taken-back")
        assert provider.asked.wait(PATIENCE)
        ask(do="end", session="taken-back")
        # Answered, so the end before it was heard, too.
        ask(do="reload", number=2)
        assert answer(2) == {}
        ask(**opening, number=3, session="wanted")
        provider.may.set()
        assert answer(1) == answer(3) == Stock.provision
        ask(do="reload", number=4)
        assert answer(4) == {"wanted": (False, "")}
        assert sorted(each.closed for each in followed) == [False, True]
    finally:
        provider.may.set()
        link.close()
        judges.close()
        thread.join(PATIENCE)
        theirs.close()
        their_judges.close()
    assert all(each.closed for each in followed)
