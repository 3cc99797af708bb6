"""Pushes that were to be streamed and are not: every byte of them is counted (I9)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.turn import Turn
from tests.rigs.gateway.conversation import Clock, Conversation
from tests.rigs.gateway.http2 import Http2Talk
from tests.rigs.gateway.stage import forge
from tests.rigs.gateway.talk import head
from tests.rigs.http.http2 import data, headers, request

if TYPE_CHECKING:
    from collections.abc import Coroutine

GIT = forge("own", "ok.example", 'push = ["agent/*"]\ndelete = true')
JUDGED = GIT + "force = false\n"
STREAMED = GIT + "force = true\ndeny_paths = []\n"

PATH = "/acme/w.git/git-receive-pack"
MEDIA = "application/x-git-receive-pack-request"
NEW, NONE = "a" * 40, "0" * 40
PACK = b"PACK" + b"x" * 10_000


def line(text: str) -> bytes:
    return f"{len(text) + 4:04x}{text}".encode()


def command(before: str, after: str, ref: str) -> bytes:
    abilities = "\0report-status side-band-64k object-format=sha1"
    return line(f"{before} {after} refs/heads/{ref}{abilities}") + b"0000"


DELETION = command(NEW, NONE, "agent/x")
SHALLOW = line(f"shallow {NEW}") + command(NONE, NEW, "agent/x") + PACK
REFUSED = command(NONE, NEW, "main") + PACK


class LiveClock(Clock):
    """One whose tasks are the loop's."""

    def create_task(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        return asyncio.get_running_loop().create_task(work)


@dataclass
class Counted:
    up: int
    turn: Turn | None


def counted(policy: str, body: bytes, protocol: str) -> Counted:
    """What was counted of a push whose origin cannot be asked about its refs."""

    async def push() -> Counted:
        clock = LiveClock()
        if protocol:
            talk: Conversation = Http2Talk(policy, clock=clock)
            fields = request(("content-type", MEDIA), method="POST", path=PATH)
            size = len(body)
            frames = [
                data(1, body[at : at + 1000], end=at + 1000 >= size) for at in range(0, size, 1000)
            ]
            sent = headers(1, fields, end=False) + b"".join(frames)
        else:
            talk = Conversation(policy, clock=clock)
            lines = f"Content-Type: {MEDIA}", f"Content-Length: {len(body)}"
            sent = head("POST", PATH, *lines) + body
        turn = talk.state.turn = Turn(asyncio.get_running_loop())
        talk.origin.slow = True
        talk.client.says(sent)
        for _ in range(10):
            await asyncio.sleep(0)
        asked = talk.origin.turn is turn
        talk.origin.ends()
        for _ in range(10):
            await asyncio.sleep(0)
        found = Counted(talk.state.up, turn if asked else None)
        talk.connection.lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (talk.state.busy, talk.state.gathered, talk.state.quarantined) == (0, 0, 0)
        return found

    return asyncio.run(push())


@pytest.mark.parametrize("protocol", ["", "h2"])
@pytest.mark.parametrize("body", [DELETION, SHALLOW, REFUSED], ids=["deletion", "shallow", "name"])
def test_a_push_that_is_not_streamed_after_all_is_counted(body: bytes, protocol: str) -> None:
    """I9: as one that is judged from its beginning, which is the control."""
    judged, streamed = (counted(policy, body, protocol) for policy in (JUDGED, STREAMED))
    assert judged.up == streamed.up > len(body)


def test_the_gateways_own_questions_are_read_in_the_sessions_turn() -> None:
    """I12: what an origin answers to them is work for the session that pushes."""
    assert counted(JUDGED, SHALLOW, "").turn is not None
