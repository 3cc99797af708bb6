"""DNS through the door: only allowed names exist, and no question leaves (I3, I9)."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rcode
import pytest

from keyhole.gateway.door import nameserver, synthetic
from keyhole.model.host import Host
from tests.rigs.gateway.clients import ASK_DNS, CONVERSE
from tests.rigs.gateway.rig import Rig, policy

if TYPE_CHECKING:
    from tests.rigs.gateway.namespace import Namespace

POLICY = policy("ok.example", "*.wild.example")
SERVER = "192.0.2.53"


def ask(namespace: Namespace, how: str, *wires: bytes) -> list[dns.message.Message]:
    """Ask from inside, one after the other."""
    said = namespace.python(ASK_DNS, how, SERVER, *(wire.hex() for wire in wires))
    return [dns.message.from_wire(bytes.fromhex(line)) for line in said.split("\n")]


def query(name: str, kind: str = "A", **options: int) -> bytes:
    return dns.message.make_query(name, kind, **options).to_wire()  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["udp", "tcp"])
def test_allowed_names_have_one_address_each_and_others_do_not_exist(
    namespace: Namespace, rig: Rig, how: str
) -> None:
    _, watch = rig.open(namespace.door, POLICY)
    questions = ["ok.example", "a.wild.example", "ok.example", "evil.example", "wild.example"]
    replies = ask(namespace, how, *(query(name) for name in questions))
    found = [str(r.answer[0][0]) if r.answer else dns.rcode.to_text(r.rcode()) for r in replies]
    assert found == ["198.18.0.1", "198.18.0.2", "198.18.0.1", "NXDOMAIN", "NXDOMAIN"]
    assert rig.resolver.asked == []
    assert [(e.reason, e.host) for e in watch.events] == [
        ("rule", "ok.example"),
        ("rule", "a.wild.example"),
        ("rule", "ok.example"),
        ("no-rule", "evil.example"),
        ("no-rule", "wild.example"),
    ]
    assert watch.lines[0] == (
        "denied evil.example:443 (no rule names it); `keyhole why evil.example` says what allows it"
    )
    assert len(watch.lines) == 2


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "NULL"])
def test_other_records_are_empty(namespace: Namespace, rig: Rig, kind: str) -> None:
    _, watch = rig.open(namespace.door, POLICY)
    (reply,) = ask(namespace, "udp", query("ok.example", kind))
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert reply.authority
    watch.until("type-not-answered", type=kind)


def test_any_is_refused_and_odd_messages_are_answered_as_the_rfcs_say(
    namespace: Namespace, rig: Rig
) -> None:
    _, watch = rig.open(namespace.door, POLICY)
    update = bytearray(query("ok.example"))
    update[2] |= 5 << 3
    two = bytearray(query("ok.example"))
    two[5] = 2
    wires = [query("ok.example", "ANY"), bytes(update), bytes(two), query("ok.example")]
    replies = ask(namespace, "udp", *wires)
    codes = [dns.rcode.to_text(reply.rcode()) for reply in replies]
    assert codes == ["REFUSED", "NOTIMP", "FORMERR", "NOERROR"]
    assert watch.reasons("dns") == ["type-not-answered", "dns-malformed", "dns-malformed", "rule"]


def test_an_answer_and_a_stub_are_dropped_and_the_server_goes_on(
    namespace: Namespace, rig: Rig
) -> None:
    _, watch = rig.open(namespace.door, POLICY)
    code = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(20)
    client.connect(("192.0.2.53", 53))
    for message in sys.argv[1:]:
        client.send(bytes.fromhex(message))
    print(client.recv(4096).hex())
"""
    answer = bytearray(query("ok.example"))
    answer[2] |= 0x80
    last = query("ok.example")
    said = namespace.python(code, answer.hex(), "0102", "", last.hex())
    assert dns.message.from_wire(bytes.fromhex(said)).id == int.from_bytes(last[:2], "big")
    assert watch.reasons("dns") == ["dns-malformed"] * 3 + ["rule"]


