"""A run whose door is served by the gateway that `keyhole up` started.

The policy was accepted and the sandbox surveyed here; the gateway reads the policy and the secrets
itself, so none of them is in this process. The gateway returns the certificate of a CA whose key
never leaves it. When it dies, the sandbox stays, with its door closed (I2).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from keyhole.app.run.run_gateway import SharedGateway, SharedGatewayRun
from keyhole.app.session.session_register import SUPERVISOR
from keyhole.app.setup.client_setup import inspects_tls
from keyhole.app.setup.launch_preparation import (
    PreparedLaunch,
    RunRequest,
    label_of,
    prepare_launch,
    survey_sandbox,
)
from keyhole.app.setup.provision import grants_digest
from keyhole.app.setup.root_reader import open_roots
from keyhole.app.setup.trusted_roots import SandboxTrust
from keyhole.control.client import ControlClient, ControlFailed, NoGateway, RequestDeclined
from keyhole.control.values import ServicePlaceholder, SessionRequest
from keyhole.model.errors import Refused, SetupFailed
from keyhole.system.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.setup.client_setup import SessionPlaceholders
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import OpenedSession

GATEWAY_ENDED = "the gateway has ended: nothing inside reaches anything any more"

_DOOR = ("tcp", "udp", "tcp6")


class DaemonRun(SharedGatewayRun, frozen=True):
    """A prepared sandbox, and its session at the gateway of `keyhole up`."""

    prepared: PreparedLaunch
    opened: OpenedSession
    client: ControlClient
    ttl: float

    @property
    def session(self) -> str:
        """The session's id."""
        return self.opened.id

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about secrets."""
        return self.opened.notes

    def post(
        self,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> AttachedSession:
        """The gateway's session for this run; the gateway has its own log."""
        return AttachedSession(self.client, self.opened, self.ttl, report, warn)


def attach_to_daemon(intent: RunRequest) -> DaemonRun | None:
    """Ask the gateway of `keyhole up` to take a sandbox; None if none is up.

    Raises Refused, ResourceUnusable.
    """
    # If this gateway dies, the next one ends only processes of this name.
    name_process(SUPERVISOR)
    client = ControlClient(intent.places.runtime)
    policy = intent.joined.policy
    site = survey_sandbox(intent)
    try:
        opened = open_session(client, intent, site.stand_ins, site.plan.writable)
    except NoGateway:
        site.close()
        return None
    except BaseException:
        site.close()
        raise
    site = site.begun(opened.id)
    try:
        sandbox_trust = None
        if inspects_tls(policy):
            sandbox_trust = SandboxTrust(
                opened.ca.encode("ascii"), open_roots(policy, intent.examined)
            )
        return DaemonRun(
            prepare_launch(intent, site, sandbox_trust), opened, client, policy.limits.ttl
        )
    except BaseException:
        site.close()
        raise


def open_session(
    client: ControlClient,
    intent: RunRequest,
    stand_ins: SessionPlaceholders,
    writable: tuple[str, ...],
    *,
    all_secrets: bool = False,
    authority: str = "",
) -> OpenedSession:
    """Ask the gateway to prepare a session for this process, which is refused when `all_secrets`
    are wanted and one cannot be read. `authority` is a CA that was kept for its sandbox. Raises
    NoGateway or Refused."""
    opening = SessionRequest(
        policy=str(intent.examined.file.path),
        trusted=intent.examined.digest,
        label=label_of(intent),
        granted=grants_digest(intent.joined.policy),
        stand_ins=tuple(
            ServicePlaceholder(name, texts) for name, texts in stand_ins.texts().items()
        ),
        search_path=intent.env.get("PATH", ""),
        writable=writable,
        quiet=intent.agent.quiet if intent.agent else (),
        all_secrets=all_secrets,
        authority=authority,
    )
    try:
        return client.open_session(opening)
    except RequestDeclined as declined:
        raise Refused(f"the gateway refuses this session: {declined}") from None
    except NoGateway:
        raise
    except ControlFailed as failed:
        raise Refused(str(failed)) from None


class AttachedSession(SharedGateway):
    """A session of a gateway in another process."""

    gone = GATEWAY_ENDED

    def __init__(
        self,
        client: ControlClient,
        opened: OpenedSession,
        ttl: float,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(ttl, report, warn)
        self._client = client
        self._opened = opened

    def admit(self, door: list[socket.socket]) -> None:
        """Hand the door over and keep nothing of it."""
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
