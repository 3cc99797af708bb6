"""Signatures for commits: the program that git runs inside asks here, and gets one or a reason.

Made by the door for a connection to `SIGNING_ADDRESS`. The client sends the length of a commit in
four bytes, then the commit, and reads `ok` and the signature, or `no` and the reason, to the end.
The commit is judged here and sent on to a process that judges it again and may use the key; no key
is here (I1).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason, Verdict
from keyhole.model.errors import Refused
from keyhole.model.event import Event, EventKind
from keyhole.policy.signing import MAX_SIGNATURES, SIGN_RULE, decide_signature
from keyhole.wire.signable_commit import MAX_SIGNABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keyhole.gateway.session import SessionState
    from keyhole.gateway.tasks import Tasks
    from keyhole.wire.signable_commit import SignableCommit

SECONDS = 60.0
"""How long a signature may take: a person may have to touch a device."""

MAX_AT_ONCE = 4
"""Signatures that a session waits for at a time. Each starts a program outside (I12)."""

TOO_LONG = f"a commit that is signed has at most {MAX_SIGNABLE} bytes, and nothing follows it"
TOO_MANY = "too many signatures are asked for; try again"

_LENGTH = 4


class SigningTalk(asyncio.Protocol):
    """One connection: one commit, one answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        tasks: Tasks,
        ended: Callable[[SigningTalk], None],
    ) -> None:
        self._loop = loop
        self._state = state
        self._tasks = tasks
        self._ended = ended
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer = loop.call_later(SECONDS, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Bytes of the commit."""
        buffer = self._buffer
        buffer += data
        if len(buffer) < _LENGTH:
            return
        length = int.from_bytes(buffer[:_LENGTH], "big")
        if length > MAX_SIGNABLE or len(buffer) > _LENGTH + length:
            self._stop_reading()
            self._refuse(TOO_LONG)
        elif len(buffer) == _LENGTH + length:
            content = bytes(buffer[_LENGTH:])
            self._stop_reading()
            self._judge(content)

    def _stop_reading(self) -> None:
        self._buffer.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone. A signature that is under way is recorded all the same."""
        self._timer.cancel()
        self._transport = None
        self._ended(self)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _judge(self, content: bytes) -> None:
        state = self._state
        # 1. Authorise: the rate, the total, and the policy.
        limited = state.signatures.take(self._loop.time())
        if not limited.allowed or state.signing >= MAX_AT_ONCE or state.signed >= MAX_SIGNATURES:
            self._refuse(TOO_MANY)
            return
        decision, commit, why = decide_signature(state.session.book.policy, content)
        sign = state.session.sign
        if commit is None or sign is None:
            self._refuse(why)
            return
        # 2. Touch: the bytes that go on are written from what was read.
        state.signing += 1
        state.signed += 1
        self._tasks.start(self._sign(sign(commit.to_bytes()), commit, decision.rule), self.abort)

    async def _sign(self, asked: Awaitable[bytes], commit: SignableCommit, rule: str) -> None:
        try:
            signature = await asked
        except Refused as refused:
            self._refuse(refused.message)
            return
        finally:
            self._state.signing -= 1
        # 3. Audit, by the name that the commit has with its signature.
        details = (("commit", commit.signed_id(signature)),)
        self._state.record(
            Event(EventKind.SIGN, Verdict.ALLOW, Reason.COMMIT_SIGNED, rule, details=details)
        )
        self._answer(b"ok\n" + signature)

    def _refuse(self, why: str) -> None:
        details = (("why", why),)
        self._state.record(
            Event(EventKind.SIGN, Verdict.DENY, Reason.COMMIT_UNSIGNED, SIGN_RULE, details=details)
        )
        self._answer(b"no\n" + why.encode())

    def _answer(self, answer: bytes) -> None:
        if self._transport is not None:
            self._transport.write(answer)
            self._transport.close()
