"""A repository at its origin, as the gateway itself asks about it before a push is judged.

Used by `pushes.py`. Speaks git's protocol version 2, with the service's credential; nothing that it
reads reaches the sandbox.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway.inquiry import NoAnswer
from keyhole.policy.trial import Ask, Unanswered
from keyhole.wire.httpfield import Malformed
from keyhole.wire.uploadpack import (
    Abilities,
    PackReader,
    RefsReader,
    RemoteError,
    fetch_request,
    ls_refs_request,
    read_abilities,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keyhole.gateway.inquiry import Asking
    from keyhole.gateway.inspection import Inspection
    from keyhole.policy.trial import Question
    from keyhole.wire.uploadpack import RemoteRefs

MAX_ADVERTISEMENT = 1 << 20
"""Bytes of a version 2 advertisement, which lists abilities and no refs."""

AT_ONCE = 16 * 1024
"""Bytes of a list of refs that are read before the loop looks at others: 2 ms."""

MAX_REMEMBERED = 256
"""Repositories whose abilities are remembered; a client may spell one name in many ways."""

NEEDED_VERSION = 2

_VERSION = b"Git-Protocol: version=2\r\n"
_REQUEST = _VERSION + b"Content-Type: application/x-git-upload-pack-request\r\n"


class RemoteRepository:
    """One repository, by its path on the host."""

    def __init__(self, asking: Asking, inspection: Inspection, service: str, path: str) -> None:
        self._asking = asking
        self._inspection = inspection
        self._service = service
        self._path = path

    async def refs(self) -> RemoteRefs:
        """Its branches, tags and what HEAD stands for. Raises NoAnswer."""
        abilities = await self._abilities()
        reader = RefsReader()
        request = ls_refs_request(abilities.object_format, unborn=abilities.unborn)
        try:
            async for piece in self._post(request):
                for at in range(0, len(piece), AT_ONCE):
                    reader.feed(piece[at : at + AT_ONCE])
                    # A large repository tells for a second; others have their turn meanwhile.
                    await asyncio.sleep(0)
            return reader.end()
        except (Malformed, RemoteError) as error:
            raise NoAnswer(f"the list of its refs: {error}") from None

    async def pack(self, question: Question) -> AsyncIterator[bytes]:
        """The bytes of a pack with what a trial asks for. Raises Unanswered."""
        try:
            abilities = await self._abilities()
            request = fetch_request(
                question.wants,
                question.haves,
                object_format=abilities.object_format,
                alone=question.ask is Ask.OBJECTS,
                filtered=abilities.filters,
            )
            reader = PackReader()
            async for piece in self._post(request):
                pack = reader.feed(piece)
                if pack:
                    yield pack
        except (NoAnswer, Malformed, RemoteError) as error:
            raise Unanswered(str(error)) from None
        if not reader.done:
            raise Unanswered("the origin's pack is cut off")

    async def _abilities(self) -> Abilities:
        known = self._inspection.abilities
        found = known.get((self._service, self._path))
        if found is None:
            found = await self._learn()
            if len(known) >= MAX_REMEMBERED:
                known.clear()
            known[self._service, self._path] = found
        return found

    async def _learn(self) -> Abilities:
        target = f"{self._path}/info/refs?service=git-upload-pack"
        message = self._inspection.question(self._service, "GET", target, _VERSION)
        text = b""
        async for piece in self._asking.ask(self._service, "GET", message):
            text += piece
            if len(text) > MAX_ADVERTISEMENT:
                raise NoAnswer("its advertisement is too long")
        try:
            found = read_abilities(text)
        except (Malformed, RemoteError) as error:
            raise NoAnswer(f"its advertisement: {error}") from None
        if found.version != NEEDED_VERSION:
            raise NoAnswer("the origin does not speak git's protocol version 2")
        return found

    def _post(self, body: bytes) -> AsyncIterator[bytes]:
        target = f"{self._path}/git-upload-pack"
        message = self._inspection.question(self._service, "POST", target, _REQUEST, body)
        return self._asking.ask(self._service, "POST", message)
