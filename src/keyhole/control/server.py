"""The server of the control API: accepts connections, checks peers, and bounds both.

Made by the composition root with a claimed directory and an `Operations`. It runs on the gateway's
loop and must not delay it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING

from keyhole.control.connection import ControlConnection
from keyhole.control.peer import OwnIdentity, RefusedPeer, identify
from keyhole.control.received_door import namespace_of
from keyhole.control.responses import ApiError, RequestRejected, error_response

if TYPE_CHECKING:
    import socket

    from keyhole.control.interface import Operations
    from keyhole.control.runs import RunClaim
    from keyhole.control.socket_directory import SocketClaim

MAX_CONVERSATIONS = 512
"""Connections at a time; more wait in the kernel's queue. A verb opens one after the other."""

MAX_AT_WORK = 64
"""Operations at a time that may wait: to open a session can mean to wait for a secret, or for a
stuck data plane. More wait for their turn; urgent ones do not."""

ACCEPTS_PER_TICK = 8
"""Connections accepted before the loop looks at doors again."""

EXHAUSTED_PAUSE = 0.1
"""Seconds to wait when the system has no descriptor left."""

CLOSE_SECONDS = 1.0
"""How long answers that are being sent may take at the end."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FORBIDDEN = error_response(RequestRejected(ApiError.FORBIDDEN))


class ControlServer:
    """Listens from its creation until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        claim: SocketClaim | RunClaim,
        listener: socket.socket,
        operations: Operations,
    ) -> None:
        """`listener` is the claim's socket, made before the lock-down."""
        self._loop = loop
        self._claim = claim
        self._operations = operations
        self._own = OwnIdentity(os.geteuid(), namespace_of(listener))
        self._conversations: set[ControlConnection] = set()
        self._turns = asyncio.Semaphore(MAX_AT_WORK)
        self._timer: asyncio.TimerHandle | None = None
        self._accepting = False
        self._open = True
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._listener = listener
        self._resume()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Accept no more, send pending answers, release the claim. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._pause()
        self._listener.close()
        for conversation in list(self._conversations):
            conversation.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)
        cut = [conversation.abort() for conversation in list(self._conversations)]
        tasks = [task for task in cut if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        # Last: the next gateway to claim the directory relies on this one being done.
        self._claim.release()

    # ── accepting ─────────────────────────────────────────────────────────────────────────────────

    def _resume(self) -> None:
        self._timer = None
        if self._open and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._listener, self._acceptable)

    def _pause(self, seconds: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._resume)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            if len(self._conversations) >= MAX_CONVERSATIONS:
                self._pause()
                return
            try:
                sock, _address = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(EXHAUSTED_PAUSE)
                return
            sock.setblocking(False)
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        # The peer is checked before a byte of it is read (I5).
        peer = identify(sock, self._own)
        if isinstance(peer, RefusedPeer):
            try:
                self._operations.peer_refused(peer)
            finally:
                with contextlib.suppress(OSError):
                    sock.send(_FORBIDDEN)
                sock.close()
            return
        conversation = ControlConnection(
            self._loop, sock, peer, self._operations, self._own.namespace, self._left, self._turns
        )
        self._conversations.add(conversation)
        self._quiet.clear()

    def _left(self, conversation: ControlConnection) -> None:
        self._conversations.discard(conversation)
        if not self._conversations:
            self._quiet.set()
        if self._timer is None:
            self._resume()
