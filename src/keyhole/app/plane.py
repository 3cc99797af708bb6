"""A run's data plane as the process that holds the sandbox sees it: started, told, ended.

The process itself is `dataplane.py`. It is started before the policy is even read, so that its
interpreter starts on another core; this module is imported first of all in a run, so it imports
little. What the data plane says is read strictly: it is the less trusted of the two (I5).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

from keyhole.app.companion import start
from keyhole.sandbox.helper import SetupFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from keyhole.app.line import Line
    from keyhole.app.provision import Provision
    from keyhole.policy.budget import GatewayLimits

ANSWER_SECONDS = 30.0
"""How long the data plane may take to start and to make a CA; it takes about 0.1 s."""

END_SECONDS = 5.0
"""How long a process that was killed may take to be gone."""

_INHERITED = ("RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES")
"""Variables that name resolution goes by. The others stay here: some hold credentials (I1)."""

_ENDED = "the data plane ended before the sandbox was made"


class DataPlane:
    """A child of the thread that made it, with which it ends (PDEATHSIG)."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Raises SetupFailed."""
        self._link, their_link = socket.socketpair()
        self._line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = {name: env[name] for name in _INHERITED if name in env}
        module = "keyhole.app.dataplane"
        try:
            self.pid = start(module, (their_link, their_line), given, apart=True)
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise SetupFailed(f"no data plane can be started: {error.strerror}") from None
        self._confined = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending = bytearray()
        self._link.settimeout(ANSWER_SECONDS)
        self._line.settimeout(ANSWER_SECONDS)

    # ── before there is a loop ────────────────────────────────────────────────────────────────────

    def confine(self, audit: Path, quarantine: Path, *, inspects: bool) -> None:
        """Have it lock itself down and load its modules; a second time does nothing."""
        if not self._confined:
            self._confined = True
            self._send(("confine", str(audit), str(quarantine), inspects))

    def open(
        self,
        session: str,
        provision: Provision,
        stand_ins: Mapping[str, tuple[str, ...]],
        limits: GatewayLimits,
        fault: str = "",
    ) -> bytes:
        """Hand over the session; the certificate of its CA, where it inspects something."""
        from keyhole.app.message import pickled

        inspects = provision.roots is not None
        told = pickled((session, provision, dict(stand_ins), limits, fault))
        self._send(("open", told, inspects))
        if not inspects:
            return b""
        ca = self._answer().get("ca")
        if not isinstance(ca, str) or not ca.isascii():
            raise SetupFailed(_ENDED)
        return ca.encode("ascii")

    def hand_over(self, door: Sequence[socket.socket], pulse: int) -> None:
        """Give it the door and the pipe that it beats on; nothing of either is kept here."""
        try:
            self._send(("door",), [*(each.fileno() for each in door), pulse])
        finally:
            os.close(pulse)
            for each in door:
                each.close()

    def _send(self, value: tuple[Any, ...], descriptors: Sequence[int] = ()) -> None:
        from keyhole.app.message import packed

        data = memoryview(packed(value))
        try:
            if descriptors:
                data = data[socket.send_fds(self._link, [data], list(descriptors)) :]
            self._link.sendall(data)
        except OSError:
            raise SetupFailed(self._why_ended()) from None

    def _answer(self) -> dict[str, Any]:
        from keyhole.app.line import MAX_MESSAGE

        try:
            said = json.loads(self._line.recv(MAX_MESSAGE))
        except TimeoutError:
            raise SetupFailed(f"the data plane took over {ANSWER_SECONDS:g} s") from None
        except (OSError, ValueError, RecursionError):
            raise SetupFailed(_ENDED) from None
        if not isinstance(said, dict) or "failed" in said:
            raise SetupFailed(failure(said))
        return said

    def _why_ended(self) -> str:
        """Its last words, if it had some."""
        try:
            self._line.settimeout(0)
            self._answer()
        except SetupFailed as failed:
            return str(failed)
        return _ENDED

    # ── on a loop ─────────────────────────────────────────────────────────────────────────────────

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[dict[str, Any]], None],
        ended: Callable[[], None],
    ) -> Line:
        """Listen to it on a loop; from here on nothing that is said to it waits."""
        from keyhole.app.line import Line

        self._loop = loop
        self._link.setblocking(False)
        return Line(loop, self._line, heard, ended)

    def tell(self, *value: object) -> None:
        """Say something; what cannot be sent at once waits."""
        from keyhole.app.message import packed

        if self._loop is not None and self._link.fileno() >= 0:
            self._pending += packed(value)
            self._writable()

    def give(self, descriptors: Sequence[int], *value: object) -> bool:
        """Say something with descriptors beside it, at once or not at all; whether it was said."""
        from keyhole.app.message import packed

        if self._loop is None or self._pending or self._link.fileno() < 0:
            return False
        data = packed(value)
        try:
            sent = socket.send_fds(self._link, [data], list(descriptors))
        except OSError:
            return False
        self._pending += data[sent:]
        self._writable()
        return True

    def _writable(self) -> None:
        if self._loop is None or self._link.fileno() < 0:
            return
        try:
            while self._pending:
                del self._pending[: self._link.send(self._pending)]
        except BlockingIOError:
            self._loop.add_writer(self._link, self._writable)
            return
        except OSError:
            self._pending.clear()  # it has ended, which its line tells
        self._loop.remove_writer(self._link)

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def cause(self) -> str:
        """How it ended; its line is closed a moment before it is seen as ended."""
        found = None
        if self.pidfd >= 0 and self._gone(END_SECONDS):
            with contextlib.suppress(ChildProcessError):
                found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return "it hung up"
        if found.si_code == os.CLD_EXITED:
            return f"it ended by itself, exit code {found.si_status}"
        return f"it was ended by signal {found.si_status}"

    def _gone(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def kill(self) -> None:
        """End it now, whatever it does; its sockets are closed when this returns, or very soon."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End it, and leave nothing of it. A second time does nothing."""
        if self.pidfd < 0:
            return
        self.kill()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_writer(self._link)
        self._link.close()
        if self._loop is None:
            self._line.close()
        if self._gone(END_SECONDS):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.pidfd = -1


def failure(said: object) -> str:
    """Why it could not serve, by its own words, which are shown to a person."""
    why = said.get("failed") if isinstance(said, dict) else None
    return f"the data plane cannot serve: {why}" if isinstance(why, str) else _ENDED
