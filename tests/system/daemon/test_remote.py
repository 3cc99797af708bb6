"""A sandbox on another machine: served like any other, and closed to whoever is not it (I2, I5)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from keyhole.app.remote.invitation import Invitation
from keyhole.app.remote.remote_run import GatewayAddress, enrol
from keyhole.certs.remote_authority import DoorKey, RemoteAuthority
from keyhole.model.errors import Refused
from tests.rigs.daemon.estate import SECRET
from tests.rigs.daemon.machines import Machines, RemoteShell
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.app.remote.remote_run import EnrolledSession

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines() as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(machines: Machines) -> Iterator[None]:
    yield
    until(lambda: not machines.sessions())


# ── served ────────────────────────────────────────────────────────────────────────────────────────


def test_a_remote_sandbox_gets_the_answer_with_a_credential_that_it_never_has(
    machines: Machines,
) -> None:
    """I1, I2, I3: what is named arrives; a name that is not, and any address, does not."""
    inside = RemoteShell(machines)
    assert inside.get() == "200"
    assert machines.service.seen[-1] == f"Bearer {SECRET}"
    (session,) = machines.sessions()
    assert (session["state"], session["label"], session["requests"]) == ("open", "sh", 1)
    assert inside.ask("getent hosts nope.example || echo none") == ["none"]
    reach = "curl -sS -m 5 -o /dev/null https://{}/ 2>/dev/null && echo out || echo closed"
    for address in (machines.host.address, "192.0.2.2", "203.0.113.5"):
        assert inside.ask(reach.format(address)) == ["closed"]
    assert inside.ask("tail -n +3 /proc/net/dev | wc -l") == ["1"]  # lo
    # Neither the secret nor a key is in a file of that machine.
    files = [each for each in machines.remote.home.rglob("*") if each.is_file()]
    data = b"".join(each.read_bytes() for each in files)
    assert SECRET.encode() not in data
    assert b"PRIVATE KEY" not in data
    assert inside.end() == 0
    events = machines.host.events()
    own = [e["reason"] for e in events if e["session"] == session["id"] and e["kind"] == "session"]
    assert own[:2] == ["started", "remote-connected"]
    assert own[-1] == "ended"


def test_the_processes_that_read_what_comes_from_outside_are_locked_down(
    machines: Machines,
) -> None:
    """I1: listener and relay at the gateway, carrier at the sandbox; its key is in no other's
    reach."""
    inside = RemoteShell(machines)
    found: dict[str, list[dict[str, str]]] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            env = (path.parent / "environ").read_bytes() if os.geteuid() == 0 else b""
            if os.geteuid() == 0 and str(machines.host.home.parent).encode() not in env:
                continue
            for name in ("listener", "relay", "carrier"):
                if f"keyhole.app.remote.{name}".encode() in words:
                    found.setdefault(name, []).append(_facts(path.parent))
    assert {name: len(each) for name, each in found.items()} == {
        "listener": 1, "relay": 2, "carrier": 1,
    }  # fmt: skip
    pids = {each["Pid"] for each in found["relay"]}
    # The relay is two processes: one owns the session and reads nothing that comes from outside;
    # its child carries.
    (owner,) = [each for each in found["relay"] if each["PPid"] not in pids]
    (carrying,) = [each for each in found["relay"] if each["PPid"] in pids]
    assert owner["Seccomp"] == "0", "the control: a process that is not locked down shows"
    for facts in (*found["listener"], carrying, *found["carrier"]):
        assert (facts["NoNewPrivs"], facts["Seccomp"], int(facts["CapEff"], 16)) == ("1", "2", 0)
        assert facts["owner"] == "0", "nobody of its account can trace it"
    assert inside.ask("ls -d /proc/[0-9]* | wc -l")[0] < "9"
    assert inside.end() == 0


def _facts(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return facts | {"owner": str(os.stat(process / "environ").st_uid)}


def test_a_revoked_remote_sandbox_is_cut_off_at_once(machines: Machines) -> None:
    inside = RemoteShell(machines)
    assert inside.get() == "200"
    (session,) = machines.sessions()
    assert machines.host("revoke", session["id"]).code == 0
    assert inside.get() == "000"
    inside.end()


# ── who it is ─────────────────────────────────────────────────────────────────────────────────────


def test_a_code_works_once_and_at_its_own_gateway(machines: Machines) -> None:
    """I5: a code that was used, a made-up one and another server's are all worth nothing."""
    code = machines.invite()
    known = Invitation.parse(code)
    enrolled, _ = enrol_here(machines, known)
    assert enrolled.session in {each["id"] for each in machines.sessions()}
    with pytest.raises(Refused, match="did not take the code"):
        enrol_here(machines, known)
    made_up = Invitation(known.fingerprint, bytes(16))
    with pytest.raises(Refused, match="did not take the code"):
        enrol_here(machines, made_up)
    path = machines.remote.home / "code"
    path.write_text("keyhole-nonsense")
    said = machines.remote(
        "door", "--gateway", machines.listening, "--code-file", str(path), "--", "true"
    )
    assert (said.code, "that is no code" in said.err) == (125, True), said
    until(lambda: {"why": "no-such-code"}.items() <= refusals(machines)[-1].items())
    assert machines.host("revoke", enrolled.session).code == 0
    assert machines.host("stop", enrolled.session).code == 0


