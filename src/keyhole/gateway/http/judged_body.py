"""A body that is judged before it is sent: collected, read, and handed to the judge.

Filled by `collecting.py`. A body waits in memory up to `BODY_IN_MEMORY`, and then in an unlinked
file, as a push does; there it is read in slices, between which the loop serves other sessions
(I12).
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.gateway.bodies import Collected, CollectedBody
from keyhole.gateway.git.quarantine import Quarantine
from keyhole.gateway.request_facts import make_facts
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, OverLimit, RequestUnfit
from keyhole.policy.body import BODY_IN_MEMORY, BodyFacts, read_facts
from keyhole.policy.limit import decide_total
from keyhole.system.share_pool import ShareBounds
from keyhole.wire.strict_json import is_quick, read_json_in_slices

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from typing import TypeVar

    from keyhole.gateway.requests import AuthorizedRequest, BodyJudging
    from keyhole.gateway.session import SessionState
    from keyhole.policy.body import BodyJudgement
    from keyhole.system.share_pool import SharePool

    T = TypeVar("T")

PLACES = ShareBounds("shares.bodies", total=2, each=1, waiting=64)
"""Long bodies that are read at the same time: each takes a slice of every turn of the loop."""


class JudgedBody(CollectedBody):
    """One body."""

    __slots__ = ("_body", "_counted", "_directory", "_hash", "_state", "size", "spool")

    def __init__(
        self, request: AuthorizedRequest, state: SessionState, directory: Path | None
    ) -> None:
        super().__init__(request)
        self._state = state
        self._directory = directory
        self._body: bytes | bytearray = bytearray()
        """Bytes when it is whole: they are judged and then sent without another copy."""
        self._counted = 0
        signer = request.credential.signer if request.credential is not None else None
        self._hash = hashlib.sha256() if signer is not None else None
        self.spool: Quarantine | None = None
        """The file of a long body."""
        self.size = 0

    @property
    def judging(self) -> BodyJudging:
        """The judge that the policy in force gives it."""
        found = self.request.judging
        if found is None:
            raise RequestUnfit(Reason.POLICY_CHANGED)
        return found

    def take(self, piece: bytes, limit: int) -> None:
        """Keep bytes. Raises OverLimit or RequestUnfit."""
        most = self.judging.judge.most
        self.size += len(piece)
        if self.size > min(limit, most):
            raise OverLimit(decide_total("body", 0, self.size, min(limit, most)))
        if self._hash is not None:
            self._hash.update(piece)
        if self.spool is None and self.size > BODY_IN_MEMORY:
            self.spool = Quarantine(self._directory, self._state)
            self.spool.write(bytes(self._body))
            self._release()
        if self.spool is not None:
            self.spool.write(piece)
            return
        self._state.gather(len(piece))
        self._counted += len(piece)
        self._body += piece

    def forget(self) -> None:
        """Release memory and disk."""
        self._release()
        spool, self.spool = self.spool, None
        if spool is not None:
            spool.close()

    def _release(self) -> None:
        self._state.gather(-self._counted)
        self._counted = 0
        self._body = bytearray()

    # ── judged ────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_quick(self) -> bool:
        """Whether it can be judged at once."""
        return self.spool is None and is_quick(self._body)

    def judge(self) -> BodyJudgement:
        """Judge a short body."""
        facts = self._facts()
        body = self._body = bytes(self._body)
        facts = replace(facts, body=body) if facts.flaw else read_facts(facts, body)
        return self.judging.judge.judge(facts)

    async def judge_apart(self, places: SharePool) -> BodyJudgement:
        """Judge a long body, in slices. Raises RequestUnfit."""
        state = self._state
        try:
            await places.take(state)
        except OverLimit as error:
            why = f"long bodies: {error}"
            raise RequestUnfit(error.reason, why, error.decision.rule) from None
        try:
            body = self._body = bytes(self._body)
            facts = replace(self._facts(), body=body)
            if not facts.flaw:
                facts = await self._read_apart(facts)
            # The judge that is in force now: the policy may have changed meanwhile.
            return await each_turn(self.judging.judge.judge_in_slices(facts))
        finally:
            places.leave(state)

    async def _read_apart(self, facts: BodyFacts) -> BodyFacts:
        spool = self.spool
        if spool is None:
            return await self._read_slices(facts, facts.body)
        with mmap.mmap(spool.fd, spool.size, access=mmap.ACCESS_READ) as file:
            return await self._read_slices(facts, file)

    async def _read_slices(self, facts: BodyFacts, body: bytes | mmap.mmap) -> BodyFacts:
        kept = self.judging.judge.kept_text
        try:
            return replace(facts, json=await each_turn(read_json_in_slices(body, kept)), flaw="")
        except Malformed as error:
            return replace(facts, flaw=error.why)

    def _facts(self) -> BodyFacts:
        return replace(make_facts(self.request, self.judging), size=self.size)

    def collected(self, rewritten: bytes | None = None) -> Collected:
        """The body as it is sent; of a long one, which its file has, the digest alone.

        It counts until it is forgotten, but is kept no longer: the origin may be slow to take it.
        """
        digest = self._hash.hexdigest() if self._hash is not None else None
        body, self._body = self._body, bytearray()
        return Collected(bytes(body) if rewritten is None else rewritten, digest)


async def each_turn(slices: Generator[None, None, T]) -> T:
    """Run a generator, one slice in each turn of the loop."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)
