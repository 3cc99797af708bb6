"""The door from inside: what is allowed is reached, and everything else does not exist (I3, I4).

One run makes all attempts; each test looks at some of them, and the log tells the same story.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.sandbox.attempts import AT_THE_DOOR
from tests.rigs.sandbox.projects import Project, Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.origin import GitAndWeb

pytestmark = pytest.mark.outside

CUT = ("ConnectionResetError", "ConnectionRefusedError")
NAMELESS = "gaierror Name or service not known"
NXDOMAIN = "code 3"


@dataclass(frozen=True)
class Visit:
    """What one run met at the door, said and wrote down."""

    project: Project
    ran: Ran
    met: dict[str, str]
    events: list[dict[str, Any]]
    reached: int
    """Connections that came to the origin."""

    def denied(self, host: str) -> set[str]:
        """The reasons for which a host was refused."""
        return {e["reason"] for e in self.events if e["host"] == host and e["verdict"] == "deny"}


@pytest.fixture(scope="module")
def visit(open_project: Callable[..., Project], origin: GitAndWeb) -> Visit:
    """Every attempt, with a service of the host's on loopback that the host itself reaches."""
    project = open_project()
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()
        before = origin.connections
        ran = project.run("python3", "-I", "-S", "-c", AT_THE_DOOR, str(port), "ca.pem")
        assert ran.code == 0, ran
        service.setblocking(False)
        service.accept()[0].close()  # the control's; nobody else came
        with pytest.raises(BlockingIOError):
            service.accept()
    return Visit(project, ran, json.loads(ran.out), project.events(), origin.connections - before)


def test_an_allowed_name_is_reached_by_a_synthetic_address(visit: Visit) -> None:
    assert visit.met["allowed"] == "hello /here"
    assert visit.met["second"] == "hello /here"
    assert visit.met["allowed address"].startswith("198.1")
    assert visit.reached == 2


def test_a_name_that_no_rule_names_does_not_exist(visit: Visit) -> None:
    """I3."""
    assert visit.met["evil name"] == NAMELESS
    assert visit.met["subdomain"] == NAMELESS
    assert visit.denied("evil.example") == {"no-rule"}


def test_an_address_that_stands_for_no_name_is_refused(visit: Visit) -> None:
    """I4: literal addresses, IPv4 and IPv6, on any port, and synthetic ones never handed out."""
    for what in ("literal", "literal other port", "literal 6", "mapped 6", "not handed out"):
        assert visit.met[what].startswith(CUT), what
    for host in ("192.0.2.1", "198.51.100.7", "2001:db8::1", "198.18.200.200"):
        assert visit.denied(host) == {"literal-address"}, host


def test_tls_must_ask_for_the_name_that_dns_did(visit: Visit) -> None:
    """I4: domain fronting, also towards a name that is itself allowed; and no name is no way."""
    for what in ("other sni", "evil sni", "no sni"):
        assert visit.met[what] == "SSLError TLSV1_UNRECOGNIZED_NAME", what
    assert {"sni-mismatch", "sni-missing"} <= visit.denied("origin.example")


def test_only_the_granted_port_and_protocol_pass(visit: Visit) -> None:
    """I3: the rule is for 443, where TLS is spoken."""
    assert visit.met["other port"].startswith(CUT)
    assert visit.met["plain http"].startswith(CUT)
    assert visit.met["not tls"].startswith(CUT)
    assert {"port-not-granted", "not-tls"} <= visit.denied("origin.example")


def test_the_hosts_loopback_is_not_the_sandboxes(visit: Visit) -> None:
    """I2. Control: a server of its own on 127.0.0.1 works."""
    assert visit.met["host loopback"].startswith("ConnectionRefusedError")
    assert visit.met["host loopback 6"].startswith("ConnectionRefusedError")
    assert visit.met["own loopback"] == "own"


def test_udp_is_refused_at_once(visit: Visit) -> None:
    """I2: so that QUIC clients fall back to TCP."""
    assert visit.met["udp"].startswith("ConnectionRefusedError")
    assert visit.met["udp to allowed"].startswith("ConnectionRefusedError")


