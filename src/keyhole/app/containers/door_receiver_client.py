"""The door receiver, as seen by the gateway.

Made by `daemon.py`. The receiver reports what is missing until a door is registered and served and
its files are written; `keyhole health` shows that. When it dies, so does the gateway, and the
service manager restarts both.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct

from keyhole.app.processes.child import start_child
from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.setup.host_paths import HostPaths

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

STARTING = "the gateway starts"
ENDED = "the door receiver has ended, and with it the gateway"


class Expected(Protocol):
    """Sandboxes that others make, with the program that receives their doors."""

    module: ClassVar[str]

    def written(self, places: HostPaths) -> bytes:
        """The first message to that program."""


class ExpectedSandbox(Struct, frozen=True):
    """A sandbox that another tool makes: the directories for its door and for its files."""

    door: Path
    """The directory with the registration socket, which is mounted in the holder alone."""
    directory: Path
    """The directory in which `etc` and `kit` are written, which the sandbox mounts read-only."""
    policy: Path
    """The policy that was accepted when the gateway was started."""

    module: ClassVar[str] = "keyhole.app.containers.door_receiver"
    """The program that receives its door."""

    def written(self, places: HostPaths) -> bytes:
        """The message to the door receiver, which is sent first and once."""
        own = {"door": self.door, "directory": self.directory, "policy": self.policy}
        return json.dumps({name: str(path) for name, path in own.items()} | places.told()).encode()

    @classmethod
    def read(cls, data: bytes) -> tuple[ExpectedSandbox, HostPaths]:
        """The inverse of `written`."""
        told = json.loads(data)
        own = cls(*(Path(told[name]) for name in ("door", "directory", "policy")))
        return own, HostPaths.read(told)


class DoorReceiverClient:
    """The door receiver, and the reason why no sandbox can be started yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._line: SandboxChannel | None = None
        self.lacks = STARTING
        """Why no sandbox can be started now; empty when one can."""
        self.lost = False
        """Whether the door receiver has ended."""

    @classmethod
    def start(
        cls, expected: Expected, places: HostPaths, env: Mapping[str, str]
    ) -> DoorReceiverClient:
        """Start the process and send it its directories; it then waits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start_child(expected.module, (theirs,), env)
        ours.send(expected.written(places))
        return cls(ours)

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        """The control socket listens: have a door registered. `ended` is called when the receiver
        ends."""

        def heard(message: dict[str, Any]) -> None:
            match message:
                case {"lacks": str(why)}:
                    self.lacks = why
                case {"say": str(line)}:
                    report(line)

        def over() -> None:
            self.lost, self.lacks = True, ENDED
            report(ENDED)
            ended()

        self._line = SandboxChannel(loop, self._sock, heard, over)
        self._line.say(open=1)
