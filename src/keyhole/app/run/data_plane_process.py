"""A run's data plane, as seen by the process that holds the sandbox: started, instructed, ended.

The process itself is `data_plane.py`. It is started before the policy is even read, so that its
interpreter starts on another core; this module is imported first of all in a run, so it imports
little, and is handed messages as bytes. Messages of the data plane are parsed strictly: it is the
less trusted of the two (I5).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from keyhole.app.processes.child import start_child
from keyhole.app.processes.message_frames import frame_message
from keyhole.app.processes.outgoing import OutgoingBytes
from keyhole.app.processes.sandbox_channel import MAX_MESSAGE, SandboxChannel
from keyhole.model.errors import SetupFailed
from keyhole.system.processes import has_ended, kill_process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.app.setup.host_paths import HostPaths


ANSWER_SECONDS = 30.0
"""How long the data plane may take to start and to make a CA; it takes about 0.1 s."""

END_SECONDS = 5.0
"""How long a process that was killed may take to be gone."""

_INHERITED = ("RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES")
"""Variables that affect name resolution. No other is passed on: some hold credentials (I1)."""

_NO_PORTS: Mapping[int, int] = {}
_ENDED = "the data plane ended before the sandbox was made"


class RunDataPlaneProcess:
    """A child of the thread that made it, with which it ends (PDEATHSIG)."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Raises SetupFailed."""
        self._link, their_link = socket.socketpair()
        self._line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = {name: env[name] for name in _INHERITED if name in env}
        module = "keyhole.app.run.data_plane"
        try:
            self.pid = start_child(module, (their_link, their_line), given, apart=True)
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise SetupFailed(f"no data plane can be started: {error.strerror}") from None
        self._confined = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: OutgoingBytes | None = None
        self._link.settimeout(ANSWER_SECONDS)
        self._line.settimeout(ANSWER_SECONDS)

    # ── before there is a loop ────────────────────────────────────────────────────────────────────

    def warm_up(self) -> None:
        """Have it import what a session needs that inspects a host, before it knows its session."""
        with contextlib.suppress(SetupFailed):  # it has ended, which the next message reports
            self._send_words(do="warm-up")

    def confine(self, places: HostPaths, *, inspects: bool) -> None:
        """Have it lock itself down and import its modules. A second call does nothing."""
        if not self._confined:
            self._confined = True
            self._send_words(
                do="confine",
                audit=str(places.audit),
                quarantine=str(places.quarantine),
                ports=str(places.ports),
                inspects=inspects,
            )

    def open(self, opening: bytes, *, inspects: bool) -> bytes:
        """Hand over the session, a SessionOpening as `messages.packed` writes it, and return the
        certificate of its CA if it inspects a host."""
        self._send_words(do="open", inspects=inspects)
        self._send(opening)
        if not inspects:
            return b""
        ca = self._answer().get("ca")
        if not isinstance(ca, str) or not ca.isascii():
            raise SetupFailed(_ENDED)
        return ca.encode("ascii")

    def hand_over(
        self, door: Sequence[socket.socket], pulse: int, ports: Mapping[int, int] = _NO_PORTS
    ) -> None:
        """Hand over the door and the heartbeat's pipe, and keep neither. `ports` has the port
        inside, by the published port of the host."""
        try:
            descriptors = [*(each.fileno() for each in door), pulse]
            self._send_words(descriptors, do="door", ports=list(ports.items()))
        finally:
            os.close(pulse)
            for each in door:
                each.close()

    def _send_words(self, descriptors: Sequence[int] = (), **words: object) -> None:
        self._send(json.dumps(words).encode(), descriptors)

    def _send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        data = memoryview(frame_message(message))
        try:
            if descriptors:
                data = data[socket.send_fds(self._link, [data], list(descriptors)) :]
            self._link.sendall(data)
        except OSError:
            raise SetupFailed(self._why_ended()) from None

    def _answer(self) -> dict[str, Any]:
        try:
            said = json.loads(self._line.recv(MAX_MESSAGE))
        except TimeoutError:
            raise SetupFailed(f"the data plane took over {ANSWER_SECONDS:g} s") from None
        except (OSError, ValueError, RecursionError):
            raise SetupFailed(_ENDED) from None
        if not isinstance(said, dict) or "failed" in said:
            raise SetupFailed(data_plane_failure(said))
        return said

    def _why_ended(self) -> str:
        """The data plane's last message, if it sent one."""
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
    ) -> SandboxChannel:
        """Read from it on a loop; from here on no message to it blocks."""
        self._loop = loop
        self._pending = OutgoingBytes(self._link, lambda: None)  # its channel reports its end
        self._pending.attach(loop)
        return SandboxChannel(loop, self._line, heard, ended)

    def tell(self, message: bytes) -> None:
        """Send a message of `messages.pack_message`; one that cannot be sent at once is queued."""
        if self._pending is not None:
            self._pending.send(message)

    def give(self, descriptors: Sequence[int], message: bytes) -> bool:
        """Send a message with descriptors, at once or not at all. Returns whether it was sent."""
        if self._pending is None or len(self._pending) or self._link.fileno() < 0:
            return False
        try:
            sent = socket.send_fds(self._link, [message], list(descriptors))
        except OSError:
            return False
        self._pending.send(message[sent:])
        return True

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def cause(self) -> str:
        """How it ended. Its channel closes a moment before its end is seen."""
        found = None
        if self.pidfd >= 0 and has_ended(self.pidfd, END_SECONDS):
            with contextlib.suppress(ChildProcessError):
                found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return "it hung up"
        if found.si_code == os.CLD_EXITED:
            return f"it ended by itself, exit code {found.si_status}"
        return f"it was ended by signal {found.si_status}"

    def kill(self) -> None:
        """Kill it. Its sockets are closed when this returns, or very soon."""
        if self.pidfd >= 0:
            kill_process(self.pidfd)

    def close(self) -> None:
        """Kill it and release everything. A second call does nothing."""
        if self.pidfd < 0:
            return
        self.kill()
        if self._pending is not None:
            self._pending.close()
        self._link.close()
        if self._loop is None:
            self._line.close()
        if has_ended(self.pidfd, END_SECONDS):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.pidfd = -1


def data_plane_failure(said: object) -> str:
    """Why it could not serve, from its own message, which is shown to a person."""
    why = said.get("failed") if isinstance(said, dict) else None
    return f"the data plane cannot serve: {why}" if isinstance(why, str) else _ENDED
