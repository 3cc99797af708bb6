"""Where a door is expected that others make, as the gateway sees it: the doorkeeper's other end.

Made by `daemon.py`. The doorkeeper says what is lacking until a door is
registered, served and furnished, which is what `keyhole health` tells. When it dies, so does the
gateway: whoever started that starts both anew.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.companion import start
from keyhole.app.line import Line
from keyhole.app.places import Places
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

STARTING = "the gateway starts"
ENDED = "the doorkeeper has ended, and with it the gateway"


@dataclass(frozen=True, slots=True)
class Expected:
    """A sandbox that others make: where its door registers, and what it is given."""

    door: Path
    """The directory with the registration socket, which the holder mounts too, and nobody else."""
    furnish: Path
    """Where `etc` and `kit` are written, which the sandbox mounts read-only."""
    policy: Path
    """Accepted by whoever started the gateway."""

    def written(self, places: Places) -> bytes:
        """As the doorkeeper is told, once, before anything else."""
        own = {"door": self.door, "furnish": self.furnish, "policy": self.policy}
        where = {name: getattr(places, name) for name in ("home", "config", "state", "runtime")}
        return json.dumps({name: str(path) for name, path in (own | where).items()}).encode()

    @classmethod
    def read(cls, data: bytes) -> tuple[Expected, Places]:
        """The inverse of `written`."""
        told = {name: Path(text) for name, text in json.loads(data).items()}
        places = Places(told["home"], told["config"], told["state"], told["runtime"])
        return cls(told["door"], told["furnish"], told["policy"]), places


class Doorway:
    """The doorkeeper, and how far it is."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._line: Line | None = None
        self.lacks = STARTING
        """Why no sandbox can be started now; empty when one can."""
        self.lost = False
        """Whether the doorkeeper has ended."""

    @classmethod
    def start(cls, expected: Expected, places: Places, env: Mapping[str, str]) -> Doorway:
        """Start the process; it is told where things are, and waits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start("keyhole.app.doorkeeper", (theirs,), env)
        ours.send(expected.written(places))
        return cls(ours)

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        """The control socket listens: have a door registered. `ended` hears when nobody would."""

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

        self._line = Line(loop, self._sock, heard, over)
        self._line.say(open=1)
