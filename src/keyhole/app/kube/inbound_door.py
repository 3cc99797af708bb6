"""The way into a pod: its kubelet's probes, and the peers that its policy names.

A pod behind a door has no interface. Its address is in another network, where only the agent
listens, at the ports that probes and the policy name. The agent listens at a port only while the
pod does, too: a probe of a server that is not up must fail. It judges a connection before the pod
learns of it:

- It recognises the kubelet by a socket of root at the other end of the connection, which the kernel
  finds in the node's own network. Attack: another pod connects through an address translation of
  the node, so that its packets carry the node's address. No socket of the node is at their other
  end (I5).
- It recognises other peers by their network, or by the labels of the pod that has their address
  according to the API server.

The agent passes bytes between two sockets without reading them. Connections, bytes and time are
bounded (I9). Each connection of a peer is an event; probes are counted (I8).
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.inbound_relay import (
    ByteBudget,
    InboundRelay,
    RelayBounds,
    close_with_reset,
    is_over,
)
from keyhole.model.errors import SetupFailed
from keyhole.policy.limit import TokenBucket
from keyhole.sandbox.pods.pod_network import in_network
from keyhole.system.socket_diag import find_connection, is_listening, open_diag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from keyhole.policy.inbound import InboundRule
    from keyhole.policy.policy import Policy

TEND_SECONDS = 0.5
"""Seconds between two checks whether a pod listens at its ports."""

MAX_PROBES = 8
"""Connections of the kubelet to one pod at a time."""
PROBE_SECONDS = 120.0
PROBE_BYTES = 1 << 20
"""Bytes of one probe in each direction; the kubelet reads 10 KiB of an answer."""

MAX_PEERS = 32
"""Connections of named peers to one pod at a time."""
PEER_SECONDS = 3600.0
IDLE_SECONDS = 300.0
"""Seconds for which a peer's connection may be without a byte in one direction, and last."""

HALF_CLOSED_SECONDS = 5.0
"""Seconds for which a pod may still send after its kubelet has closed its side."""
CONNECT_SECONDS = 5.0
BACKLOG = 16
REFUSALS_PER_SECOND = 2
"""Events about refused peers; further ones are only counted."""
PROBES_SUMMED_SECONDS = 300.0
"""Seconds between two events with the number of probes."""

_LOOPBACKS = ("127.0.0.1", "::1")
_ROOT = 0


