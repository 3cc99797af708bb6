"""A run whose door is served by a gateway on another machine.

Used by `keyhole door`. The policy of this machine decides what the sandbox sees of the machine. The
gateway's own policy decides what the sandbox may reach, and with which secret. This process enrols
with the code of an invitation, and hands the session's key to the carrier (`carrier.py`), which
serves the door.
"""

from __future__ import annotations

import hmac
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.processes.child import start_child
from keyhole.app.run.run_gateway import SharedGateway, SharedGatewayRun
from keyhole.app.setup.client_setup import inspects_tls
from keyhole.app.setup.launch_preparation import (
    PreparedLaunch,
    label_of,
    prepare_launch,
    survey_sandbox,
)
from keyhole.app.setup.root_reader import open_roots
from keyhole.app.setup.trusted_roots import SandboxTrust
from keyhole.certs.remote_authority import DoorKey, fingerprint_of
from keyhole.model.errors import Refused, SetupFailed
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.remote.invitation import Invitation
    from keyhole.app.setup.launch_preparation import RunRequest
    from keyhole.audit.log import AuditLog

ENROL_SECONDS = 60.0
"""Seconds for an enrolment, in which the gateway reads the policy and secrets."""

CARRIED_SECONDS = 30.0
"""Seconds in which the carrier must have connected."""

MAX_ENROLLED = 1 << 20
"""Bytes of the gateway's answer."""

CARRIER_ENDED = "the carrier has ended: nothing inside reaches anything any more"
NOT_TAKEN = (
    "the gateway did not take the code: it was used, has ended, or is of another gateway; ask for"
    " another one (`keyhole invite`)"
)
OTHER_SERVER = (
    "another server answers at {host}:{port} than the gateway of this code: nothing was sent to it"
)


class GatewayAddress(Struct, frozen=True):
    """Where a gateway listens for remote doors."""

    host: str
    port: int


class EnrolledSession(Struct, frozen=True):
    """A session of a remote gateway, and the certificate of this door."""

    session: str
    ca: str
    certificate: str
    notes: tuple[str, ...]


class RemoteRun(SharedGatewayRun, frozen=True):
    """A prepared sandbox, and its session at a remote gateway."""

    prepared: PreparedLaunch
    enrolled: EnrolledSession
    address: GatewayAddress
    fingerprint: bytes
    key: DoorKey
    ttl: float
    env: dict[str, str]

    @property
    def session(self) -> str:
        """The session's id."""
        return self.enrolled.session

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about secrets."""
        return tuple(map(visible, self.enrolled.notes))

    def post(
        self,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> CarriedSession:
        """The gateway's session for this run; the gateway has its own log."""
        return CarriedSession(self, report, warn)


def attach_to_remote(
    intent: RunRequest, address: GatewayAddress, invitation: Invitation
) -> RemoteRun:
    """Enrol at a remote gateway, and prepare the sandbox. Raises Refused, ResourceUnusable."""
    policy = intent.joined.policy
    if policy.sandbox.uses_ports:
        raise Refused("ports of a remote sandbox cannot be published, nor the host's used")
    key, site = DoorKey(), survey_sandbox(intent)
    try:
        opening = {"label": label_of(intent), "stand_ins": site.stand_ins.texts()}
        enrolled = enrol(address, invitation, key, opening)
        site = site.begun(enrolled.session)
        trust = None
        if inspects_tls(policy):
            trust = SandboxTrust(enrolled.ca.encode("ascii"), open_roots(policy, intent.examined))
        prepared = prepare_launch(intent, site, trust)
    except BaseException:
        site.close()
        raise
    fingerprint, env = invitation.fingerprint, dict(intent.env)
    return RemoteRun(prepared, enrolled, address, fingerprint, key, policy.limits.ttl, env)


def enrol(
    address: GatewayAddress, invitation: Invitation, key: DoorKey, opening: dict[str, Any]
) -> EnrolledSession:
    """Use an invitation. Raises Refused."""
    asked = {"secret": invitation.secret.hex(), "key": key.public, "opening": opening}
    try:
        with socket.create_connection((address.host, address.port), ENROL_SECONDS) as plain:
            plain.settimeout(ENROL_SECONDS)
            with key.context(None).wrap_socket(plain) as sock:
                # The secret is sent only to the gateway whose fingerprint is in the code.
                shown = sock.getpeercert(binary_form=True) or b""
                if not hmac.compare_digest(fingerprint_of(shown), invitation.fingerprint):
                    raise Refused(OTHER_SERVER.format(host=address.host, port=address.port))
                sock.sendall(json.dumps(asked).encode() + b"\n")
                answer = _read_line(sock)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise Refused(f"{address.host}:{address.port} cannot be reached: {visible(why)}") from None
    if not answer:
        raise Refused(NOT_TAKEN)
    return _read_enrolled(answer)


def _read_line(sock: ssl.SSLSocket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) <= MAX_ENROLLED:
        try:
            more = sock.recv(65536)
        except ssl.SSLError:
            more = b""
        except ConnectionResetError:
            more = b""
        if not more:
            return b""
        data += more
    return data


def _read_enrolled(answer: bytes) -> EnrolledSession:
    try:
        match json.loads(answer):
            case {"refused": str(why)}:
                raise Refused(f"the gateway refuses this session: {visible(why)}")
            case {
                "session": str(session),
                "ca": str(ca),
                "certificate": str(certificate),
                "notes": list(notes),
            }:
                return EnrolledSession(session, ca, certificate, tuple(map(str, notes)))
    except ValueError:
        pass
    raise Refused("the gateway's answer is not understood: its version is another one")


class CarriedSession(SharedGateway):
    """A session of a remote gateway, whose door a carrier serves."""

    gone = CARRIER_ENDED

    def __init__(
        self,
        run: RemoteRun,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(run.ttl, report, warn)
        self._run = run

    def admit(self, door: list[socket.socket]) -> None:
        """Hand the door to a carrier, and close it here. Returns when the gateway serves it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        run = self._run
        first = {
            "host": run.address.host,
            "port": run.address.port,
            "fingerprint": run.fingerprint.hex(),
            "key": run.key.private_pem().decode("ascii"),
            "certificate": run.enrolled.certificate,
        }
        try:
            start_child("keyhole.app.remote.carrier", (theirs,), run.env, apart=True)
            sockets = [each.fileno() for each in door]
            socket.send_fds(ours, [json.dumps(first).encode()], sockets)
            ours.settimeout(CARRIED_SECONDS)
            said = json.loads(ours.recv(65536) or b"{}")
            if said.get("carried") is not True:
                why = visible(str(said.get("failed") or said.get("say") or "the carrier ended"))
                raise SetupFailed(f"the gateway did not take the door: {why}")
        except (OSError, ValueError) as error:
            ours.close()
            raise SetupFailed(f"the gateway did not take the door: {error}") from None
        except SetupFailed:
            ours.close()
            raise
        finally:
            for each in door:
                each.close()
        self._sock = ours
