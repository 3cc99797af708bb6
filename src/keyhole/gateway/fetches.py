"""The body of a fetch: taken whole, read strictly, and written anew.

Used by `inspected.py` for `git-upload-pack`. What a fetch asks for is small; what it gets passes
as any other answer.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from keyhole.gateway.gathering import Gathered, Gathering
from keyhole.gateway.refusal import Unfit
from keyhole.model.decision import Reason
from keyhole.system.places import Bounds, OverShare, Places
from keyhole.wire.httpfield import Malformed
from keyhole.wire.uploadpack import MAX_REQUEST, Refused, read_fetch

if TYPE_CHECKING:
    from keyhole.gateway.inspection import Asked
    from keyhole.gateway.session import SessionState

MAX_FETCH = MAX_REQUEST
"""Bytes of a fetch, also when it came compressed."""

LARGE = 128 * 1024
"""Bytes of a fetch from which on it is read in a thread, and the loop serves others meanwhile: they
would wait for 6 ms otherwise, and for 0.4 s at the largest."""

MAX_RATIO, SMALL = 16, 4096
"""How much a compressed fetch may grow, beyond a little: object ids deflate to about a half."""

_GZIP = 31  # a window of 15 and gzip's own frame

# One, whoever asks: each that is at work takes as much of the interpreter as the loop. Sessions
# take turns, so that one with many to read does not keep another's waiting (I12).
_reader = ThreadPoolExecutor(1, thread_name_prefix="fetch")
PLACES = Bounds(total=1, each=1, waiting=256)


class FetchBody(Gathering):
    """One fetch."""

    __slots__ = ("_gzip", "_version")

    def __init__(self, asked: Asked, state: SessionState, version: int, *, gzip: bool) -> None:
        super().__init__(asked, state)
        self._version = version
        self._gzip = gzip

    @property
    def most(self) -> int:
        """Bytes that it may have."""
        return MAX_FETCH

    @property
    def large(self) -> bool:
        """Whether reading it takes long."""
        return len(self._body) * (MAX_RATIO if self._gzip else 1) > LARGE

    def finish(self) -> Gathered:
        """The fetch as it goes on, uncompressed."""
        return Gathered(self.asked, self._set_length(self._read()))

    async def finish_apart(self, loop: asyncio.AbstractEventLoop, places: Places) -> Gathered:
        """The same, read in a thread; what it belongs to may change meanwhile."""
        try:
            await places.take(self._state)
        except OverShare as error:
            raise Unfit(Reason.OVER_SHARE, f"large fetches: {error}", "shares.fetches") from None
        reading = loop.run_in_executor(_reader, self._read)
        reading.add_done_callback(partial(self._was_read, places))
        # Shielded: a client that leaves does not end the thread's work, which has its place.
        plain = await asyncio.shield(reading)
        return Gathered(self.asked, self._set_length(plain))

    def _was_read(self, places: Places, reading: asyncio.Future[bytes]) -> None:
        reading.exception()  # seen, also where nobody waits any more
        places.leave(self._state)

    def _read(self) -> bytes:
        # Taken only now: what was forgotten while it waited for its turn takes no memory (I9).
        body = self._whole()
        try:
            return read_fetch(_inflate(body) if self._gzip else body, self._version)
        except Malformed as error:
            raise Unfit(Reason.FETCH_REFUSED, f"the fetch is malformed: {error.why}") from None
        except Refused as error:
            raise Unfit(Reason.FETCH_REFUSED, error.why) from None


def _inflate(body: bytes) -> bytes:
    """One gzip member and nothing behind it: servers differ on a second."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        plain = inflater.decompress(body, min(MAX_FETCH, SMALL + MAX_RATIO * len(body)))
    except zlib.error:
        raise Malformed("it is not gzip") from None
    if not inflater.eof or inflater.unused_data:
        raise Malformed("it is not one gzip member of a sane size")
    return plain
