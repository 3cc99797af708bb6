"""The pods of this node that have a door: one session each, from its network to its end.

Called by `cni_server.py` and `csi_server.py` with what the kubelet says, and by `node_agent.py`
after a restart. The gateway in another process serves the doors; when it or this process ends,
every door is closed, and stays so until the next agent serves it (I2).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from typing import TYPE_CHECKING

from msgspec import structs

from keyhole.app.kube.claim_binding import bind_claim, is_about
from keyhole.app.kube.closed_doors import ClosedDoors
from keyhole.app.kube.inbound_door import TEND_SECONDS
from keyhole.app.kube.pod_locks import PodLocks
from keyhole.app.kube.pod_records import PodRecord, PodRecords
from keyhole.app.kube.pod_session import PodSession
from keyhole.app.kube.pod_states import DoorState, PodStates
from keyhole.app.kube.pod_volumes import PodVolumes
from keyhole.app.kube.sandbox_claims import Settled
from keyhole.app.run.daemon_gateway import AttachedSession
from keyhole.app.session.end_reason import EndReason
from keyhole.model.errors import KeyholeError, Refused
from keyhole.sandbox.containers.interface_watch import InterfaceWatch
from keyhole.sandbox.pods.away_network import drop_network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from keyhole.app.kube.closed_doors import ClosedDoor
    from keyhole.app.kube.cluster_view import ClusterView
    from keyhole.app.kube.pod_doors import PodDoors
    from keyhole.app.kube.resources import PodIdentity, PodSelector
    from keyhole.app.kube.sandbox_claims import ClaimChange
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.control.client import ControlClient

MAX_PODS = 512
"""Pods with a door on one node; a kubelet runs 110 unless it is told otherwise."""

_UID = re.compile("[0-9a-f-]{1,64}")


class _NotClaimed(Exception):
    """A pod is in its place, with its door closed until a SandboxClaim has it."""

    def __init__(self, record: PodRecord) -> None:
        super().__init__(f"no SandboxClaim has the pod {record.pod}")
        self.record = record


class PodSessions:
    """All of them, by the pod's uid."""

    def __init__(
        self,
        view: ClusterView,
        places: HostPaths,
        client: ControlClient,
        doors: PodDoors,
        say: Callable[[str], None],
        refused: Callable[[PodIdentity, str], None],
    ) -> None:
        """`say` writes a line into the agent's log; `refused` tells a pod's people about it."""
        self._view = view
        self._client = client
        self._doors = doors
        self._say = say
        self._refused = refused
        self._records = PodRecords(places.state / "cluster" / "pods")
        self._sessions: dict[str, PodSession] = {}
        self._closed = ClosedDoors()
        self._volumes = PodVolumes(places)
        self._over: dict[str, EndReason] = {}
        """Sessions that the gateway ended, and why."""
        self.wanted: Callable[[str], None] = lambda _: None
        """Called with a pod that waits for a claim."""
        self._locks = PodLocks()
        self.states = PodStates()

    # ── the kubelet ───────────────────────────────────────────────────────────────────────────────

    async def publish(self, pod: PodIdentity, volume: Path) -> None:
        """Fill the volume of a pod. Raises KeyholeError."""
        async with self._alone(pod):
            known = await self._view.known_pod(pod)
            try:
                setup = await self._volumes.prepare(known)
                await asyncio.to_thread(setup.write, volume)
                # An agent that is started before the pod has a network goes on with its CA.
                await asyncio.to_thread(self._records.write_volume, known.pod, volume)
            except BaseException:
                if not self._is_known(pod.uid):
                    self._forget(pod.uid)
                raise
            self._volumes.add(pod.uid, volume)
            if pod.uid not in self._sessions:
                self.states.set(known.pod, DoorState.WAITING, _policy_name(known.policy))

    def unpublish(self, volume: Path) -> None:
        """The kubelet takes a volume away: its pod has ended."""
        for uid in self._volumes.take(volume):
            if uid not in self._sessions:
                self._forget(uid)

    async def open(self, pod: PodIdentity, network: Path, away: Path) -> None:
        """Give a pod its door, before its first container starts. Its interfaces are kept in the
        network `away`, which is made. Raises KeyholeError."""
        async with self._alone(pod):
            before = self._sessions.get(pod.uid)
            if before is not None:
                if before.record.network == network:
                    return  # the runtime repeats an ADD whose answer it did not get
                # Attack: make the runtime replace the pod's network while the agent misses a DEL.
                # The new network has an interface, and a door of the old one says nothing of it
                # (I2).
                await self._end(pod.uid)
                drop_network(str(before.record.away))
            self._closed.pop(pod.uid, None)
            if len(self._sessions) + len(self._closed) >= MAX_PODS:
                raise Refused(f"{MAX_PODS} pods of this node have a door, which is the most")
            record = PodRecord(
                pod, network, away, (), self._volumes.path(pod.uid), *self._records.claimed(pod.uid)
            )
            try:
                await self._attach(record)
            except _NotClaimed as waiting:
                self._closed.await_claim(waiting.record)
                # A change that came before this line was about a pod that nobody knew.
                self.wanted(pod.uid)

    def check(self, pod: PodIdentity) -> None:
        """Raise Refused unless the door of this pod is served."""
        closed = self._closed.get(pod.uid)
        if pod.uid not in self._sessions and not (closed and closed.record.sandbox):
            raise Refused(f"the pod {pod} has no door")

    async def close(self, pod: PodIdentity, away: Path) -> None:
        """A network of the pod is gone; an older one of the same pod may go later."""
        async with self._alone(pod):
            session = self._sessions.get(pod.uid)
            record = session.record if session is not None else None
            if record is None and pod.uid in self._closed:
                record = self._closed[pod.uid].record
            if record is None or record.away == away:
                self._closed.pop(pod.uid, None)
                await self._end(pod.uid)
                # A pod that still has a volume may get another network: it keeps its CA. Most such
                # pods end, and only their kubelet knows, so none is shown until it has a network.
                if pod.uid not in self._volumes:
                    self._forget(pod.uid)
                else:
                    self.states.forget(pod.uid)
            drop_network(str(away))

    def _is_known(self, uid: str) -> bool:
        return uid in self._sessions or uid in self._closed or uid in self._volumes

    def _forget(self, uid: str) -> None:
        self._records.remove(uid)
        self._volumes.forget(uid)
        self._view.release(uid)
        self.states.forget(uid)

    # ── policies ──────────────────────────────────────────────────────────────────────────────────

    async def close_under(self, policy: Path) -> None:
        """The policy is gone: close the doors of its pods, which stay."""
        for session in self._under(policy):
            async with self._alone(session.pod):
                self._close(session.pod, "its policy is gone")
                await self._end(session.pod.uid)
                self._closed.try_seldom(session.record)

    async def apply(self, examined: ExaminedPolicy, selector: PodSelector) -> None:
        """A policy is new, or has changed. The gateway follows it by itself; the volumes of its
        pods are written again, doors of pods that it does not select now are closed, and doors are
        tried that are closed for want of a policy."""
        for session in self._under(examined.file.path):
            async with self._alone(session.pod):
                claimed = session.known.claimed
                if not claimed and not selector.selects(session.known.labels):
                    self._close(session.pod, "its policy does not select it any more")
                    await self._end(session.pod.uid)
                    self._view.release(session.pod.uid)
                    self._closed.try_seldom(session.record)
                    continue
                session.known = structs.replace(session.known, policy=examined)
                setup = await self._volumes.prepare(session.known)
                session.setup = setup
                if session.inbound is not None:
                    session.inbound.apply(setup.policy)
                await self._volumes.write_again(session.setup)
        self._closed.hasten()

    def _under(self, policy: Path) -> list[PodSession]:
        found = self._sessions.values()
        return [each for each in found if each.setup.examined.file.path == policy]

    # ── doors that were closed ────────────────────────────────────────────────────────────────────

    async def restore(self) -> None:
        """Have the doors opened again that an agent before this one served."""
        records = list(self._records.read())
        self._volumes.keep_only({each.pod.uid for each in records})
        for record in records:
            if record.volume is not None and record.has_volume:
                self._volumes.add(record.pod.uid, record.volume)
            if record.has_network:
                self._closed.try_now(record)
            elif not record.has_volume and not await self._view.is_there(record.pod):
                self._forget(record.pod.uid)

    async def tend(self) -> None:
        """Open doors again that are closed although their pods run, and look after the ways in;
        never returns."""
        while True:
            await self._take_ends()
            for session in list(self._sessions.values()):
                if session.inbound is not None:
                    session.inbound.tend()
            for closed in self._closed.due():
                await self._reopen(closed)
            await asyncio.sleep(TEND_SECONDS)

    async def reopen_all(self) -> None:
        """Try each closed door once."""
        for closed in list(self._closed.values()):
            await self._reopen(closed)
        for uid in self.concerned(None):
            self.wanted(uid)

    async def _reopen(self, closed: ClosedDoor) -> None:
        record = closed.record
        async with self._alone(record.pod):
            if self._closed.get(record.pod.uid) is not closed:
                return
            if not record.has_network:
                self._closed.pop(record.pod.uid)  # the runtime removes the pod
                return
            try:
                await self._attach(record)
            except _NotClaimed as waiting:
                self._closed.await_claim(waiting.record)
            except (KeyholeError, OSError) as error:
                if not closed.tries:
                    self._say(f"pod {record.pod}: its door stays closed: {error}")
                self.states.set(record.pod, DoorState.CLOSED, why=str(error))
                self._closed.try_later(record, closed.tries)
            else:
                self._closed.pop(record.pod.uid, None)

    # ── claims ────────────────────────────────────────────────────────────────────────────────────

    def concerned(self, change: ClaimChange | None) -> list[str]:
        """The pods that a change of a claim is about; without one, all that need a claim."""
        records = [each.record for each in self._sessions.values()]
        records += [each.record for each in self._closed.values()]
        return [
            each.pod.uid
            for each in records
            if each.sandbox and is_about(change, each, is_open=each.pod.uid in self._sessions)
        ]

    async def settle(self, uid: str) -> Settled:
        """Open or close the door of a pod as its claim wants it."""
        closed = self._closed.get(uid)
        if closed is not None:
            await self._reopen(closed)
        session = self._sessions.get(uid)
        if session is not None and closed is None:
            async with self._alone(session.pod):
                if self._sessions.get(uid) is session:
                    claim = await self._view.claim_of(session.pod)
                    if claim is None or claim.uid != session.record.claim:
                        self._say(f"pod {session.pod}: its claim is gone, and its door is closed")
                        await self._end(uid)
                        self._view.release(uid)
                        self._closed.await_claim(session.record)
        if uid in self._sessions:
            return Settled.OPEN
        return Settled.CLOSED if uid in self._closed else Settled.GONE

    # ── one pod ───────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _alone(self, pod: PodIdentity) -> AsyncIterator[None]:
        """Two calls of the kubelet about one pod wait for one another."""
        if not _UID.fullmatch(pod.uid):
            raise Refused("a pod is named by its uid")
        try:
            async with self._locks.alone(pod.uid):
                yield
        except (KeyholeError, OSError) as error:
            self.states.set(pod, DoorState.WAITING, why=str(error))
            raise

    async def _attach(self, record: PodRecord) -> None:
        """Make a pod's door, open a session for it, and hand the door over. On any failure nothing
        of it is left, and the pod has no interface. Raises KeyholeError, OSError, and
        _NotClaimed."""
        known = await self._view.known_pod(record.pod)
        uid = known.pod.uid
        async with contextlib.AsyncExitStack() as undo:
            # 1. The door. From here on the pod has no interface (I2).
            door, addresses = await asyncio.to_thread(self._doors.make, record)
            undo.callback(door.close)
            volume = self._volumes.path(uid)
            # Once it was known to need a claim, it needs one: a pod's owners can be patched.
            record = PodRecord(
                known.pod, record.network, record.away, addresses, volume,
                record.sandbox or known.sandbox, record.claim,
            )  # fmt: skip
            claim = None
            if record.sandbox:
                known, record, claim = await bind_claim(self._view, known, record)
            # 2. The record, before it is served: the next agent must know of it.
            await asyncio.to_thread(self._records.write, record)
            if record.sandbox and claim is None:
                raise _NotClaimed(record)
            setup = await self._volumes.prepare(known)
            # 3. The session. It ends if its door is not taken.
            opened = await asyncio.to_thread(setup.open_session, self._client)
            report = functools.partial(self._refused, known.pod)
            gateway = AttachedSession(self._client, opened, setup.policy.limits.ttl, report)
            await asyncio.to_thread(gateway.admit, door.sockets)
            undo.push_async_callback(gateway.close, 0)
            watch = InterfaceWatch(door.links, self._added(uid))
            undo.callback(watch.close)
            await gateway.open(functools.partial(self._ended, uid, opened.id))
            # 4. The way in, which the pod can do without.
            session = PodSession(setup, record, gateway, watch, known)
            session.inbound = self._doors.open_inbound(record, known.probed, setup.policy, gateway)
            self._sessions[uid] = session
            undo.pop_all()
        session.note_bound(claim)
        self.states.set(session.pod, DoorState.OPEN, _policy_name(session.setup.examined))
        await self._volumes.write_again(session.setup)
        self._say(f"pod {session.pod}: its door is served, session {opened.id}")

    def _close(self, pod: PodIdentity, why: str) -> None:
        self._say(f"pod {pod}: {why}; its door is closed")
        self.states.set(pod, DoorState.CLOSED, why=why)

    async def _end(self, uid: str) -> None:
        session = self._sessions.pop(uid, None)
        self._over.pop(uid, None)
        if session is not None:
            await session.end()

    def _ended(self, uid: str, session: str, reason: EndReason) -> None:
        self._over[uid] = reason
        lasts = "" if reason is EndReason.LOST else "; its door stays closed"
        self._say(f"session {session} of the pod {uid} has ended ({reason}){lasts}")
        if uid in self._sessions:
            why = f"its session has ended ({reason})"
            self.states.set(self._sessions[uid].pod, DoorState.CLOSED, why=why)

    async def _take_ends(self) -> None:
        """Act on sessions that the gateway ended. One whose process died is opened again."""
        for uid, reason in list(self._over.items()):
            session = self._sessions.get(uid)
            if session is None:
                self._over.pop(uid, None)
                continue
            async with self._alone(session.pod):
                if self._over.pop(uid, None) is None:
                    continue
                if reason is EndReason.LOST:
                    await self._end(uid)
                    self._closed.try_later(session.record, 0)
                else:
                    session.close_inbound()

    def _added(self, uid: str) -> Callable[[str], None]:
        """Returns a callback that closes the door of a pod that got an interface (I2)."""
        loop = asyncio.get_running_loop()

        def added(name: str) -> None:
            asyncio.run_coroutine_threadsafe(self._refuse_interface(uid, name), loop)

        return added

    async def _refuse_interface(self, uid: str, name: str) -> None:
        session = self._sessions.get(uid)
        if session is None:
            return
        self._close(session.pod, f"an interface ({name}) was put into it")
        session.gateway.note("interface-added", interface=name)
        try:
            await asyncio.to_thread(self._doors.drop_interfaces, session.record)
        except (KeyholeError, OSError) as error:
            self._say(f"pod {session.pod}: the interface {name} is still in it: {error}")
        async with self._alone(session.pod):
            await self._end(uid)


def _policy_name(examined: ExaminedPolicy) -> str:
    """The name of the KeyholePolicy whose file it is."""
    return examined.file.path.parent.name
