"""The way into a pod, on loopback: one address is the pod's own, another one the cluster's."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.kube import inbound_door
from keyhole.app.kube.inbound_door import MAX_PEERS, InboundDoor, InboundNetworks
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

CLUSTER = "127.0.0.2"
"""The pod's address in the cluster; a server on 127.0.0.1 is in the pod."""


class Pod:
    """A server in a pod, which repeats what it gets, and the way to it."""

    def __init__(self, text: str, *, probed: bool, labels: dict[str, str] | None) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self._listening = True
        policy = loaded(text.replace("PORT", str(self.port))).policy

        async def labels_at(address: str) -> dict[str, str]:
            return labels or {}

        networks = InboundNetworks(os.dup(0), os.dup(0), os.dup(0), (CLUSTER,))
        ports = (self.port,) if probed else ()
        self.door = InboundDoor(networks, ports, policy, labels_at, self._note)
        self._task = asyncio.ensure_future(self._serve())

    def _note(self, what: str, **details: object) -> None:
        self.notes.append((what, details))

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                accepted, _ = await loop.sock_accept(self._server)
                tasks.create_task(self._repeat(accepted))

    async def _repeat(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with accepted:
            try:
                while data := await loop.sock_recv(accepted, 65536):
                    await loop.sock_sendall(accepted, data)
            except OSError:
                return

    async def ask(self, data: bytes = b"hello") -> bytes:
        """Connect to the pod's address in the cluster; what came back before an end or a reset."""
        try:
            reader, writer = await asyncio.open_connection(CLUSTER, self.port)
        except ConnectionResetError:
            return b""
        try:
            writer.write(data)
            await writer.drain()
            return await reader.read(len(data))
        except OSError:
            return b""
        finally:
            writer.close()

    async def stop(self) -> None:
        """The server in the pod ends."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._server.close()

    async def close(self) -> None:
        await self.stop()
        self.door.close()


@pytest.fixture(autouse=True)
def _in_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both networks are the test's own, and the user of the test is root of the node."""
    monkeypatch.setattr(inbound_door, "in_network", lambda network, work: work())
    monkeypatch.setattr(inbound_door, "_ROOT", os.getuid())


def run(
    work: Callable[[Pod], Awaitable[None]],
    text: str = "",
    *,
    probed: bool = False,
    labels: dict[str, str] | None = None,
) -> list[tuple[str, dict[str, Any]]]:
    """Work with a pod under a policy; what was written down."""

    async def main() -> Pod:
        pod = Pod(text, probed=probed, labels=labels)
        try:
            pod.door.tend()
            await work(pod)
        finally:
            await pod.close()
        return pod

    return asyncio.run(main()).notes


NETWORK = '[sandbox]\ninbound = ["PORT from 127.0.0.0/8"]\n'
LABEL = '[sandbox]\ninbound = ["PORT from role=web"]\n'


def test_a_probe_reaches_the_server_and_is_counted() -> None:
    async def work(pod: Pod) -> None:
        assert await pod.ask() == b"hello"

    assert run(work, probed=True) == [("inbound-probes", {"times": 1})]


def test_a_port_that_nothing_names_is_closed_i2() -> None:
    async def work(pod: Pod) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pod.ask()

    run(work)


def test_a_user_of_the_node_who_is_not_root_is_not_the_kubelet_i5(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbound_door, "_ROOT", os.getuid() + 1)

    async def work(pod: Pod) -> None:
        assert await pod.ask() == b""
        assert pod.notes[-1][0] == "inbound-refused"

    run(work, probed=True)


def test_a_named_network_and_a_pod_with_a_named_label_are_let_in_and_no_other_i3() -> None:
    async def admitted(pod: Pod) -> None:
        assert await pod.ask() == b"hello"
        assert pod.notes[0][0] == "inbound"

    async def refused(pod: Pod) -> None:
        assert await pod.ask() == b""
        assert pod.notes[0][0] == "inbound-refused"

    run(admitted, NETWORK)
    run(admitted, LABEL, labels={"role": "web"})
    run(refused, LABEL, labels={"role": "db"})
    run(refused, LABEL)
    run(refused, NETWORK.replace("127.0.0.0/8", "192.0.2.0/24"))


def test_a_port_is_open_while_the_pod_listens_there() -> None:
    async def work(pod: Pod) -> None:
        assert await pod.ask() == b"hello"
        await pod.stop()
        pod.door.tend()
        with pytest.raises(ConnectionRefusedError):
            await pod.ask()

    run(work, NETWORK)


def test_bytes_of_peers_and_of_probes_are_bounded_i9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_door, "PROBE_BYTES", 1000)

    async def work(pod: Pod) -> None:
        assert await pod.ask(b"x" * 600) == b"x" * 600
        assert len(await pod.ask(b"x" * 1001)) < 1001

    run(work, NETWORK + '[limits]\nupload = "1000B"\ndownload = "1GiB"\n')
    run(work, probed=True)


def test_connections_of_peers_are_bounded_i9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_door, "MAX_PEERS", 2)
    assert MAX_PEERS == 32

    async def work(pod: Pod) -> None:
        async for _ in _held(pod, 2):
            assert await pod.ask() == b""
            assert pod.notes[-1][1]["why"] == "there are too many connections"

    run(work, NETWORK)


async def _held(pod: Pod, count: int) -> AsyncIterator[None]:
    """So many connections of peers, which were answered and stay open."""
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(CLUSTER, pod.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writers.append(writer)
    yield
    for writer in writers:
        writer.close()


def test_a_connection_ends_when_the_time_is_over_i9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_door, "IDLE_SECONDS", 0.05)

    async def work(pod: Pod) -> None:
        reader, writer = await asyncio.open_connection(CLUSTER, pod.port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()

    run(work, NETWORK)


def test_a_peer_that_the_policy_names_no_more_is_cut_i3() -> None:
    async def work(pod: Pod) -> None:
        reader, writer = await asyncio.open_connection(CLUSTER, pod.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        pod.door.apply(loaded("").policy)
        assert await reader.read() == b""
        writer.close()
        assert pod.notes[-1][0] == "inbound-ended"
        assert (pod.notes[-1][1]["up"], pod.notes[-1][1]["down"]) == (5, 5)
        pod.door.tend()
        with pytest.raises(ConnectionRefusedError):
            await pod.ask()

    run(work, NETWORK)


def test_refusals_are_written_down_at_a_bounded_rate_i9() -> None:
    async def work(pod: Pod) -> None:
        for _ in range(20):
            assert await pod.ask() == b""
        assert len(pod.notes) <= 4

    run(work, LABEL)
