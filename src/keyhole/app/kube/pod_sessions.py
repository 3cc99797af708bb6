"""The pods of this node that have a door: one session each, from its volume to its end.

Called by `cni_server.py` and `csi_server.py` with what the kubelet says, and by `node_agent.py`
after a restart. The gateway in another process serves the doors; when it or this process ends,
every door is closed, and stays so until the next agent serves it (I2).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.pod_admission import seeded_noise
from keyhole.app.kube.pod_files import PreparedPod, prepare_pod
from keyhole.app.kube.pod_records import PodRecord, PodRecords
from keyhole.app.run.daemon_gateway import AttachedSession
from keyhole.model.errors import KeyholeError, Refused
from keyhole.sandbox.containers.interface_watch import InterfaceWatch
from keyhole.sandbox.pods.pod_network import make_door, new_network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from keyhole.app.kube.cluster_view import ClusterView
    from keyhole.app.kube.resources import PodIdentity
    from keyhole.app.session.end_reason import EndReason
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.client import ControlClient

MAX_PODS = 512
"""Pods with a door on one node; a kubelet runs 110 unless it is told otherwise."""

_UID = re.compile("[0-9a-f-]{1,64}")


class PodSession(Struct):
    """One pod."""

    pod: PodIdentity
    policy: Path
    prepared: PreparedPod
    network: Path | None = None
    """Where its door is."""
    gateway: AttachedSession | None = None
    watch: InterfaceWatch | None = None
    away: int = -1
    """The network in which its interfaces are."""


class PodSessions:
    """All of them, by the pod's uid."""

    def __init__(
        self,
        view: ClusterView,
        places: HostPaths,
        client: ControlClient,
        nft: tuple[str, ...],
        say: Callable[[str], None],
    ) -> None:
        self._view = view
        self._places = places
        self._client = client
        self._nft = nft
        self._say = say
        self._records = PodRecords(places.state / "cluster" / "pods")
        self._sessions: dict[str, PodSession] = {}
        self._volumes: dict[str, Path] = {}
        """They outlive a session: the runtime may make a pod's network anew."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def publish(self, pod: PodIdentity, volume: Path) -> None:
        """Fill the volume of a pod. Raises KeyholeError."""
        async with self._alone(pod):
            session = await self._prepare(pod)
            await asyncio.to_thread(session.prepared.write, volume)
            self._volumes[pod.uid] = volume

    async def open(self, pod: PodIdentity, network: Path) -> None:
        """Give a pod its door, before its first container starts. Raises KeyholeError."""
        async with self._alone(pod):
            before = self._sessions.get(pod.uid)
            if before is not None and before.gateway is not None:
                if before.network == network:
                    return  # the runtime repeats an ADD whose answer it did not get
                # Attack: make the runtime replace the pod's network while the agent misses a DEL.
                # The new network has an interface, and a door of the old one says nothing of it
                # (I2).
                await self._end(pod.uid)
            session = await self._prepare(pod)
            await self._attach(session, network)
            self._records.write(PodRecord(session.pod, network, self._volumes.get(pod.uid)))

    def unpublish(self, volume: Path) -> None:
        """The kubelet takes a volume away."""
        self._volumes = {uid: each for uid, each in self._volumes.items() if each != volume}

    def check(self, pod: PodIdentity) -> None:
        """Raise Refused unless the door of this pod is served."""
        session = self._sessions.get(pod.uid)
        if session is None or session.gateway is None:
            raise Refused(f"the pod {pod} has no door")

    async def close(self, pod: PodIdentity) -> None:
        """The pod is gone."""
        async with self._alone(pod):
            self._records.remove(pod.uid)
            await self._end(pod.uid)

    async def close_under(self, policy: Path) -> None:
        """The policy is gone: close the doors of its pods, which stay."""
        for session in [each for each in self._sessions.values() if each.policy == policy]:
            async with self._alone(session.pod):
                self._say(f"pod {session.pod}: its policy is gone, and its door is closed")
                await self._end(session.pod.uid)

    async def restore(self) -> None:
        """Open the doors again that an agent before this one served."""
        for record in list(self._records.read()):
            try:
                async with self._alone(record.pod):
                    if record.volume is not None:
                        self._volumes[record.pod.uid] = record.volume
                    session = await self._prepare(record.pod)
                    if session.gateway is None:
                        await self._attach(session, record.network)
            except (KeyholeError, OSError) as error:
                self._say(f"pod {record.pod}: its door stays closed: {error}")

    @contextlib.asynccontextmanager
    async def _alone(self, pod: PodIdentity) -> AsyncIterator[None]:
        """Two calls of the kubelet about one pod wait for one another."""
        if not _UID.fullmatch(pod.uid):
            raise Refused("a pod is named by its uid")
        lock = self._locks.setdefault(pod.uid, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and pod.uid not in self._sessions:
                self._locks.pop(pod.uid, None)

    async def _prepare(self, pod: PodIdentity) -> PodSession:
        session = self._sessions.get(pod.uid)
        if session is None:
            if len(self._sessions) >= MAX_PODS:
                raise Refused(f"{MAX_PODS} pods of this node have a door, which is the most")
            known = await self._view.known_pod(pod)
            examined = known.policy
            prepared = await asyncio.to_thread(
                prepare_pod, known.pod, seeded_noise(known.seed), examined, self._places,
                self._client,
            )  # fmt: skip
            session = PodSession(known.pod, examined.file.path, prepared)
            volume = self._volumes.get(pod.uid)
            if volume is not None:
                # A new CA: programs that have read the old one must read it again.
                await asyncio.to_thread(prepared.write_again, volume)
            self._sessions[pod.uid] = session
        return session

    async def _attach(self, session: PodSession, network: Path) -> None:
        session.away = await asyncio.to_thread(new_network)
        pod = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            door = await asyncio.to_thread(make_door, pod, session.away, self._nft)
        finally:
            os.close(pod)
        prepared = session.prepared
        gateway = AttachedSession(self._client, prepared.opened, prepared.ttl, self._say)
        session.watch = InterfaceWatch(door.links, self._added(session))
        await asyncio.to_thread(gateway.admit, door.sockets)
        await gateway.open(self._ended(session))
        session.gateway, session.network = gateway, network
        self._say(f"pod {session.pod}: its door is served, session {prepared.opened.id}")

    async def _end(self, uid: str) -> None:
        session = self._sessions.pop(uid, None)
        if session is None:
            return
        if session.watch is not None:
            session.watch.close()
        if session.gateway is not None:
            await session.gateway.close(0)
        if session.away >= 0:
            os.close(session.away)

    def _ended(self, session: PodSession) -> Callable[[EndReason], None]:
        def ended(reason: EndReason) -> None:
            self._say(f"pod {session.pod}: its session has ended ({reason}); its door is closed")

        return ended

    def _added(self, session: PodSession) -> Callable[[str], None]:
        """Returns a callback that closes the door of a pod that got an interface (I2)."""
        loop = asyncio.get_running_loop()

        def added(name: str) -> None:
            asyncio.run_coroutine_threadsafe(self._refuse_interface(session, name), loop)

        return added

    async def _refuse_interface(self, session: PodSession, name: str) -> None:
        self._say(f"pod {session.pod}: an interface ({name}) was put into it; its door is closed")
        if session.gateway is not None:
            session.gateway.note("interface-added", interface=name)
        async with self._alone(session.pod):
            await self._end(session.pod.uid)