def test_the_system_resolver_of_the_sandbox_works(namespace: Namespace, rig: Rig) -> None:
    rig.open(namespace.door, POLICY)
    code = "import socket; print(socket.gethostbyname('ok.example'))"
    assert namespace.python(code) == "198.18.0.1"
    code = "import socket\ntry: socket.gethostbyname('evil.example')\nexcept OSError as e: print(e)"
    assert "not known" in namespace.python(code)


def test_a_full_table_fails_and_names_that_were_given_stay(
    namespace: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "MAX_NAMES", 2)
    _, watch = rig.open(namespace.door, POLICY)
    names = ["a.wild.example", "b.wild.example", "c.wild.example", "a.wild.example"]
    replies = ask(namespace, "udp", *(query(name) for name in names))
    codes = [dns.rcode.to_text(reply.rcode()) for reply in replies]
    assert codes == ["NOERROR", "NOERROR", "SERVFAIL", "NOERROR"]
    watch.until("name-table-full", type="A")


@pytest.mark.parametrize("how", ["udp", "tcp"])
def test_questions_over_the_rate_wait_and_are_all_answered(
    namespace: Namespace, rig: Rig, how: str
) -> None:
    _, watch = rig.open(namespace.door, policy("ok.example", more="[limits]\ndns_per_second = 20"))
    replies = ask(namespace, how, *[query("ok.example")] * 30)
    assert len(replies) == 30
    assert watch.until("over-limit").rule == "limits.dns_per_second"


def test_a_tcp_message_that_is_too_long_ends_the_connection(namespace: Namespace, rig: Rig) -> None:
    rig.open(namespace.door, POLICY)
    said = namespace.python(CONVERSE, SERVER, "53", "hex:ffff00,rest")
    assert said in ("", "ConnectionResetError")
    assert ask(namespace, "tcp", query("ok.example"))[0].answer


def test_an_answer_sent_over_tcp_ends_the_connection(namespace: Namespace, rig: Rig) -> None:
    rig.open(namespace.door, POLICY)
    answer = bytearray(query("ok.example"))
    answer[2] |= 0x80
    framed = (len(answer).to_bytes(2, "big") + answer).hex()
    assert namespace.python(CONVERSE, SERVER, "53", f"hex:{framed},rest") == ""


def test_a_silent_dns_connection_is_cut_and_a_closed_door_cuts_it_too(
    namespace: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nameserver, "TCP_SILENCE", 0.2)
    handle, _ = rig.open(namespace.door, POLICY)
    said = namespace.python(CONVERSE, SERVER, "53", "hex:00,rest")
    assert said in ("", "ConnectionResetError")
    monkeypatch.setattr(nameserver, "TCP_SILENCE", 60.0)
    code = CONVERSE.replace("with client:", "print('up', flush=True)\nwith client:", 1)
    client = subprocess.Popen(
        namespace.command(sys.executable, "-I", "-c", code, SERVER, "53", "hex:00,rest"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    rig.call(handle.close)
    assert client.communicate(timeout=20)[0] in ("\n", "ConnectionResetError\n")


def test_addresses_skip_network_edges_and_are_never_reused() -> None:
    table = synthetic.SyntheticNames()
    given = [str(table.address(Host(f"n{i}.example"))) for i in range(600)]
    assert len(set(given)) == 600
    assert not any(address.endswith((".0", ".255")) for address in given)
    assert given[253:256] == ["198.18.0.254", "198.18.1.1", "198.18.1.2"]
    assert table.name("198.18.1.1") == Host("n254.example")
    assert table.name("198.18.0.0") is None


def test_a_learning_run_may_ask_for_so_many_names_beside_the_policys(
    namespace: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: each name carries a message to its name server."""
    monkeypatch.setattr(nameserver, "MAX_LEARNT_NAMES", 2)
    _, watch = rig.open(namespace.door, POLICY, learning=True)
    names = ["a.new.example", "b.new.example", "c.new.example", "a.new.example", "ok.example"]
    replies = ask(namespace, "udp", *(query(name) for name in names))
    codes = [dns.rcode.to_text(reply.rcode()) for reply in replies]
    assert codes == ["NOERROR", "NOERROR", "SERVFAIL", "NOERROR", "NOERROR"]
    watch.until("name-table-full", type="A")
    assert [e.reason for e in watch.events][:2] == ["learning", "learning"]
