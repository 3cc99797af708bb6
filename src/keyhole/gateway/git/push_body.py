"""The body of a push: its command list read, its pack in quarantine until it was judged.

Filled by `http/collecting.py`, judged by `push_decision.py`. A pack is streamed to the origin as it
arrives only where nothing is searched for in it: with `force` and no `deny_paths`. Then the first
bytes wait in memory until the refs are judged by their names.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway.bodies import CollectedBody
from keyhole.gateway.git.quarantine import Quarantine
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, OverLimit, RequestUnfit
from keyhole.policy.limit import decide_total
from keyhole.wire.receive_pack import PushReader

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.gateway.session import SessionState
    from keyhole.wire.receive_pack import PushRequest


class PushBody(CollectedBody):
    """The body of one push."""

    __slots__ = (
        "_directory", "_discards", "_first", "_list", "_state", "commands", "ended", "quarantine",
        "size", "streamed", "whole",
    )  # fmt: skip

    def __init__(
        self, request: AuthorizedRequest, state: SessionState, directory: Path | None
    ) -> None:
        super().__init__(request)
        self.commands: PushRequest | None = None
        """The list of commands, once it is whole."""
        self.streamed = request.operation is not None and not request.operation.judged
        """Whether the pack is sent as it arrives."""
        self.ended = False
        self.whole = asyncio.get_running_loop().create_future()
        self.quarantine: Quarantine | None = None
        self.size = 0
        self._state = state
        self._directory = directory
        self._list = PushReader()
        self._first = bytearray()
        """The first bytes of a push that is streamed."""
        self._discards = False

    @property
    def pack_offset(self) -> int:
        """The offset of the pack in the body."""
        return self._list.size

    def take(self, piece: bytes, limit: int) -> None:
        """Keep bytes. Raises OverLimit or RequestUnfit."""
        self.size += len(piece)
        if self.size > limit:
            raise OverLimit(decide_total("body", 0, self.size, limit))
        if self._discards:
            return
        try:
            self.commands = self._list.feed(piece)
        except Malformed as error:
            raise RequestUnfit(Reason.PUSH_MALFORMED, error.why) from None
        if self.streamed:
            self._keep(piece)
        else:
            self._write(piece)

    def end(self) -> None:
        """All of the body was taken. Raises RequestUnfit."""
        self.ended = True
        if self.commands is None:
            try:
                self._list.end()
            except Malformed as error:
                raise RequestUnfit(Reason.PUSH_MALFORMED, error.why) from None
        if not self.whole.done():
            self.whole.set_result(None)

    def take_first(self) -> bytes:
        """Take the bytes that waited in memory."""
        first = bytes(self._first)
        self._state.gather(-len(first))
        self._first.clear()
        return first

    def judge_pack(self) -> None:
        """Put a push that was to be streamed into quarantine after all. Raises as `take`."""
        self.streamed = False
        self._write(self.take_first())

    def discard(self) -> None:
        """The push is refused: read it to its end, and keep nothing."""
        self._discards = True
        self.streamed = False
        self.forget()

    def forget(self) -> None:
        """Release disk and memory."""
        self.take_first()
        quarantine, self.quarantine = self.quarantine, None
        if quarantine is not None:
            quarantine.close()

    def _keep(self, data: bytes) -> None:
        self._state.gather(len(data))
        self._first += data

    def _write(self, data: bytes) -> None:
        if self.quarantine is None:
            self.quarantine = Quarantine(self._directory, self._state)
        self.quarantine.write(data)