def test_any_resolver_and_any_transport_answers_for_allowed_names_alone(visit: Visit) -> None:
    """I3: foreign resolvers, DNS over TCP; and the same name has the same address everywhere."""
    address = visit.met["allowed address"]
    for server in ("192.0.2.53", "203.0.113.53", "127.0.0.1"):
        assert visit.met[f"allowed by {server}"] == address
        assert visit.met[f"evil by {server}"] == NXDOMAIN
    assert visit.met["allowed by tcp"] == address
    assert visit.met["evil by tcp"] == NXDOMAIN


def test_names_that_a_parser_could_mistake_do_not_exist(visit: Visit) -> None:
    """I4: `evil\\0.allowed`, which passes a suffix check and is cut by a C resolver."""
    assert visit.met["wild"].startswith("198.1")
    for what in ("wild itself", "wild with nul", "wild with newline", "suffix"):
        assert visit.met[what] == NXDOMAIN, what


def test_record_types_that_lead_around_the_door_are_empty(visit: Visit) -> None:
    """I4: AAAA would be another address, HTTPS records carry ECH keys, TXT carries messages."""
    for what in ("aaaa", "https record", "txt"):
        assert visit.met[what] == "no data", what


def test_a_denied_host_is_told_once_with_what_to_type(visit: Visit) -> None:
    told = [line for line in visit.ran.err.splitlines() if "evil.example" in line]
    assert told == [
        "keyhole: denied evil.example:443 (no rule names it); "
        "`keyhole why evil.example` says what allows it"
    ]
    *lines, _ = visit.ran.err.splitlines()
    assert len(lines) == len(set(lines))
    assert all(line.startswith("keyhole: denied ") for line in lines)


def test_the_log_tells_the_session_from_its_start_to_its_end(visit: Visit) -> None:
    """I8: every decision with its reason and rule, allowed or not."""
    events = [event for event in visit.events if event["session"]]  # the log's own have none
    assert len({event["session"] for event in events}) == 1
    assert [e["reason"] for e in events if e["kind"] == "session"] == ["started", "ended"]
    assert events[-1]["details"]["code"] == 0
    passed = [e for e in events if e["kind"] == "connect" and e["verdict"] == "allow"]
    assert {e["host"] for e in passed} == {"origin.example", "second.example"}
    assert all(e["rule"].startswith("egress.allow") for e in passed)
    for fields in ("ts", "session", "kind", "verdict", "reason", "rule", "host", "prev", "id"):
        assert all(fields in event for event in events)
    # What the run said last is the log's last digest, so that a log that was cut shows.
    head = visit.ran.err.split()[-1]
    assert visit.project("log", "verify", "--head", head).code == 0
    assert visit.project("log", "verify", "--head", "0" * 64).code == 1
    # The newline that the sandbox put into a name has made no line of its own.
    assert not [e for e in events if "\n" in e["host"]]
    denied = json.loads(visit.project("log", "--json", "--denied").out)
    assert denied == [event for event in events if event["verdict"] == "deny"]


def test_quiet_silences_keyhole_and_not_the_command(visit: Visit) -> None:
    script = "getent hosts evil.example; echo from the command >&2"
    assert visit.project.shell(script, flags=("-q",)).err == "from the command\n"
    assert "denied evil.example" in visit.project.shell(script).err


def test_the_log_is_whole_after_keyhole_was_killed(open_project: Callable[..., Project]) -> None:
    """I8: at most the last batch is lost, and what follows is chained to what is there."""
    project = open_project()
    assert project.run("true").code == 0
    whole = len(project.events())
    script = "getent hosts origin.example; getent hosts evil.example; echo done; exec sleep 1000"
    with project.running("sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"origin.example\n")
        assert process.stdout.readline() == b"done\n"
        process.kill()
        process.wait()
    assert project("log", "verify").code == 0
    assert len(project.events()) >= whole
    assert project.run("true").code == 0
    assert project("log", "verify").code == 0
