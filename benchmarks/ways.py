"""The ways of intercepted traffic to the origin: direct, by the gateway, and by each peer.

Every proxy gets the same client, in a namespace of its own whose connections TPROXY hands over, and
the same origin. Before anything is measured, each is seen to do what the comparison is about.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trustme

from benchmarks.players import duties, envoy, mitmproxy
from benchmarks.players.peer import Peer, cores, cpu_seconds
from benchmarks.tunnel import ANY_ADDRESS, close, empty_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNSCANNED = "keyhole, no secret"
"""The way by a gateway that has nothing to search answers for."""

HTTP1, HTTP2 = "benchmarks.players.httpload", "benchmarks.players.http2load"
"""The client, by the protocol that it speaks."""


class Asked(Protocol):
    """A client, wherever it is."""

    def ask(self, verb: str, descriptors: Sequence[int] = (), **arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Have it do something, and wait for what comes of it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the origin; without a proxy, the client is on the host beside it."""

    client: Asked
    proxy: int | None = None
    handshake: float = 0.002
    """Seconds that the proxy may take for one; an estimate, for waiting."""
    fresh: int = 600
    """New connections of a round."""
    settle: Callable[[], object] = int
    """To be called before memory is looked at."""

    def used(self) -> float:
        """Processor time of the proxy until now."""
        return cpu_seconds(self.proxy) if self.proxy else 0.0


@contextmanager
def checkouts(older: Path) -> Iterator[dict[str, Way]]:
    """The ways by this checkout's gateway and by another's, to one origin."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots = trustme.CA()
        authority = roots.cert_pem.bytes().decode()
        leaf(roots, desk / "origin.pem")
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        found = {
            name: _by_gateway(
                stack, (proxy_core, other_core), origin.ask("port"), authority, checkout=checkout
            )
            for name, checkout in (("keyhole", None), ("older", older))
        }
        for name, way in found.items():
            check(name, way, origin)
        yield found


def _by_gateway(
    stack: ExitStack,
    places: tuple[int, int],
    port: int,
    authority: str,
    *,
    secret: bool = True,
    checkout: Path | None = None,
    player: str = HTTP1,
) -> Way:
    proxy_core, other_core = places
    gateway = stack.enter_context(
        Peer("benchmarks.players.gateway", core=proxy_core, checkout=checkout)
    )
    client, door = enter(stack, other_core, player)
    ca = gateway.ask("intercept", door, port=port, authority=authority, secret=secret)
    close(door)
    address = client.ask("resolve", name=duties.HOST)
    client.ask("aim", host=address, port=duties.PORT, authority=ca)
    return Way(client, gateway.pid, settle=functools.partial(gateway.ask, "settle"))


@dataclass(frozen=True, slots=True)
class Rig:
    """Makes ways to an origin's port, for clients of one protocol."""

    stack: ExitStack
    desk: Path
    roots: trustme.CA
    """Signed the origin's certificate, and stands in `desk` as roots.pem."""
    forgers: trustme.CA
    """Signs those of the peers."""
    player: str = HTTP1

    def direct(self, port: int) -> Way:
        """From the host, by no proxy."""
        client = self.stack.enter_context(Peer(self.player, core=cores()[1]))
        authority = self.roots.cert_pem.bytes().decode()
        client.ask("aim", host="127.0.0.1", port=port, authority=authority)
        return Way(client)

    def by_gateway(self, port: int) -> Way:
        """By this checkout's gateway."""
        authority = self.roots.cert_pem.bytes().decode()
        return _by_gateway(self.stack, cores(), port, authority, player=self.player)

    def by_envoy(self, port: int) -> Way | None:
        """By an Envoy of its own, where it is installed."""
        if is_missing(envoy.missing()):
            return None
        proxy_core, other_core = cores()
        client = self.stack.enter_context(empty_namespace(self.player, other_core))
        client.ask("capture")
        self._aim_at_peer(client)
        own, where = self._own(f"envoy-{port}"), envoy.captured(client.pid)
        trust, http2 = self.desk / "roots.pem", self.player == HTTP2
        peer = envoy.running(own, where, port, trust, proxy_core, http2=http2)
        return Way(client, self.stack.enter_context(peer).pid)

    def by_mitmproxy(self, port: int) -> Way | None:
        """By a mitmproxy of its own, where it is installed."""
        if is_missing(mitmproxy.missing()):
            return None
        proxy_core, other_core = cores()
        client, door = enter(self.stack, other_core, self.player)
        self._aim_at_peer(client)
        own, trust, http2 = self._own("mitmproxy"), self.desk / "roots.pem", self.player == HTTP2
        peer = mitmproxy.running(own, door[0], port, trust, proxy_core, http2=http2)
        running = self.stack.enter_context(peer)
        close(door)
        return Way(client, running.pid, handshake=0.02, fresh=60)

    def _aim_at_peer(self, client: Peer) -> None:
        authority = self.forgers.cert_pem.bytes().decode()
        client.ask("aim", host=ANY_ADDRESS, port=duties.PORT, authority=authority)

    def _own(self, name: str) -> Path:
        """A directory of a peer's own, with a certificate for the intercepted name."""
        own = self.desk / name
        own.mkdir()
        leaf(self.forgers, own / "leaf.pem")
        return own


@contextmanager
def ways() -> Iterator[tuple[Peer, dict[str, Way]]]:
    """The origin and the ways to it: direct, by the gateway, and by each peer that is installed."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots, forgers = trustme.CA(), trustme.CA()
        authority = roots.cert_pem.bytes().decode()
        roots.cert_pem.write_to_path(desk / "roots.pem")
        leaf(roots, desk / "origin.pem")
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port = origin.ask("port")

        direct = stack.enter_context(Peer("benchmarks.players.httpload", core=other_core))
        direct.ask("aim", host="127.0.0.1", port=port, authority=authority)
        found = {"direct": Way(direct)}

        for name in ("keyhole", UNSCANNED):
            found[name] = _by_gateway(
                stack, (proxy_core, other_core), port, authority, secret=name != UNSCANNED
            )

        rig = Rig(stack, desk, roots, forgers)
        rivals = {"envoy": rig.by_envoy(port), "mitmproxy": rig.by_mitmproxy(port)}
        found |= {name: way for name, way in rivals.items() if way is not None}
        for name, way in found.items():
            if way.proxy and name != UNSCANNED:
                check(name, way, origin)
        yield origin, found


def enter(stack: ExitStack, core: int, player: str) -> tuple[Peer, list[int]]:
    """A client in a namespace of its own, and the sockets of its door."""
    client = stack.enter_context(empty_namespace(player, core))
    return client, client.fetch("door")[1]


def leaf(authority: trustme.CA, path: Path, name: str = duties.HOST) -> None:
    """Write a certificate for the intercepted name, with its key."""
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)


def is_missing(why: str | None) -> bool:
    """Whether something is, and if so, say it."""
    if why:
        print(f"  {why}")
    return why is not None


def check(name: str, way: Way, origin: Peer) -> None:
    """That the proxy does what the comparison is about; else its speed means nothing."""
    way.client.ask("echo")
    seen = origin.ask("seen").lower()
    wanted = ": ".join(duties.ADDED).lower()
    if wanted not in seen or duties.PLACEHOLDER in seen:
        raise RuntimeError(f"{name} did not change the credential: {seen}")
    # mitmproxy is given no rules.
    status = way.client.ask("status", target="/v2/other")
    if status != (200 if name == "mitmproxy" else 403):
        raise RuntimeError(f"{name} answered {status} to a request that no rule allows")