def refusals(machines: Machines) -> list[dict[str, Any]]:
    """The details of the events about visitors who were turned away."""
    denied = [e for e in machines.host.events() if e["reason"] == "remote-refused"]
    return [e["details"] for e in denied if e["verdict"] == "deny" and not e["session"]] or [{}]


def test_a_server_in_between_gets_nothing(machines: Machines) -> None:
    """I4: whoever answers in the gateway's place is known by its certificate before a byte of the
    code is sent."""
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("gateway").configure_cert(context)
    with machines.remote.inside():
        listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
            heard.append(tls.recv(65536))

    thread = threading.Thread(target=serve)
    thread.start()
    invitation = Invitation.parse(machines.invite())
    address = GatewayAddress("127.0.0.1", listener.getsockname()[1])
    with machines.remote.inside(), pytest.raises(Refused, match="another server answers"):
        enrol(address, invitation, DoorKey(), {"label": "x", "stand_ins": {}})
    thread.join(PATIENCE)
    listener.close()
    assert heard in ([], [b""])
    # Control: the code was not spent by it.
    enrolled, _ = enrol_here(machines, invitation)
    assert machines.host("stop", enrolled.session).code == 0


def enrol_here(machines: Machines, invitation: Invitation) -> tuple[EnrolledSession, DoorKey]:
    host, _, port = machines.listening.rpartition(":")
    key = DoorKey()
    with machines.remote.inside():
        opening: dict[str, Any] = {"label": "tested", "stand_ins": {}}
        return enrol(GatewayAddress(host, int(port)), invitation, key, opening), key


