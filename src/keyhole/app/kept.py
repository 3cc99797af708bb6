"""The keeper as the data plane sees it: asked on the loop, and heard when something changed.

Made by `daemonplane.py` from the sockets that it was started with. When the keeper dies, sessions
that are open go on with what they have; new ones, changes and judges are refused with the reason.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from keyhole.app.message import Frames, framed, unpacked
from keyhole.model.value import replace
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.app.provision import Provision
    from keyhole.app.roots import Roots

GONE = "the gateway's keeper has ended; `keyhole down` and `keyhole up` start both anew"

MAX_ROOTS = 16
"""Kinds of roots, one for each `upstream.ca_file`, that sessions share."""


class Kept:
    """The other end of a keeper. `attach` puts it on a loop."""

    def __init__(self, link: socket.socket, judges: socket.socket) -> None:
        self._link, self._judges = link, judges
        self.alive = True
        self._frames = Frames()
        self._number = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._awaited: deque[asyncio.Future[tuple[socket.socket, int]]] = deque()
        self._pending = bytearray()
        self._roots: dict[Roots, Roots] = {}
        self._changed: Callable[..., None] = lambda *_: None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(
        self, loop: asyncio.AbstractEventLoop, changed: Callable[[str, str, tuple[Any, ...]], None]
    ) -> None:
        """Listen on a loop; `changed` hears what, of which session, and the values."""
        self._loop = loop
        self._changed = changed
        for each, heard in ((self._link, self._readable), (self._judges, self._judge_came)):
            each.setblocking(False)
            loop.add_reader(each, heard)

    async def open(
        self, session: str, policy: str, search_path: str, writable: tuple[str, ...]
    ) -> Provision:
        """Have a session provided for, and followed from then on. Raises Refused."""
        provision: Provision = await self._ask(
            "open", session=session, policy=policy, search_path=search_path, writable=writable
        )
        return self._sharing(provision)

    def _sharing(self, provision: Provision) -> Provision:
        """The same, with roots that another has already: 200 KiB, and alike for most."""
        roots = provision.roots
        if roots is None:
            return provision
        if roots not in self._roots and len(self._roots) >= MAX_ROOTS:
            self._roots.pop(next(iter(self._roots)))
        return replace(provision, roots=self._roots.setdefault(roots, roots))

    def end(self, session: str) -> None:
        """Have it followed no longer."""
        self._send({"do": "end", "session": session})

    async def reload(self) -> dict[str, tuple[bool, str]]:
        """Have every session's policy read now: whether it changed, or why it was kept."""
        outcomes: dict[str, tuple[bool, str]] = await self._ask("reload")
        return outcomes

    async def touch(self, reference: str) -> list[str]:
        """Have a secret read now; the sessions that use it."""
        sessions: list[str] = await self._ask("touch", reference=reference)
        return sessions

    async def start_judge(self) -> tuple[socket.socket, int]:
        """A judge that waits for its case. Raises OSError."""
        if not self.alive or self._loop is None:
            raise OSError(GONE)
        coming: asyncio.Future[tuple[socket.socket, int]] = self._loop.create_future()
        self._judges.send(b"judge")
        self._awaited.append(coming)
        return await coming

    def close(self) -> None:
        """Hang up."""
        self._gone()

    # ── the link ──────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, what: str, **words: object) -> Any:  # noqa: ANN401 - by what is asked
        if not self.alive or self._loop is None:
            raise Refused(GONE)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked[number] = answer
        self._send({"do": what, "number": number} | words)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def _send(self, message: dict[str, object]) -> None:
        if not self.alive:
            return
        self._pending += framed(json.dumps(message).encode())
        self._writable()

    def _writable(self) -> None:
        if self._loop is None or not self.alive:
            return
        try:
            while self._pending:
                del self._pending[: self._link.send(self._pending)]
        except BlockingIOError:
            self._loop.add_writer(self._link, self._writable)
            return
        except OSError:
            self._gone()
            return
        self._loop.remove_writer(self._link)

    def _readable(self) -> None:
        try:
            data = self._link.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        for frame in self._frames.feed(data):
            what, name, *values = unpacked(frame)
            if what != "answer":
                if what == "reloaded":
                    values = [self._sharing(each) for each in values]
                self._tell(what, name, tuple(values))
                continue
            waiting = self._asked.get(name)
            if waiting is None or waiting.done():
                continue
            value, why = values
            if why:
                waiting.set_exception(Refused(why))
            else:
                waiting.set_result(value)

    def _tell(self, what: str, session: str, values: tuple[Any, ...]) -> None:
        """A fault in one session must not lose what others wait for behind it (I9)."""
        try:
            self._changed(what, session, values)
        except Exception as error:  # noqa: BLE001 - told where every fault of the loop is
            if self._loop is not None:
                context = {"message": "a change of a session failed", "exception": error}
                self._loop.call_exception_handler(context)

    def _judge_came(self) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(self._judges, 4096, 2)
        except BlockingIOError:
            return
        except OSError:
            said, descriptors = b"", []
        if not said:
            self._gone()
            return
        coming = self._awaited.popleft()
        if len(descriptors) == 2:
            judge = socket.socket(fileno=descriptors[0]), descriptors[1]
            if coming.done():  # nobody waits any more
                judge[0].close()
                os.close(judge[1])
            else:
                coming.set_result(judge)
        elif not coming.done():
            coming.set_exception(OSError(said.decode("utf-8", "replace")))

    def _gone(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._link)
            self._loop.remove_writer(self._link)
            self._loop.remove_reader(self._judges)
        self._link.close()
        self._judges.close()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(Refused(GONE))
        for coming in self._awaited:
            if not coming.done():
                coming.set_exception(OSError(GONE))
        self._awaited.clear()
