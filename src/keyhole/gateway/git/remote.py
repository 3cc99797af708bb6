"""Asks the origin about a repository before a push is judged.

Used by `push_decision.py`. Speaks git's protocol version 2, with the service's credential; nothing
that it reads reaches the sandbox.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, UpstreamFailed
from keyhole.policy.push_trial import QuestionPurpose
from keyhole.wire.upload_pack import (
    PackReader,
    RefsReader,
    ServerAbilities,
    fetch_request,
    ls_refs_request,
    read_abilities,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keyhole.gateway.upstream.inquiry import Questions
    from keyhole.policy.push_trial import UpstreamQuestion
    from keyhole.wire.upload_pack import RemoteRefs

MAX_ADVERTISEMENT = 1 << 20
"""Bytes of a version 2 advertisement, which lists abilities and no refs."""

AT_ONCE = 16 * 1024
"""Bytes of a list of refs that are parsed in one turn of the loop: 2 ms."""

MAX_REMEMBERED = 256
"""Repositories with cached abilities; a client may spell one name in many ways."""

NEEDED_VERSION = 2

_VERSION = b"Git-Protocol: version=2\r\n"
_MEDIA = b"Content-Type: application/x-git-upload-pack-request\r\n"


class RemoteRepository:
    """One repository, by its path on the host."""

    def __init__(
        self,
        questions: Questions,
        known: dict[tuple[str, str], ServerAbilities],
        service: str,
        path: str,
    ) -> None:
        """`known` caches the abilities of repositories' servers, by service and path."""
        self._questions = questions
        self._known = known
        self._service = service
        self._path = path

    async def refs(self) -> RemoteRefs:
        """The repository's branches, its tags and the target of HEAD. Raises UpstreamFailed."""
        abilities = await self._abilities()
        reader = RefsReader()
        request = ls_refs_request(abilities.object_format, unborn=abilities.unborn)
        try:
            async for piece in self._post(request):
                for at in range(0, len(piece), AT_ONCE):
                    reader.feed(piece[at : at + AT_ONCE])
                    # A large repository's list takes a second; other sessions have their turn
                    # meanwhile.
                    await asyncio.sleep(0)
            return reader.end()
        except (UpstreamFailed, Malformed) as error:
            raise _no_answer(f"the list of its refs: {error}") from None

    async def pack(self, question: UpstreamQuestion) -> AsyncIterator[bytes]:
        """The bytes of a pack that answers a trial's question. Raises UpstreamFailed."""
        try:
            abilities = await self._abilities()
            request = fetch_request(
                question.wants,
                question.haves,
                object_format=abilities.object_format,
                alone=question.ask is QuestionPurpose.OBJECTS,
                filtered=abilities.filters,
            )
            reader = PackReader()
            async for piece in self._post(request):
                pack = reader.feed(piece)
                if pack:
                    yield pack
        except Malformed as error:
            raise _no_answer(error.message) from None
        if not reader.done:
            raise _no_answer("the origin's pack is cut off")

    async def _abilities(self) -> ServerAbilities:
        known = self._known
        found = known.get((self._service, self._path))
        if found is None:
            found = await self._learn()
            if len(known) >= MAX_REMEMBERED:
                known.clear()
            known[self._service, self._path] = found
        return found

    async def _learn(self) -> ServerAbilities:
        target = f"{self._path}/info/refs?service=git-upload-pack"
        text = b""
        async for piece in self._questions.ask(self._service, "GET", target, [_VERSION]):
            text += piece
            if len(text) > MAX_ADVERTISEMENT:
                raise _no_answer("its advertisement is too long")
        try:
            found = read_abilities(text)
        except (UpstreamFailed, Malformed) as error:
            raise _no_answer(f"its advertisement: {error}") from None
        if found.version != NEEDED_VERSION:
            raise _no_answer("the origin does not speak git's protocol version 2")
        return found

    def _post(self, body: bytes) -> AsyncIterator[bytes]:
        target = f"{self._path}/git-upload-pack"
        return self._questions.ask(self._service, "POST", target, [_VERSION, _MEDIA], body)


def _no_answer(why: str) -> UpstreamFailed:
    return UpstreamFailed(Reason.UPSTREAM_MALFORMED, why)
