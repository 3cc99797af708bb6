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
def ways() -> Iterator[tuple[Peer, dict[str, Way]]]:
    """The origin and the ways to it: direct, by the gateway, and by each peer that is installed."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots, forgers = trustme.CA(), trustme.CA()
        authority = roots.cert_pem.bytes().decode()
        roots.cert_pem.write_to_path(desk / "roots.pem")
        _leaf(roots, desk / "origin.pem")
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port = origin.ask("port")

        direct = stack.enter_context(Peer("benchmarks.players.httpload", core=other_core))
        direct.ask("aim", host="127.0.0.1", port=port, authority=authority)
        found = {"direct": Way(direct)}

        for name in ("keyhole", UNSCANNED):
            gateway = stack.enter_context(Peer("benchmarks.players.gateway", core=proxy_core))
            client, door = _inside(stack, other_core)
            ca = gateway.ask(
                "intercept", door, port=port, authority=authority, secret=name != UNSCANNED
            )
            close(door)
            address = client.ask("resolve", name=duties.HOST)
            client.ask("aim", host=address, port=duties.PORT, authority=ca)
            settle = functools.partial(gateway.ask, "settle")
            found[name] = Way(client, gateway.pid, settle=settle)

        trusted = forgers.cert_pem.bytes().decode()
        if not is_missing(envoy.missing()):
            client = stack.enter_context(empty_namespace("benchmarks.players.httpload", other_core))
            client.ask("capture")
            client.ask("aim", host=ANY_ADDRESS, port=duties.PORT, authority=trusted)
            own = _own(desk, "envoy", forgers)
            rival = stack.enter_context(
                envoy.running(own, envoy.captured(client.pid), port, desk / "roots.pem", proxy_core)
            )
            found["envoy"] = Way(client, rival.pid)
        if not is_missing(mitmproxy.missing()):
            client, door = _inside(stack, other_core)
            client.ask("aim", host=ANY_ADDRESS, port=duties.PORT, authority=trusted)
            own = _own(desk, "mitmproxy", forgers)
            rival = stack.enter_context(
                mitmproxy.running(own, door[0], port, desk / "roots.pem", proxy_core)
            )
            close(door)
            found["mitmproxy"] = Way(client, rival.pid, handshake=0.02, fresh=60)
        for name, way in found.items():
            if way.proxy and name != UNSCANNED:
                check(name, way, origin)
        yield origin, found


def _inside(stack: ExitStack, core: int) -> tuple[Peer, list[int]]:
    client = stack.enter_context(empty_namespace("benchmarks.players.httpload", core))
    return client, client.fetch("door")[1]


def _own(desk: Path, name: str, forgers: trustme.CA) -> Path:
    """A directory of a peer's own, with a certificate for the intercepted name."""
    own = desk / name
    own.mkdir()
    _leaf(forgers, own / "leaf.pem")
    return own


def _leaf(authority: trustme.CA, path: Path) -> None:
    authority.issue_cert(duties.HOST).private_key_and_cert_chain_pem.write_to_path(path)


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
