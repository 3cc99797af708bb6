"""Judges that another process was asked to start, in the order in which they were asked for.

A data plane may start no process. It asks the one beside it, which sends a socket and a pidfd back.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence


class AwaitedJudges:
    """The judges that were requested and have not come yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: deque[asyncio.Future[tuple[socket.socket, int]]] = deque()

    def expect(self) -> asyncio.Future[tuple[socket.socket, int]]:
        """Expect a judge: its socket and its pidfd, when it comes."""
        coming: asyncio.Future[tuple[socket.socket, int]] = self._loop.create_future()
        self._awaited.append(coming)
        return coming

    def arrived(self, why: str, descriptors: Sequence[int]) -> None:
        """The next judge came; without two descriptors it could not be started, and `why` says
        so."""
        coming = self._awaited.popleft()
        if len(descriptors) != 2:
            if not coming.done():
                coming.set_exception(OSError(why))
            return
        control, pidfd = socket.socket(fileno=descriptors[0]), descriptors[1]
        if coming.done():  # no caller is left
            control.close()
            os.close(pidfd)
        else:
            coming.set_result((control, pidfd))

    def abandon(self, why: str) -> None:
        """No judge will come any more: fail those that wait."""
        for coming in self._awaited:
            if not coming.done():
                coming.set_exception(OSError(why))
        self._awaited.clear()
