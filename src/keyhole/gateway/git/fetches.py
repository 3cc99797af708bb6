"""The body of a fetch: collected whole, parsed strictly, and rebuilt.

Used by `http/collecting.py` for `git-upload-pack`. A fetch's request is small; its response passes
as any other does.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from keyhole.gateway.bodies import BufferedBody, Collected
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, OverLimit, Refused, RequestUnfit
from keyhole.system.share_pool import ShareBounds, SharePool
from keyhole.wire.upload_pack import MAX_REQUEST, read_fetch

if TYPE_CHECKING:
    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.gateway.session import SessionState

MAX_FETCH = MAX_REQUEST
"""Bytes of a fetch, also when it came compressed."""

LARGE = 128 * 1024
"""Bytes of a fetch from which on it is parsed in a thread. On the loop, parsing would delay others
by 6 ms, and by 0.4 s for the largest."""

MAX_RATIO, SMALL = 16, 4096
"""How much a compressed fetch may grow, beyond a small size: object ids deflate to about a half."""

_GZIP = 31  # a window of 15 and gzip's own frame

# One for all sessions: each that is at work takes as much of the interpreter as the loop. Sessions
# take turns, so that one with many to read does not keep another's waiting (I12).
_reader = ThreadPoolExecutor(1, thread_name_prefix="fetch")
PLACES = ShareBounds("shares.fetches", total=1, each=1, waiting=256)


class FetchBody(BufferedBody):
    """One fetch."""

    __slots__ = ("_gzip", "_version")

    def __init__(
        self, request: AuthorizedRequest, state: SessionState, version: int, *, gzip: bool
    ) -> None:
        super().__init__(request, state)
        self._version = version
        self._gzip = gzip

    @property
    def most(self) -> int:
        """The largest size in bytes."""
        return MAX_FETCH

    @property
    def large(self) -> bool:
        """Whether parsing it takes long."""
        return len(self._body) * (MAX_RATIO if self._gzip else 1) > LARGE

    def finish(self) -> Collected:
        """The fetch for the origin, uncompressed."""
        return Collected(self._read())

    async def finish_apart(self, loop: asyncio.AbstractEventLoop, places: SharePool) -> Collected:
        """The same, parsed in a thread; the policy may change meanwhile."""
        try:
            await places.take(self._state)
        except OverLimit as error:
            why = f"large fetches: {error}"
            raise RequestUnfit(error.reason, why, error.decision.rule) from None
        reading = loop.run_in_executor(_reader, self._read)
        reading.add_done_callback(partial(self._was_read, places))
        # Shielded: a client that leaves does not end the thread's work, which has its place.
        plain = await asyncio.shield(reading)
        return Collected(plain)

    def _was_read(self, places: SharePool, reading: asyncio.Future[bytes]) -> None:
        reading.exception()  # retrieved, also when no caller is left
        places.leave(self._state)

    def _read(self) -> bytes:
        # Taken only now: a body that was dropped while it waited takes no memory (I9).
        body = self._whole()
        try:
            return read_fetch(_inflate(body) if self._gzip else body, self._version)
        except Malformed as error:
            raise RequestUnfit(
                Reason.FETCH_REFUSED, f"the fetch is malformed: {error.why}"
            ) from None
        except Refused as error:
            raise RequestUnfit(Reason.FETCH_REFUSED, error.message) from None


def _inflate(body: bytes) -> bytes:
    """Inflate one gzip member with nothing behind it: servers differ on a second one."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        plain = inflater.decompress(body, min(MAX_FETCH, SMALL + MAX_RATIO * len(body)))
    except zlib.error:
        raise Malformed("it is not gzip") from None
    if not inflater.eof or inflater.unused_data:
        raise Malformed("it is not one gzip member of a sane size")
    return plain
