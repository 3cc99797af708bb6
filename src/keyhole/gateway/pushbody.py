"""The body of a push: its command list read, its pack in quarantine until it was judged.

Filled by `inspected.py`, asked by `pushes.py`. A pack passes as it comes only where nothing is to
be looked for in it: `force` and no `deny_paths`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway.gathering import MAX_GATHERED, Body
from keyhole.gateway.quarantine import Quarantine
from keyhole.gateway.refusal import Unfit
from keyhole.gateway.session import OverLimit
from keyhole.model.decision import Reason
from keyhole.policy.limit import decide_total
from keyhole.wire.httpfield import Malformed
from keyhole.wire.receivepack import PushReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.gateway.inspection import Asked
    from keyhole.gateway.session import SessionState
    from keyhole.wire.receivepack import PushRequest


class PushBody(Body):
    """The body of one push."""

    __slots__ = (
        "_count", "_directory", "_discards", "_list", "_raw", "_state", "judging", "quarantine",
        "request", "size", "straight", "whole",
    )  # fmt: skip

    def __init__(
        self,
        asked: Asked,
        state: SessionState,
        directory: Path | None,
        count: Callable[[int], None],
    ) -> None:
        super().__init__(asked)
        self.request: PushRequest | None = None
        """What is asked for, once the list of commands is here."""
        self.straight = asked.errand is not None and not asked.errand.judged
        """Whether nothing is to be looked for in the pack."""
        self.judging = False
        self.whole = asyncio.get_running_loop().create_future()
        self.quarantine: Quarantine | None = None
        self._state = state
        self._directory = directory
        self._count = count
        self._list = PushReader()
        self._raw = bytearray()
        """What came of one that may pass as it came, framing and all."""
        self._discards = False
        self.size = 0

    @property
    def offset(self) -> int:
        """Where in the body the pack begins."""
        return self._list.size

    def feed(self, data: bytes, limit: int) -> bytes:
        """Take bytes; what is behind the body comes back. Raises Malformed or OverLimit."""
        if self.straight and not self._discards:
            self._keep(data)
        else:
            # With its framing: a byte in a chunk of its own costs as much as six.
            self._count(len(data))
        rest = super().feed(data, limit)
        if self.done:
            if self.request is None:
                self._read_list(None)
            if not self.whole.done():
                self.whole.set_result(None)
        return rest

    def as_it_came(self) -> bytes:
        """All bytes so far, framing and all, to be read from the start again."""
        raw = bytes(self._raw)
        self._state.gathered -= len(raw)
        self._raw.clear()
        return raw

    def discard(self) -> None:
        """It is refused: read to its end, keep nothing."""
        self._discards = True
        self.forget()

    def read_anew(self, *, judged: bool) -> None:
        """Read one that was to pass as it came from its start: to be judged, or to be refused."""
        self.straight = False
        self._begin()
        self.size = 0
        self.whole = asyncio.get_running_loop().create_future()
        if judged:
            self._list, self.request = PushReader(), None
        else:
            self.discard()

    def _keep(self, data: bytes) -> None:
        kept = self._state.gathered + len(data)
        if kept > MAX_GATHERED:
            raise OverLimit(decide_total("body", self._state.gathered, len(data), MAX_GATHERED))
        self._state.gathered = kept
        self._raw += data

    def forget(self) -> None:
        """Give disk and memory back."""
        self.as_it_came()
        quarantine, self.quarantine = self.quarantine, None
        if quarantine is not None:
            quarantine.close()

    def _read_list(self, piece: bytes | None) -> PushRequest | None:
        """Read on in the list of commands; None is the body's end."""
        try:
            if piece is not None:
                return self._list.feed(piece)
            self._list.end()
        except Malformed as error:
            raise Unfit(Reason.PUSH_MALFORMED, error.why) from None
        return None

    def _take(self, piece: bytes, limit: int) -> None:
        self.size += len(piece)
        if self.size > limit:
            raise OverLimit(decide_total("body", 0, self.size, limit))
        if self._discards:
            return
        self.request = self._read_list(piece)
        if self.straight:
            return
        if self.quarantine is None:
            self.quarantine = Quarantine(self._directory, self._state)
        self.quarantine.write(piece)
