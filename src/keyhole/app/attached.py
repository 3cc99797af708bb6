"""A run whose door is served by the gateway that `keyhole up` started.

The policy was accepted and the sandbox surveyed here; the gateway reads the policy and the secrets
itself, so that none of them is in this process. It gives the certificate of a CA whose key never
leaves it. When it dies, the sandbox stays as it is, closed (I2).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from keyhole.app.kit import inspects
from keyhole.app.leftovers import SUPERVISOR
from keyhole.app.line import Line
from keyhole.app.post import Served
from keyhole.app.prepare import Intent, Prepared, label_of, prepare, survey
from keyhole.app.provision import granted
from keyhole.control.client import Client, ControlFailed, Declined, NoGateway
from keyhole.control.values import Opening, StandIn
from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.ending import Ending
    from keyhole.app.kit import StandIns
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import Opened
    from keyhole.sandbox.launch import Launch

GATEWAY_ENDED = "the gateway has ended: nothing inside reaches anything any more"

_DOOR = ("tcp", "udp", "tcp6")


@dataclass(frozen=True, slots=True)
class Lodged:
    """A sandbox that only needs to be started, and its session at a gateway that lives on."""

    prepared: Prepared
    opened: Opened
    client: Client
    ttl: float
    simple: bool = False
    """Its door is the gateway's before its helper may go on."""

    @property
    def session(self) -> str:
        """Its id."""
        return self.opened.id

    @property
    def shared(self) -> bool:
        """Whether a gateway that serves others has it."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person should know, once."""
        return (*self.prepared.notices, *self.opened.notes)

    def post(
        self,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Attached:
        """The gateway for it; the log is its own."""
        return Attached(self.client, self.opened, self.ttl, report, warn)


def lodge(intent: Intent) -> Lodged | None:
    """Have the gateway that is up take a sandbox; None where none is. Raises Refused, Missing."""
    # A gateway that comes after one that died ends processes of this name alone.
    name_process(SUPERVISOR)
    client = Client(intent.places.runtime)
    policy = intent.joined.policy
    site = survey(intent)
    try:
        opened = open_session(client, intent, site.stand_ins, site.plan.writable)
    except NoGateway:
        return None
    site = site.begun(opened.id)
    try:
        vouched = None
        if inspects(policy):
            from keyhole.app.roots import Vouched, open_roots

            vouched = Vouched(opened.ca.encode("ascii"), open_roots(policy, intent.dossier))
        return Lodged(prepare(intent, site, vouched), opened, client, policy.limits.ttl)
    except BaseException:
        site.close()
        raise


def open_session(
    client: Client, intent: Intent, stand_ins: StandIns, writable: tuple[str, ...]
) -> Opened:
    """Have the gateway prepare a session for this process. Raises NoGateway or Refused."""
    opening = Opening(
        policy=str(intent.dossier.file.path),
        trusted=intent.dossier.digest,
        label=label_of(intent),
        granted=granted(intent.joined.policy),
        stand_ins=tuple(StandIn(name, texts) for name, texts in stand_ins.texts().items()),
        search_path=intent.env.get("PATH", ""),
        writable=writable,
    )
    try:
        return client.open_session(opening)
    except Declined as declined:
        raise Refused(f"the gateway refuses this session: {declined}") from None
    except NoGateway:
        raise
    except ControlFailed as failed:
        raise Refused(str(failed)) from None


class Attached(Served):
    """A session of a gateway elsewhere."""

    def __init__(
        self,
        client: Client,
        opened: Opened,
        ttl: float,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(ttl, report, warn)
        self._client = client
        self._opened = opened
        self._sock: socket.socket | None = None

    def begin(self, launch: Launch) -> None:
        """The gateway has its log open."""

    def admit(self, door: list[socket.socket]) -> None:
        """Hand the door over; nothing of it is kept here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            names = [*_DOOR[: len(door)], "line"]
            sockets = [*(each.fileno() for each in door), theirs.fileno()]
            self._client.open_door(self._opened.id, names, sockets)
        except ControlFailed as failed:
            ours.close()
            raise SetupFailed(f"the gateway did not take the door: {failed}") from None
        finally:
            theirs.close()
            for each in door:
                each.close()
        self._sock = ours

    async def open(self, ended: Callable[[Ending], None]) -> None:
        """It is served already; listen to the line."""
        if self._sock is None:
            raise RuntimeError("the door is handed over first")
        loop = self._attend(ended)
        self._line = Line(loop, self._sock, self._heard, lambda: self._lost(GATEWAY_ENDED))

    def note(self, what: str, **details: str | int) -> None:
        """Have the gateway write it down."""
        if self._line is not None:
            self._line.say(note=what, **details)

    async def close(self, code: int) -> str:
        """Say how it ended, and wait for the last word."""
        if self._line is None and self._sock is not None:
            self._sock.close()
        return await self._farewell(code) or ""
