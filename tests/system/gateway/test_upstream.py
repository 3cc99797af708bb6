"""The gateway dials what it judged, and resolves only what policy allowed (I4)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from keyhole.model.decision import AddressDecision, Reason, Verdict
from keyhole.model.errors import UpstreamFailed
from keyhole.model.host import Host
from keyhole.system import dialler as dialler_module
from keyhole.system import resolver as resolver_module
from keyhole.system.dialler import Dialler, first_of
from keyhole.system.proxy import parse
from keyhole.system.resolver import SystemResolver
from tests.rigs.gateway.clients import CONVERSE
from tests.rigs.gateway.origins import Origin, greet
from tests.rigs.gateway.rig import FakeResolver, Rig, policy
from tests.rigs.policies import book

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]
HOST = Host("ok.example")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "address-loopback"),
        ("10.1.2.3", "address-private"),
        ("169.254.169.254", "address-metadata"),
        ("fd00:ec2::254", "address-metadata"),
        ("64:ff9b::7f00:1", "address-embedded-ipv4"),
        ("224.0.0.1", "address-multicast"),
    ],
)
def test_an_allowed_name_that_resolves_inwards_is_refused(
    namespace: Namespace, rig: Rig, resolver: FakeResolver, address: str, reason: str, origin: Make
) -> None:
    server = origin(greet)
    resolver.table = {"ok.example": [[address]]}
    text = policy("ok.example:25", "fine.example:25", **{"fine.example:25": server.address})
    _, watch = rig.open(namespace.door, text)
    assert namespace.python(CONVERSE, "ok.example", "25", "read") == "ConnectionResetError"
    event = watch.until(reason, port=25)
    assert event.verdict is Verdict.DENY
    assert event.host == "ok.example"
    # positive control: the same port of a host whose address policy gives
    assert namespace.python(CONVERSE, "fine.example", "25", "read") == "b'220 ready\\r\\n'"


def test_names_that_policy_does_not_allow_are_never_resolved(
    namespace: Namespace, rig: Rig, resolver: FakeResolver
) -> None:
    resolver.table = {"ok.example": [["10.0.0.1"]]}
    rig.open(namespace.door, policy("ok.example:25"))
    for name in ("evil.example", "secret.evil.example"):
        assert namespace.python(CONVERSE, name, "25", "read") == "gaierror"
    assert namespace.python(CONVERSE, "ok.example", "443", "read") == "ConnectionResetError"
    assert resolver.asked == []
    assert namespace.python(CONVERSE, "ok.example", "25", "read") == "ConnectionResetError"
    assert resolver.asked == ["ok.example"]


class Sockets:
    """A loop that remembers what was dialled and says how each attempt ends."""

    def __init__(self, ends: dict[str, float | OSError]) -> None:
        self.ends = ends
        self.dialled: list[tuple[str, int]] = []

    async def connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """As `sock_connect`."""
        self.dialled.append(address)
        end = self.ends.get(address[0], 0.0)
        if isinstance(end, OSError):
            raise end
        await asyncio.sleep(end)


@contextlib.contextmanager
def dialling(
    monkeypatch: pytest.MonkeyPatch,
    ends: dict[str, float | OSError],
    table: dict[str, list[list[str]]],
) -> Iterator[tuple[Dialler, Sockets, asyncio.AbstractEventLoop]]:
    """A Dialler whose network is made up."""
    loop = asyncio.new_event_loop()
    sockets = Sockets(ends)
    monkeypatch.setattr(Dialler, "_reach", lambda _, sock, where: sockets.connect(sock, where))
    yield Dialler(loop, FakeResolver(table)), sockets, loop
    loop.close()


def test_the_address_that_is_dialled_is_the_one_that_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rebinding: public for the judge, loopback for whoever asks again.
    table = {"ok.example": [["93.184.216.34"], ["127.0.0.1"]]}
    rules = book(policy("ok.example"))
    with dialling(monkeypatch, {}, table) as (upstream, sockets, loop):
        made = loop.run_until_complete(upstream.dial(rules, HOST, 443))
        made.sock.close()
        assert sockets.dialled == [("93.184.216.34", 443)]
        assert made.decision.address == ip_address("93.184.216.34")
        with pytest.raises(UpstreamFailed) as refused:
            loop.run_until_complete(upstream.dial(rules, HOST, 443))
        assert refused.value.reason is Reason.ADDRESS_LOOPBACK
        assert sockets.dialled == [("93.184.216.34", 443)]


def test_of_several_addresses_only_the_public_ones_are_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"ok.example": [["10.0.0.1", "93.184.216.34", "127.0.0.1"]]}
    with dialling(monkeypatch, {}, table) as (upstream, sockets, loop):
        loop.run_until_complete(upstream.dial(book(policy("ok.example")), HOST, 443)).sock.close()
        assert sockets.dialled == [("93.184.216.34", 443)]


def test_a_refused_address_is_followed_by_the_next_and_a_slow_one_gets_company(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialler_module, "ATTEMPT_DELAY", 0.01)
    table = {"ok.example": [["2606:2800::1", "93.184.216.34", "2606:2800::2", "93.184.216.35"]]}
    ends: dict[str, float | OSError] = {
        "2606:2800::1": OSError("no route"), "93.184.216.34": 30.0, "2606:2800::2": 30.0,
    }  # fmt: skip
    with dialling(monkeypatch, ends, table) as (upstream, sockets, loop):
        made = loop.run_until_complete(upstream.dial(book(policy("ok.example")), HOST, 443))
        made.sock.close()
        assert made.decision.address == ip_address("93.184.216.35")
        assert [address for address, _ in sockets.dialled] == [
            "2606:2800::1", "93.184.216.34", "2606:2800::2", "93.184.216.35",
        ]  # fmt: skip


def test_failures_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialler_module, "CONNECT_TIMEOUT", 0.05)
    table: dict[str, list[list[str]]] = {
        "ok.example": [["93.184.216.34"]], "two.example": [["93.184.216.34", "93.184.216.35"]],
        "slow.example": [["93.184.216.36"]], "empty.example": [[]],
    }  # fmt: skip
    ends: dict[str, float | OSError] = {
        "93.184.216.34": OSError("refused"), "93.184.216.35": OSError("refused"),
        "93.184.216.36": 30.0,
    }  # fmt: skip
    rules = book(policy("ok.example"))
    expected = {
        "ok.example": ("upstream-unreachable", "refused"),
        "two.example": ("upstream-unreachable", "refused"),
        "slow.example": ("upstream-unreachable", "timed out"),
        "empty.example": ("name-unresolved", "no address"),
        "none.example": ("name-unresolved", "no such name"),
    }
    with dialling(monkeypatch, ends, table) as (upstream, _, loop):
        for name, (reason, message) in expected.items():
            with pytest.raises(UpstreamFailed, match=message) as failed:
                loop.run_until_complete(upstream.dial(rules, Host(name), 443))
            assert failed.value.reason == reason


def test_an_unreachable_origin_is_told_and_written_down(
    namespace: Namespace, rig: Rig, resolver: FakeResolver
) -> None:
    _, watch = rig.open(namespace.door, policy("ok.example:25"))
    assert namespace.python(CONVERSE, "ok.example", "25", "read") == "ConnectionResetError"
    assert watch.until("name-unresolved", port=25).verdict is Verdict.ALLOW
    assert watch.lines == ["failed ok.example:25 (the name does not resolve)"]


def proxy_server(replies: bytes, heads: list[bytes]) -> Callable[[socket.socket], None]:
    """A proxy that answers every CONNECT with the same bytes, then echoes."""

    def serve(sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        heads.append(head)
        sock.sendall(replies)

    return serve


def test_a_proxy_is_told_the_judged_address(
    namespace: Namespace, rig: Rig, resolver: FakeResolver, origin: Make
) -> None:
    heads: list[bytes] = []
    # The greeting comes in one piece with the proxy's answer.
    proxy = origin(proxy_server(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n220 ready", heads))
    resolver.table = {"ok.example": [["93.184.216.34"]], "proxy.corp.example": [["127.0.0.1"]]}
    more = f'[upstream]\nproxy = "http://proxy.corp.example:{proxy.port}"'
    _, watch = rig.open(namespace.door, policy("ok.example:25", more=more))
    assert namespace.python(CONVERSE, "ok.example", "25", "rest") == "b'220 ready'"
    assert heads == [b"CONNECT 93.184.216.34:25 HTTP/1.1\r\nHost: 93.184.216.34:25\r\n\r\n"]
    # The judge speaks before the proxy does.
    resolver.table["ok.example"] = [["10.0.0.1"]]
    assert namespace.python(CONVERSE, "ok.example", "25", "read") == "ConnectionResetError"
    watch.until("address-private", port=25)
    assert len(heads) == 1


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication"),
        (b"HTTP/1.1 502\r\n\r\n", "answered 502"),
        (b"SSH-2.0\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "no end"),
    ],
)
def test_a_proxy_that_does_not_connect_is_named(
    namespace: Namespace, rig: Rig, resolver: FakeResolver, origin: Make, reply: bytes, why: str
) -> None:
    proxy = origin(proxy_server(reply, []))
    resolver.table = {"ok.example": [["93.184.216.34"]], "proxy.corp.example": [["127.0.0.1"]]}
    more = f'[upstream]\nproxy = "http://proxy.corp.example:{proxy.port}"'
    _, watch = rig.open(namespace.door, policy("ok.example:25", more=more))
    assert namespace.python(CONVERSE, "ok.example", "25", "read") == "ConnectionResetError"
    assert why in str(dict(watch.until("proxy-failed", port=25).details)["why"])


def test_a_proxy_whose_name_has_no_address_is_an_upstream_that_failed() -> None:
    resolver = FakeResolver({"ok.example": [["93.184.216.34"]], "proxy.corp.example": [[]]})
    rules = book('[upstream]\nproxy = "http://proxy.corp.example:3128"\n')

    async def dial() -> None:
        dialler = Dialler(asyncio.get_running_loop(), resolver)
        with pytest.raises(UpstreamFailed, match="no address"):
            await dialler.dial(rules, Host.parse("ok.example"), 443)

    asyncio.run(dial())


def test_a_proxy_url_is_read() -> None:
    assert str(parse("http://proxy.corp.example:3128").port) == "3128"
    assert parse("http://proxy.corp.example").port == 80
    with pytest.raises(UpstreamFailed, match="reached by https"):
        parse("https://proxy.corp.example")


def test_a_few_addresses_of_each_family_are_tried_and_families_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I9: a name with a hundred addresses is given up after eight."""

    def decided(*texts: str) -> list[AddressDecision]:
        return [AddressDecision(Verdict.ALLOW, address=ip_address(t), port=1) for t in texts]

    many = decided(*(f"::{n}" for n in range(1, 9)), "1.1.1.1")
    first_seven = [f"::{n}" for n in range(1, 8)]
    assert [str(d.address) for d in first_of(many)] == [*first_seven, "1.1.1.1"]
    one_family = [f"1.1.1.{n}" for n in range(1, 10)]
    assert [str(d.address) for d in first_of(decided(*one_family))] == one_family[:8]
    evenly = decided(*one_family, *(f"::{n}" for n in range(1, 10)))
    assert [d.address.version for d in first_of(evenly) if d.address] == [4] * 4 + [6] * 4
    assert first_of([]) == []
    addresses = ["93.184.216.34", *(f"2606:2800::{n}" for n in range(1, 9)), "93.184.216.35"]
    ends: dict[str, float | OSError] = dict.fromkeys(addresses, OSError("refused"))
    table = {"ok.example": [addresses]}
    with dialling(monkeypatch, ends, table) as (upstream, sockets, loop):
        with pytest.raises(UpstreamFailed, match="refused"):
            loop.run_until_complete(upstream.dial(book(policy("ok.example")), HOST, 443))
        assert [address for address, _ in sockets.dialled] == [
            "93.184.216.34", "2606:2800::1", "93.184.216.35", "2606:2800::2", "2606:2800::3",
            "2606:2800::4", "2606:2800::5", "2606:2800::6",
        ]  # fmt: skip


