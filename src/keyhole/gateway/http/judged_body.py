"""A body that is judged before it is sent: collected, read, and handed to the judge.

Filled by `collecting.py`. A body waits in memory up to `BODY_IN_MEMORY`, and then in an unlinked
file, as a push does; there it is read in slices, between which the loop serves other sessions
(I12).
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.gateway.bodies import MAX_GATHERED, Collected, CollectedBody
from keyhole.gateway.git.quarantine import Quarantine
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, OverLimit, RequestUnfit
from keyhole.policy.body import BODY_IN_MEMORY, EMPTY, ENCODED, NOT_JSON, BodyFacts, read_facts
from keyhole.policy.limit import decide_total
from keyhole.system.share_pool import ShareBounds
from keyhole.wire.strict_json import is_quick, read_json_in_slices

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path
    from typing import TypeVar

    from keyhole.gateway.requests import AuthorizedRequest, BodyJudging
    from keyhole.gateway.session import SessionState
    from keyhole.http.request import RequestHead
    from keyhole.policy.body import BodyJudgement
    from keyhole.system.share_pool import SharePool

    T = TypeVar("T")

PLACES = ShareBounds("shares.bodies", total=2, each=1, waiting=64)
"""Long bodies that are read at the same time: each takes a slice of every turn of the loop."""

_is_json = re.compile(
    r"application/(?:json|[a-z0-9.-]+\+json)(?:[ \t]*;[ \t]*charset=\"?utf-8\"?)?", re.IGNORECASE
).fullmatch


_READ = ("content-type", "content-encoding")


class JudgedBody(CollectedBody):
    """One body."""

    __slots__ = ("_body", "_directory", "_hash", "_state", "size", "spool")

    def __init__(
        self, request: AuthorizedRequest, state: SessionState, directory: Path | None
    ) -> None:
        super().__init__(request)
        self._state = state
        self._directory = directory
        self._body = bytearray()
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
        gathered = self._state.gathered
        if gathered + len(piece) > MAX_GATHERED:
            raise OverLimit(decide_total("body", gathered, len(piece), MAX_GATHERED))
        self._state.gathered += len(piece)
        self._body += piece

    def forget(self) -> None:
        """Release memory and disk."""
        self._release()
        spool, self.spool = self.spool, None
        if spool is not None:
            spool.close()

    def _release(self) -> None:
        self._state.gathered -= len(self._body)
        self._body = bytearray()

    # ── judged ────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_quick(self) -> bool:
        """Whether it can be judged at once."""
        return self.spool is None and is_quick(self._body)

    def judge(self) -> BodyJudgement:
        """Judge a short body."""
        facts = self._facts()
        if not facts.flaw:
            facts = read_facts(facts, bytes(self._body))
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
            facts = self._facts()
            if not facts.flaw:
                facts = await self._read_apart(facts)
            # The judge that is in force now: the policy may have changed meanwhile.
            return await each_turn(self.judging.judge.judge_in_slices(facts))
        finally:
            places.leave(state)

    async def _read_apart(self, facts: BodyFacts) -> BodyFacts:
        spool = self.spool
        if spool is None:
            body = bytes(self._body)
            return await self._read_slices(replace(facts, body=body), body)
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
        """The body as it is sent; of a long one, which its file has, the digest alone."""
        digest = self._hash.hexdigest() if self._hash is not None else None
        return Collected(bytes(self._body) if rewritten is None else rewritten, digest)


async def each_turn(slices: Generator[None, None, T]) -> T:
    """Run a generator, one slice in each turn of the loop."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)


def make_facts(request: AuthorizedRequest, judging: BodyJudging) -> BodyFacts:
    """The facts of a request's head."""
    head, judge = request.head, judging.judge
    found: dict[str, str] = {}
    prefixes = tuple(each[:-1] for each in judge.fields if each.endswith("*"))
    for line in (*head.lines, *(field.line for field in head.collected)):
        sent, _, value = line.decode("latin-1").partition(":")
        name = sent.lower()
        if name in judge.fields or name in _READ or name.startswith(prefixes):
            found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return BodyFacts(
        judging.host,
        head.word,
        judging.path,
        request.decision,
        head.query or "",
        found,
        flaw=_find_flaw(head, found),
    )


def _find_flaw(head: RequestHead, fields: Mapping[str, str]) -> str:
    """Why a body cannot be read as JSON, by its head; empty if it may be."""
    if head.length == 0:
        return EMPTY
    if fields.get("content-encoding", "identity").lower() != "identity":
        return ENCODED
    # Without a type (boto3's invoke_model), origins of judged services read JSON; anything else is
    # refused by the strict reader, and a form or parts need a type to be read as such.
    given = fields.get("content-type")
    return "" if given is None or _is_json(given) else NOT_JSON
