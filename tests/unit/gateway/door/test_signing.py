"""The door's side of a signature: one commit, one answer, within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.door.signing import MAX_AT_ONCE, TOO_MANY, SigningTalk
from keyhole.gateway.session import Session, SessionState
from keyhole.gateway.tasks import Tasks
from keyhole.model.errors import Refused
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.signing import MAX_SIGNATURES, SIGNATURE_BURST
from keyhole.wire.signable_commit import MAX_SIGNABLE
from tests.rigs.policies import loaded
from tests.unit.policy.test_signing import COMMIT, POLICY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keyhole.model.event import Event

SIGNATURE = b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"
ASKED = len(COMMIT).to_bytes(4, "big") + COMMIT


class FakeTransport(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True


class Desk:
    """A session whose commits are signed by the test."""

    def __init__(self, sign: Callable[[bytes], Awaitable[bytes]] | None = None) -> None:
        self.events: list[Event] = []
        self.asked: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        book = Rulebook(loaded(POLICY).policy)
        session = Session(
            "0" * 12, book, self.events.append, lambda: True, print, sign=sign or self._sign
        )
        self.state = SessionState(session, self.loop.time())
        self.tasks = Tasks(self.loop)

    async def _sign(self, commit: bytes) -> bytes:
        self.asked.append(commit)
        return SIGNATURE

    def talk(self) -> tuple[SigningTalk, FakeTransport]:
        talk = SigningTalk(self.loop, self.state, self.tasks, lambda _: None)
        transport = FakeTransport()
        talk.connection_made(transport)
        return talk, transport

    async def ask(self, *pieces: bytes) -> bytes:
        talk, transport = self.talk()
        for piece in pieces:
            talk.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
        talk.connection_lost(None)
        assert transport.closed or not transport.written
        return transport.written

    @property
    def last(self) -> tuple[str, str]:
        event = self.events[-1]
        return event.reason, str(dict(event.details).popitem()[1])


def run(play: Callable[[], Awaitable[None]]) -> None:
    async def playing() -> None:
        await play()

    asyncio.run(playing())


def test_a_commit_is_signed_in_whatever_pieces_it_comes() -> None:
    async def play() -> None:
        desk = Desk()
        whole = await desk.ask(ASKED)
        pieces = await desk.ask(*(ASKED[at : at + 1] for at in range(len(ASKED))))
        assert whole == pieces == b"ok\n" + SIGNATURE
        assert desk.asked == [COMMIT, COMMIT]
        reason, name = desk.last
        assert (reason, len(name)) == ("commit-signed", 40)
        assert desk.state.signing == 0

    run(play)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ((MAX_SIGNABLE + 1).to_bytes(4, "big") + b"x", "at most"),
        (b"\xff\xff\xff\xff", "at most"),
        (ASKED + b"more", "at most"),
        (b"\x00\x00\x00\x00", "only commits are signed"),
        (b"\x00\x00\x00\x03tag", "only commits are signed"),
    ],
)
def test_other_bytes_are_refused_and_recorded(sent: bytes, why: str) -> None:
    async def play() -> None:
        desk = Desk()
        answer = await desk.ask(sent)
        assert answer.startswith(b"no\n")
        assert why in answer.decode()
        assert desk.last[0] == "commit-unsigned"
        assert not desk.asked

    run(play)


def test_the_process_that_signs_may_refuse() -> None:
    async def play() -> None:
        async def refuse(_: bytes) -> bytes:
            raise Refused("no key")

        desk = Desk(refuse)
        assert await desk.ask(ASKED) == b"no\nno key"
        assert desk.last == ("commit-unsigned", "no key")
        assert desk.state.signing == 0

    run(play)


def test_signatures_are_bounded_at_once_in_rate_and_in_all() -> None:
    """I9, I12. Control: before the bound, and after it is free again, the same is signed."""

    async def play() -> None:
        go_on = asyncio.Event()

        async def wait(_: bytes) -> bytes:
            await go_on.wait()
            return SIGNATURE

        desk = Desk(wait)
        talks = [desk.talk() for _ in range(MAX_AT_ONCE)]
        for talk, _ in talks:
            talk.data_received(ASKED)
        assert (await desk.ask(ASKED)).decode() == f"no\n{TOO_MANY}"
        go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await desk.ask(ASKED)).startswith(b"ok")
        assert all(transport.written.startswith(b"ok") for _, transport in talks)
        for talk, _ in talks:
            talk.connection_lost(None)
        answers = [await desk.ask(b"\x00\x00\x00\x00") for _ in range(SIGNATURE_BURST)]
        assert TOO_MANY.encode() in answers[-1]
        assert TOO_MANY.encode() not in answers[0]
        fresh = Desk()
        fresh.state.signed = MAX_SIGNATURES
        assert TOO_MANY.encode() in await fresh.ask(ASKED)

    run(play)


def test_a_client_that_leaves_early_is_no_fault() -> None:
    async def play() -> None:
        desk = Desk()
        talk, transport = desk.talk()
        talk.data_received(ASKED)
        talk.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert desk.last[0] == "commit-signed"
        assert transport.written == b""
        talk.abort()

    run(play)