def test_the_system_resolver_caches_asks_once_and_bounds_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def getaddrinfo(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(name)
        if name.startswith("bad"):
            raise socket.gaierror("no such name")
        return [(2, 1, 6, "", ("93.184.216.34", 0)), (10, 1, 6, "", ("fe80::1%lo", 0, 0, 1))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(resolver_module, "MAX_CACHED", 1)

    async def conversation() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        both = await asyncio.gather(system.resolve(HOST, "s1"), system.resolve(HOST, "s1"))
        assert both[0] == both[1] == (ip_address("93.184.216.34"), ip_address("fe80::1"))
        await system.resolve(HOST, "s1")
        assert asked == ["ok.example."]
        with pytest.raises(UpstreamFailed):
            await system.resolve(Host("bad.example"), "s1")
        await system.resolve(Host("b.example"), "s1")
        await system.resolve(HOST, "s1")
        assert asked == ["ok.example.", "bad.example.", "b.example.", "ok.example."]

    asyncio.run(conversation())


def test_the_hosts_file_speaks_before_dns_and_names_there_are_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# 192.0.2.9 ok.example\n\n192.0.2.1 other OK.example # comment\nfe80::1%lo ok.example\n"
        "nonsense ok.example\n192.0.2.2 not.ok.example\n"
    )

    def getaddrinfo(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(name)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(resolver_module, "HOSTS_FILE", hosts)

    async def conversation() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        assert await system.resolve(HOST, "s1") == (ip_address("192.0.2.1"), ip_address("fe80::1"))
        with pytest.raises(UpstreamFailed, match=r"sub\.ok\.example\.$"):
            await system.resolve(Host("sub.ok.example"), "s1")
        monkeypatch.setattr(resolver_module, "HOSTS_FILE", tmp_path / "none")
        with pytest.raises(UpstreamFailed):
            await system.resolve(Host("third.example"), "s1")

    asyncio.run(conversation())


OWN = """
from ipaddress import ip_address
from keyhole.system.dialler import is_own
print([is_own(ip_address(text)) for text in ("203.0.113.9", "2001:db8::9", "203.0.113.10")])
"""


@pytest.mark.skipif(not shutil.which("ip"), reason="iproute2 gives an interface its address")
def test_a_public_address_of_this_host_is_known_as_its_own() -> None:
    """I4: in a namespace whose only interface has such addresses. Control: without them."""
    addresses = "ip addr add 203.0.113.9/32 dev lo && ip addr add 2001:db8::9/128 dev lo nodad"
    unshare = str(shutil.which("unshare"))
    seen = []
    for made in (addresses, "true"):
        script = f'ip link set lo up && {made} && exec "$0" -c "$1"'
        words = [unshare, "-rn", "sh", "-c", script, sys.executable, OWN]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        seen.append(done.stdout.strip())
    assert seen == ["[True, True, False]", "[False, False, False]"]
    assert not dialler_module.is_own(ip_address("203.0.113.9"))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "address-loopback"),
        ("10.1.2.3", "address-private"),
        ("169.254.169.254", "address-metadata"),
    ],
)
def test_a_learning_run_reaches_no_inward_address(
    namespace: Namespace, rig: Rig, resolver: FakeResolver, address: str, reason: str, origin: Make
) -> None:
    """I4: any name is open, not any address. Control: a name whose address the policy gives."""
    server = origin(greet)
    resolver.table = {"new.example": [[address]]}
    text = policy(**{"fine.example:80": server.address})
    _, watch = rig.open(namespace.door, text, learning=True)
    steps = "send:GET / HTTP/1.1\\r\\nHost: {}\\r\\n\\r\\n,read"
    namespace.python(CONVERSE, "new.example", "80", steps.format("new.example"))
    event = watch.until(reason, port=80)
    assert (event.verdict, event.host) == (Verdict.DENY, "new.example")
    assert "220" in namespace.python(CONVERSE, "fine.example", "80", steps.format("fine.example"))
    watch.until("learning", port=80)
    assert namespace.python(CONVERSE, "new.example", "22", "read") == "ConnectionResetError"
    watch.until("no-rule", port=22)
