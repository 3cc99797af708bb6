"""The keeper, as seen by the data plane: requests on the loop, and notifications of changes.

Made by `data_plane.py` from the sockets that it was started with. When the keeper dies, open
sessions go on with the values that they have; new sessions, changes and judges are refused with the
reason.
"""

from __future__ import annotations

import base64
import json
import socket
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keyhole.app.processes.awaited_judges import AwaitedJudges
from keyhole.app.processes.message_frames import MessageBuffer, frame_message
from keyhole.app.processes.messages import (
    ChangeRefused,
    KeeperAnswer,
    PolicyReloaded,
    SecretRotated,
    SpendingChanged,
    unpack_keeper_message,
    unpacked,
)
from keyhole.app.processes.outgoing import OutgoingBytes
from keyhole.app.session.command_answer import read_printed_answer
from keyhole.app.setup.provision import Provision
from keyhole.control.operation_table import ASK_VIEW
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from msgspec import Raw

    from keyhole.app.processes.messages import KeeperMessage
    from keyhole.app.setup.trusted_roots import TrustedRoots
    from keyhole.control.values import AskView
    from keyhole.policy.mcp_grant import SeenTool

GONE = "the gateway's keeper has ended; `keyhole down` and `keyhole up` start both again"

MAX_ROOTS = 16
"""Sets of roots, one for each `upstream.ca_file`, that sessions share."""


class KeeperClient:
    """The data plane's connection to a keeper. `attach` puts it on a loop."""

    def __init__(self, link: socket.socket, judges: socket.socket) -> None:
        self._link, self._judges = link, judges
        self.alive = True
        self._frames = MessageBuffer()
        self._number = 0
        self._asked: dict[int, asyncio.Future[Raw]] = {}
        self._awaited: AwaitedJudges | None = None
        self._pending = OutgoingBytes(link, self._gone)
        self._roots: dict[TrustedRoots, TrustedRoots] = {}
        self._changed: Callable[..., None] = lambda *_: None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(
        self, loop: asyncio.AbstractEventLoop, changed: Callable[[str, str, tuple[Any, ...]], None]
    ) -> None:
        """Read on a loop; `changed` is called with the kind, the session and the values."""
        self._loop = loop
        self._changed = changed
        self._awaited = AwaitedJudges(loop)
        self._pending.attach(loop)
        for each, heard in ((self._link, self._readable), (self._judges, self._judge_came)):
            each.setblocking(False)
            loop.add_reader(each, heard)

    async def open(
        self, session: str, policy: str, search_path: str, writable: tuple[str, ...]
    ) -> Provision:
        """Have a session's policy and secrets read, and watched from then on. Raises Refused."""
        answer = await self._ask(
            "open", session=session, policy=policy, search_path=search_path, writable=writable
        )
        return self._sharing(unpacked(answer, Provision))

    def _sharing(self, provision: Provision) -> Provision:
        """The same with the roots of another session: they take 200 KiB, and most sessions have the
        same."""
        roots = provision.roots
        if roots is None:
            return provision
        if roots not in self._roots and len(self._roots) >= MAX_ROOTS:
            self._roots.pop(next(iter(self._roots)))
        return replace(provision, roots=self._roots.setdefault(roots, roots))

    def end(self, session: str) -> None:
        """Stop watching the session's sources."""
        self._send({"do": "end", "session": session})

    async def reload(self) -> dict[str, tuple[bool, str]]:
        """Have every session's policy read now. Returns for each whether it changed, and why the
        old one stays if it does."""
        return unpacked(await self._ask("reload"), dict[str, tuple[bool, str]])

    async def touch(self, reference: str) -> list[str]:
        """Have a secret read now. Returns the sessions that use it."""
        return unpacked(await self._ask("touch", reference=reference), list[str])

    async def sign(self, session: str, commit: bytes) -> bytes:
        """Have a session's commit signed. Raises Refused."""
        text = base64.b64encode(commit).decode("ascii")
        return unpacked(await self._ask("sign", session=session, commit=text), bytes)

    async def consult(self, session: str, ask: AskView) -> dict[str, Any]:
        """Have the command of a session's policy answer a question. Raises Refused."""
        words = ASK_VIEW.write(ask, "ask")
        printed = unpacked(await self._ask("consult", session=session, ask=words), bytes)
        return read_printed_answer(printed)

    def spent(self, session: str, service: str, amount: int) -> None:
        """Report what a session's service has cost so far."""
        self._send({"do": "spent", "session": session, "said": {service: amount}})

    def remember_tool(self, session: str, service: str, seen: SeenTool) -> None:
        """Have a tool of a session's service remembered."""
        row = [seen.name, seen.digest, seen.accepted]
        self._send({"do": "tools", "session": session, "service": service, "seen": [row]})

    async def start_judge(self) -> tuple[socket.socket, int]:
        """Start a judge that waits for its case. Raises OSError."""
        if not self.alive or self._awaited is None:
            raise OSError(GONE)
        self._judges.send(b"judge")
        return await self._awaited.expect()

    def close(self) -> None:
        """Close the connection."""
        self._gone()

    # ── the link ──────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, what: str, **words: object) -> Raw:
        if not self.alive or self._loop is None:
            raise Refused(GONE)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Raw] = self._loop.create_future()
        self._asked[number] = answer
        self._send({"do": what, "number": number} | words)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def _send(self, message: dict[str, object]) -> None:
        if not self.alive:
            return
        self._pending.send(frame_message(json.dumps(message).encode()))

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
            self._hear(unpack_keeper_message(frame))

    def _hear(self, message: KeeperMessage) -> None:
        match message:
            case KeeperAnswer(number, value, why):
                waiting = self._asked.get(number)
                if waiting is None or waiting.done():
                    return
                if why:
                    waiting.set_exception(Refused(why))
                else:
                    waiting.set_result(value)
            case SecretRotated(reference, secret, hidden, session):
                self._tell("rotated", session, (reference, secret, hidden))
            case PolicyReloaded(provision, session):
                self._tell("reloaded", session, (self._sharing(unpacked(provision, Provision)),))
            case ChangeRefused(why, session):
                self._tell("kept", session, (why,))
            case SpendingChanged(spending, session):
                self._tell("spending", session, (spending,))

    def _tell(self, what: str, session: str, values: tuple[Any, ...]) -> None:
        """Report a change. An error in one session must not lose the changes of others behind it
        (I9)."""
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
        if self._awaited is not None:
            self._awaited.arrived(said.decode("utf-8", "replace"), descriptors)

    def _gone(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._link)
            self._pending.close()
            self._loop.remove_reader(self._judges)
        self._link.close()
        self._judges.close()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(Refused(GONE))
        if self._awaited is not None:
            self._awaited.abandon(GONE)