class InboundNetworks(Struct, frozen=True):
    """A pod's own network, the one with its interfaces, and the node's, by their descriptors."""

    pod: int
    away: int
    node: int
    addresses: tuple[str, ...]
    """The pod's addresses, which are in `away`."""

    @classmethod
    def open(cls, pod: Path, away: Path, node: Path, addresses: tuple[str, ...]) -> InboundNetworks:
        """Open all of them. Raises OSError."""
        opened: list[int] = []
        try:
            for each in (pod, away, node):
                opened.append(os.open(each, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return cls(opened[0], opened[1], opened[2], addresses)

    def close(self) -> None:
        """Close all of them."""
        for each in (self.pod, self.away, self.node):
            os.close(each)


class InboundDoor:
    """The way into one pod."""

    def __init__(
        self,
        networks: InboundNetworks,
        probed: tuple[int, ...],
        policy: Policy,
        labels_at: Callable[[str], Awaitable[dict[str, str]]],
        note: Callable[..., None],
    ) -> None:
        """`labels_at` asks the API server for the labels of the pod of the same namespace that has
        an address. Raises SetupFailed, OSError."""
        self._loop = asyncio.get_running_loop()
        self._networks = networks
        self._probed = frozenset(probed)
        self._labels_at = labels_at
        self._note = note
        self._node = in_network(networks.node, open_diag)
        self._pod = in_network(networks.pod, open_diag)
        self._listeners: dict[int, list[socket.socket]] = {}
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Connections, and whether each is the kubelet's."""
        self._refusals = TokenBucket.full("inbound", REFUSALS_PER_SECOND, self._loop.time())
        self._unsaid = 0
        self._probes, self._summed_at = 0, self._loop.time()
        self._up, self._down = ByteBudget(policy.limits.upload), ByteBudget(policy.limits.download)
        self._rules: tuple[InboundRule, ...] = policy.sandbox.inbound

    def apply(self, policy: Policy) -> None:
        """The policy has changed: end connections of peers that it no longer names."""
        if policy.sandbox.inbound != self._rules:
            self._rules = policy.sandbox.inbound
            for task, is_probe in self._tasks.items():
                if not is_probe:
                    task.cancel()

    def close(self) -> None:
        """Close the listeners and every connection."""
        self._sum_probes()
        for task in self._tasks:
            task.cancel()
        for port in list(self._listeners):
            self._close_port(port)
        self._node.close()
        self._pod.close()
        self._networks.close()

    # ── ports ─────────────────────────────────────────────────────────────────────────────────────

    def tend(self) -> None:
        """Listen at exactly those ports at which the pod listens."""
        wanted = self._probed | {each.port for each in self._rules}
        for port in wanted | self._listeners.keys():
            try:
                listens = port in wanted and self._pod_listens(port)
                if listens and port not in self._listeners:
                    self._listeners[port] = self._open_port(port)
            except (OSError, SetupFailed):
                listens = False  # the next turn tries again
            if not listens:
                self._close_port(port)
        if self._loop.time() - self._summed_at > PROBES_SUMMED_SECONDS:
            self._sum_probes()

    def _pod_listens(self, port: int) -> bool:
        return any(is_listening(self._pod, (each, port)) for each in _LOOPBACKS)

    def _open_port(self, port: int) -> list[socket.socket]:
        def listen() -> list[socket.socket]:
            return [_listen(address, port) for address in self._networks.addresses]

        made = in_network(self._networks.away, listen)
        for each in made:
            self._loop.add_reader(each, self._acceptable, each, port)
        return made

    def _close_port(self, port: int) -> None:
        for each in self._listeners.pop(port, ()):
            self._loop.remove_reader(each)
            each.close()

    # ── connections ───────────────────────────────────────────────────────────────────────────────

    def _acceptable(self, listener: socket.socket, port: int) -> None:
        try:
            accepted, peer = listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        if is_over(accepted):
            # A probe that only connects has ended before it was judged. Nothing was sent.
            accepted.close()
            return
        is_probe = self._is_kubelet(accepted, port)
        if sum(each == is_probe for each in self._tasks.values()) >= (
            MAX_PROBES if is_probe else MAX_PEERS
        ):
            self._refuse(accepted, peer[0], port, "there are too many connections")
            return
        task = self._loop.create_task(self._serve(accepted, str(peer[0]), port, is_probe=is_probe))
        self._tasks[task] = is_probe
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _is_kubelet(self, accepted: socket.socket, port: int) -> bool:
        """Whether root of the node connected, from the node's own network, to a port of a probe."""
        if port not in self._probed:
            return False
        try:
            far, near = accepted.getpeername()[:2], accepted.getsockname()[:2]
            found = find_connection(self._node, far, near)
        except OSError:
            return False
        return found is not None and found.uid == _ROOT

    async def _serve(
        self, accepted: socket.socket, peer: str, port: int, *, is_probe: bool
    ) -> None:
        with accepted:
            if is_probe:
                self._probes += 1
                up, down = ByteBudget(PROBE_BYTES), ByteBudget(PROBE_BYTES)
                bounds = RelayBounds(PROBE_SECONDS, PROBE_SECONDS, HALF_CLOSED_SECONDS)
                await self._relay(accepted, port, up, down, bounds, lambda *_: None)
                return
            rule = await self._rule_for(peer, port)
            if rule is None:
                self._refuse(accepted, peer, port, "no rule names this peer")
                return
            self._note("inbound", peer=peer, port=port, rule=f"sandbox.inbound: {rule}")
            bounds = RelayBounds(PEER_SECONDS, IDLE_SECONDS, IDLE_SECONDS)

            def ended(sent: int, received: int) -> None:
                self._note("inbound-ended", peer=peer, port=port, up=sent, down=received)

            await self._relay(accepted, port, self._up, self._down, bounds, ended)

    async def _rule_for(self, peer: str, port: int) -> InboundRule | None:
        rules = [each for each in self._rules if each.port == port]
        for each in rules:
            if each.names_address(peer):
                return each
        labelled = [each for each in rules if each.label]
        if labelled:
            labels = await self._labels_at(peer)
            for each in labelled:
                if each.label is not None and labels.get(each.label[0]) == each.label[1]:
                    return each
        return None

    async def _relay(
        self,
        accepted: socket.socket,
        port: int,
        up: ByteBudget,
        down: ByteBudget,
        bounds: RelayBounds,
        ended: Callable[[int, int], None],
    ) -> None:
        """Join a connection to the pod's own port; `ended` is called with the bytes that passed
        from the pod and to it."""
        inner = await self._connect(port)
        if inner is None:
            close_with_reset(accepted)
            ended(0, 0)
            return
        with inner:
            relay = InboundRelay(accepted, inner, up, down, bounds)
            try:
                await relay.run()
            finally:
                ended(relay.up, relay.down)

    async def _connect(self, port: int) -> socket.socket | None:
        """A connection to the pod's own port, made in its network."""
        for address in _LOOPBACKS:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                made = in_network(self._networks.pod, lambda f=family: socket.socket(f))  # type: ignore[misc]
            except (OSError, SetupFailed):
                continue
            made.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._loop.sock_connect(made, (address, port))
            except (OSError, TimeoutError):
                made.close()
            except BaseException:
                made.close()
                raise
            else:
                return made
        return None

    # ── written down ──────────────────────────────────────────────────────────────────────────────

    def _refuse(self, accepted: socket.socket, peer: str, port: int, why: str) -> None:
        close_with_reset(accepted)
        if self._refusals.take(self._loop.time()).allowed:
            self._note("inbound-refused", peer=peer, port=port, why=why, more=self._unsaid)
            self._unsaid = 0
        else:
            self._unsaid += 1

    def _sum_probes(self) -> None:
        if self._probes:
            self._note("inbound-probes", times=self._probes)
        self._probes, self._summed_at = 0, self._loop.time()


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
