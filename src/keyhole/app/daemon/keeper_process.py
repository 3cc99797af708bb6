"""The keeper, as seen by the control process: started, and connected with a data plane.

Made by `daemon.py`. The keeper asks for the store's passphrase once, while the gateway starts, and
is then connected with each data plane that is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from keyhole.app.processes.child import start_child
from keyhole.model.errors import SetupFailed
from keyhole.system.processes import has_ended, kill_process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.vault.store_source import PassphrasePrompt

MAX_WORD = 64 * 1024
"""Bytes of one message between both."""

SERVE = b"serve"
"""Sent with two sockets on which the keeper is to serve a data plane."""

END_SECONDS = 5.0
"""How long it may take to end: an `exec:` source may be under way."""

ENDED = "the keeper ended before it was ready"


class KeeperProcess:
    """A keeper's process. `start` makes it, `greet` waits for it, `attach` watches for its end."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.alive = True

    @classmethod
    def start(cls, places: HostPaths, env: Mapping[str, str]) -> KeeperProcess:
        """Start the process and send it its directories."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = start_child("keyhole.app.daemon.keeper", (theirs,), env)
        names = ("home", "config", "state", "runtime")
        ours.send(json.dumps({name: str(getattr(places, name)) for name in names}).encode())
        return cls(ours, pid)

    def greet(self, ask: PassphrasePrompt | None) -> None:
        """Wait until it is ready; `ask` asks the person for the passphrase. Raises SetupFailed."""
        while True:
            match self._hear():
                case {"ready": True}:
                    return
                case {"ask": bool(again)}:
                    given = ask(again) if ask is not None else None
                    word = {"passphrase": given.reveal() if given is not None else None}
                    with contextlib.suppress(OSError):  # its end shows when reading
                        self._control.send(json.dumps(word).encode())
                case {"failed": str(why)}:
                    raise SetupFailed(why)
                case _:
                    raise SetupFailed(ENDED)

    def _hear(self) -> Any:  # noqa: ANN401 - as JSON has it
        try:
            return json.loads(self._control.recv(MAX_WORD))
        except (OSError, ValueError):
            return None

    def open_link(self) -> tuple[socket.socket, socket.socket]:
        """Two sockets for a data plane; the keeper has the other ends. Raises OSError."""
        link, theirs = socket.socketpair()
        judges, their_judges = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, their_judges:
                socket.send_fds(self._control, [SERVE], [theirs.fileno(), their_judges.fileno()])
        except OSError:
            link.close()
            judges.close()
            raise
        return link, judges

    def attach(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """`ended` is called when the process has ended."""

        def died() -> None:
            self._reap()
            ended()

        self._loop = loop
        loop.add_reader(self._pidfd, died)

    def _reap(self) -> None:
        """Reap the process, so that no zombie stays while the gateway lives."""
        if self._pidfd < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._pidfd = -1
        self.alive = False

    def close(self) -> None:
        """Close the connection, which ends it once it has no data plane, and wait within a
        bound."""
        self._control.close()
        if self._pidfd < 0:
            return
        if not has_ended(self._pidfd, END_SECONDS):
            kill_process(self._pidfd)
        self._reap()
