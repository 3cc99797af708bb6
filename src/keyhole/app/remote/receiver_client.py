"""The remote receiver, as seen by the gateway's control process.

Made by `daemon.py` with `keyhole up --listen`. When the receiver dies, the remote sandboxes lose
their network; the gateway continues, and refuses new invitations.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from keyhole.app.processes.child import start_child
from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.remote.invitation import LIFETIME_SECONDS
from keyhole.app.run.port_claims import PortClaim
from keyhole.app.session.session_events import refused_event
from keyhole.model.errors import Refused, SetupFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import SessionRequest
    from keyhole.model.event import Event

BACKLOG = 128
ANSWER_SECONDS = 10.0
ENDED = "the remote receiver has ended: remote sandboxes are closed; start the gateway again"


class ListenAddress(Struct, frozen=True):
    """The address on which a gateway listens for remote doors."""

    host: str
    port: int
    lifetime: int | None = None
    """Seconds for which a remote door's certificate is valid; None: an hour."""


class RemoteReceiverClient:
    """The remote receiver, and the invitations that were requested."""

    def __init__(self, sock: socket.socket, address: str, claim: PortClaim) -> None:
        self._sock = sock
        self._claim = claim
        """Held until this process ends: no sandbox of this host reaches the port (host_ports)."""
        self.address = address
        """The address on which it listens, as `HOST:PORT`."""
        self._line: SandboxChannel | None = None
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._number = 0
        self._lost = False

    @classmethod
    def start(
        cls, listen: ListenAddress, places: HostPaths, env: Mapping[str, str]
    ) -> RemoteReceiverClient:
        """Open the port, and start the process. Raises SetupFailed."""
        try:
            (family, *_, where), *_ = socket.getaddrinfo(
                listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            port, claim = _listen(family, where, places.ports)
        except OSError as error:
            why = error.strerror or str(error)
            raise SetupFailed(f"--listen {listen.host}:{listen.port}: {why}") from None
        host, number = port.getsockname()[:2]
        address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start_child("keyhole.app.remote.receiver", (theirs, port), env)
        told = {"runtime": str(places.runtime), "lifetime": listen.lifetime}
        ours.send(json.dumps(told).encode())
        return cls(ours, address, claim)

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str], None],
        record: Callable[[Event], None],
    ) -> None:
        """Begin to read its messages. `record` writes an event of no session into the log."""

        def heard(message: dict[str, Any]) -> None:
            match message:
                case {"invited": int(number), "code": str(code)}:
                    answer = self._asked.pop(number, None)
                    if answer is None or answer.done():
                        return
                    if "why" in message:
                        answer.set_exception(Refused(str(message["why"])))
                    else:
                        answer.set_result(code)
                case {"turned_away": str(why), "address": str(address), "of": str(of)}:
                    told = {"why": why, "address": address} | ({"of": of} if of else {})
                    times = int(message.get("times", 1))
                    record(refused_event("remote-refused", **told, times=times))
                case {"failed": str(why)}:
                    report(f"no remote door can connect: {why}")

        def over() -> None:
            self._lost = True
            report(ENDED)
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result("")

        self._line = SandboxChannel(loop, self._sock, heard, over)

    async def invite(self, opening: SessionRequest) -> str:
        """The code of a new invitation. Raises Refused."""
        if self._line is None or self._lost:
            raise Refused(ENDED)
        self._number += 1
        number = self._number
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        asked = {"invite": to_builtins(opening), "seconds": LIFETIME_SECONDS}
        self._line.say(**asked, number=number)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                code = await answer
        except TimeoutError:
            code = ""
        finally:
            self._asked.pop(number, None)
        if not code:
            raise Refused("the remote receiver does not respond; try again")
        return code


def _listen(family: int, where: Any, register: Path) -> tuple[socket.socket, PortClaim]:  # noqa: ANN401 - an address of its family
    """Listen on an address, whose port is then one of Keyhole's own. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        return sock, PortClaim.listen(register, sock, BACKLOG)
    except BaseException:
        sock.close()
        raise