def connect(machines: Machines, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = machines.listening.rpartition(":")
    with machines.remote.inside():
        plain = socket.create_connection((host, int(port)), PATIENCE)
    return context.wrap_socket(plain)


def is_served(sock: ssl.SSLSocket) -> bool:
    """Whether a relay speaks: it says at once that it carries."""
    sock.settimeout(PATIENCE)
    try:
        return b"carried" in sock.recv(4096) + sock.recv(4096)
    except OSError:
        return False


def test_a_certificate_has_one_use_at_a_time_and_none_after_its_session(
    machines: Machines,
) -> None:
    """I5: a stolen one is refused while it is in use, and that is written down."""
    enrolled, key = enrol_here(machines, Invitation.parse(machines.invite()))
    context = key.context(enrolled.certificate)
    with connect(machines, context) as first:
        assert is_served(first)
        with connect(machines, key.context(enrolled.certificate)) as second:
            assert not is_served(second)
        until(
            lambda: (
                (enrolled.session, "remote-refused")
                in [(e["session"], e["reason"]) for e in machines.host.events()]
            )
        )
        refused = [e for e in machines.host.events() if e["session"] == enrolled.session][-1]
        assert (refused["reason"], refused["verdict"]) == ("remote-refused", "deny")
        assert "certificate-in-use" in json.dumps(refused)
    # Control: when the first is gone, it is of use again.
    until(lambda: _serves_again(machines, key, enrolled))
    assert machines.host("revoke", enrolled.session).code == 0
    until(lambda: not _serves_again(machines, key, enrolled))
    assert machines.host("stop", enrolled.session).code == 0
    assert not _serves_again(machines, key, enrolled)
    # Uses after the end are written down as well, with the session whose certificate it was.
    until(lambda: enrolled.session in [each.get("of") for each in refusals(machines)])


def _serves_again(machines: Machines, key: DoorKey, enrolled: EnrolledSession) -> bool:
    with connect(machines, key.context(enrolled.certificate)) as sock:
        return is_served(sock)


def test_older_versions_of_tls_and_foreign_certificates_are_refused(machines: Machines) -> None:
    """I5: also a certificate of another gateway's authority for a session that lives here."""
    enrolled, key = enrol_here(machines, Invitation.parse(machines.invite()))
    old = key.context(enrolled.certificate)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(machines, old)
    foreign = RemoteAuthority().issue(enrolled.session, key.public, datetime.now(UTC))
    with connect(machines, key.context(foreign.pem)) as sock:
        assert not is_served(sock)
    with connect(machines, DoorKey().context(None)) as sock:
        sock.sendall(b'{"secret": "", "key": "", "opening": {}}\n')
        assert not is_served(sock)
    with connect(machines, key.context(enrolled.certificate)) as sock:
        assert is_served(sock)  # the control
    assert machines.host("stop", enrolled.session).code == 0


# ── renewed, ended ────────────────────────────────────────────────────────────────────────────────

LIFETIME = 4


@pytest.fixture(scope="module")
def brief() -> Iterator[Machines]:
    """Machines whose gateway signs certificates for a few seconds."""
    with Machines(f"{LIFETIME}s") as made:
        yield made


def test_a_door_renews_its_certificate_before_it_ends_and_one_that_does_not_is_cut_i5(
    brief: Machines,
) -> None:
    """The same gateway serves both: a real door goes on for three lifetimes without a break, and a
    client with a certificate that nobody renews is cut when it ends, and refused afterwards."""
    inside = RemoteShell(brief)
    enrolled, key = enrol_here(brief, Invitation.parse(brief.invite()))
    with connect(brief, key.context(enrolled.certificate)) as idle:
        begun = time.monotonic()
        assert is_served(idle)
        with contextlib.suppress(OSError):
            while idle.recv(4096):
                """Beats, until it is cut."""
    lasted = time.monotonic() - begun
    assert lasted < LIFETIME + 2, lasted
    assert not _serves_again(brief, key, enrolled)
    while time.monotonic() < begun + 3 * LIFETIME:
        assert inside.get() == "200"
        time.sleep(0.2)
    own = inside_session(brief, enrolled.session)
    assert [e["reason"] for e in brief.host.events() if e["session"] == own].count(
        "remote-lost"
    ) == 0
    assert brief.host("stop", enrolled.session).code == 0
    assert inside.end() == 0


def inside_session(machines: Machines, other: str) -> str:
    (own,) = {str(each["id"]) for each in machines.sessions()} - {other}
    return own


LONGER = 15
"""Seconds of a certificate in which a door reconnects on a busy machine, too."""


@pytest.mark.attack
def test_a_certificate_that_ended_while_the_cable_was_cut_lets_nobody_back_in_i5() -> None:
    with Machines(f"{LONGER}s") as machines:
        cable = machines.cable()
        inside = RemoteShell(machines, cable.address)
        assert inside.get() == "200"
        cable.cut()
        cable.refusing = False
        until(lambda: inside.get() == "200", pause=0.2)  # the control: in time it comes back
        cable.cut()
        time.sleep(LONGER + 1)
        cable.refusing = False
        assert inside.get() == "000"
        # Its door tries again, and is turned away: that is written down.
        until(lambda: refusals(machines)[-1].get("why") == "certificate-not-valid")
        assert inside.get() == "000"
        (session,) = machines.sessions()
        assert machines.host("stop", session["id"]).code == 0
        inside.process.kill()
        inside.process.communicate()
        cable.close()


# ── lost, stalled ─────────────────────────────────────────────────────────────────────────────────


def test_a_lost_connection_closes_the_sandbox_and_it_comes_back_without_a_restart(
    machines: Machines,
) -> None:
    """I2."""
    cable = machines.cable()
    inside = RemoteShell(machines, cable.address)
    assert inside.get() == "200"
    inside.say("curl -sSN https://api.example/v1/ticks 2>/dev/null | head -c 99999999 >/dev/null &")
    cable.cut()
    assert inside.get() == "000"
    cable.refusing = False
    until(lambda: inside.get() == "200", pause=0.2)
    reasons = [e["reason"] for e in machines.host.events()]
    assert "remote-lost" in reasons
    assert inside.end() == 0
    cable.close()


def test_whoever_holds_the_port_open_keeps_no_door_out(machines: Machines) -> None:
    """I9, I12: connections that say nothing, and such that send a byte now and then."""
    host, _, port = machines.listening.rpartition(":")
    held = []
    for number in range(40):
        with machines.host.inside():
            sock = socket.create_connection((host, int(port)), PATIENCE)
        held.append(sock)
        if number % 2:
            with contextlib.suppress(OSError):
                sock.sendall(b"\x16\x03\x01")
    inside = RemoteShell(machines, machines.cable().address if os.geteuid() else None)
    assert inside.get() == "200"
    assert inside.end() == 0
    # Those beyond an address's share were closed at once; all of them are, soon.
    for sock in held:
        sock.settimeout(PATIENCE)
        with contextlib.suppress(OSError):
            while sock.recv(100):
                """An alert, perhaps."""
        sock.close()


def test_a_remote_sandbox_that_reads_nothing_stalls_neither_itself_nor_another(
    machines: Machines,
) -> None:
    """I12: one answer flows and is not read; others pass it."""
    stalled, other = RemoteShell(machines), RemoteShell(machines)
    script = "curl -sSN https://api.example/v1/ticks 2>/dev/null | sleep 60 &"
    stalled.say(script)
    for _ in range(3):
        assert (stalled.get(), other.get()) == ("200", "200")
    assert len({each["worker"] for each in machines.sessions()}) == 2
    assert other.end() == 0
    stalled.process.send_signal(signal.SIGTERM)
    stalled.end()


def test_a_killed_gateway_closes_its_remote_sandboxes(machines: Machines) -> None:
    """I2: last in this file, since the gateway is another one afterwards."""
    inside = RemoteShell(machines)
    assert inside.get() == "200"
    machines.kill_gateway()
    assert inside.get() == "000"
    inside.process.kill()
    inside.process.communicate()
    machines.up()
    assert json.loads(machines.host("ps", "--json").out) == []
