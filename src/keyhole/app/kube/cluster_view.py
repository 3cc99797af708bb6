"""What the API server says about policies, Secrets and pods, kept as files for the gateway.

Policies are watched, and so are the Secrets of those that pods of this node are under. While the
API server is away, what it said last stays in force: pods that run go on, and new ones wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import PatchType
from msgspec import Struct

from keyhole.app.kube.cluster_wide import MAX_CLUSTER_WIDE, ClusterWide, selecting_namespace
from keyhole.app.kube.pod_admission import SEED, selecting
from keyhole.app.kube.policy_files import PolicyFiles, describe_faults, named_secrets
from keyhole.app.kube.policy_secrets import PolicySecrets
from keyhole.app.kube.probe_ports import probe_ports
from keyhole.app.kube.resources import (
    AWAY,
    MAX_NAMESPACE_POLICIES,
    NOT_FOUND,
    ClusterKeyholePolicy,
    ClusterPolicy,
    KeyholePolicy,
    PodIdentity,
    key_of,
    metadata_of,
)
from keyhole.app.kube.sandbox_claims import claimed_sandbox, find_claim
from keyhole.model.errors import KeyholeError, Refused
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from lightkube import AsyncClient
    from lightkube.generic_resource import Generic

    from keyhole.app.kube.resources import ApiObject, PodSelector
    from keyhole.app.kube.sandbox_claims import Claim
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy

MAX_POLICIES = 4096
"""Policies of a cluster that one node keeps."""

RETRY_SECONDS = 1.0
"""Pause before the API server is asked again after it failed."""

PEER_SECONDS = 2.0
"""How long the labels of a pod that connects to another one are remembered: a peer that connects
all the time must not make the agent ask the API server as often (I9)."""
MAX_PEERS = 256


async def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class HeldPolicy(Struct):
    """A policy as the API server has it."""

    policy: ClusterPolicy
    examined: ExaminedPolicy | None = None
    """As the gateway reads it; None: it is not valid, and no pod starts under it."""
    valid: ClusterPolicy | None = None
    """The version that is in force."""
    faults: tuple[str, ...] = ()


class KnownPod(Struct, frozen=True):
    """A pod that a policy selects."""

    pod: PodIdentity
    seed: str
    """Its placeholders are made of this."""
    policy: ExaminedPolicy
    labels: Mapping[str, str]
    probed: tuple[int, ...] = ()
    """The ports that its kubelet connects to."""
    sandbox: str = ""
    """Its Sandbox, if it has a door only while a SandboxClaim has that."""
    given: Mapping[str, str] = {}
    """Placeholders in its environment, which are older than its policy."""
    claimed: bool = False
    """Whether its policy is one for claims, which selects no pod by its labels."""


class ClusterView:
    """Policies by namespace and name."""

    def __init__(
        self,
        client: AsyncClient,
        files: PolicyFiles,
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._files = files
        self._say = say
        self._held: dict[tuple[str, str], HeldPolicy] = {}
        self._secrets = PolicySecrets(client, files, say)
        self._wide: dict[str, ClusterWide] = {}
        self._peers: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}
        self._namespaces: dict[str, dict[str, str]] = {}
        """The labels of each namespace."""
        self.removed: Callable[[Path], Awaitable[None]] = _ignore
        """Called with the file of a policy that is gone."""
        self.changed: Callable[[ExaminedPolicy, PodSelector], Awaitable[None]] = _ignore
        """Called with a policy that is valid and new or changed, and the pods that it is for."""
        self.known = asyncio.Event()
        """Set when the policies that there are have been read once."""
        self.following = False
        """Whether changes of policies are seen now."""

    def counted(self) -> tuple[int, int]:
        """How many policies are valid, and how many are not."""
        faulty = sum(bool(each.faults) for each in self._held.values())
        return len(self._held) - faulty, faulty

    async def known_pod(self, pod: PodIdentity) -> KnownPod:
        """The pod as the API server knows it, with the one policy that selects it. Raises Refused:
        a pod without exactly one valid policy does not start (I3)."""
        try:
            found = await self._client.get(Pod, pod.name, namespace=pod.namespace)
            sandbox = await claimed_sandbox(self._client, found)
        except AWAY as error:
            raise Refused(f"the API server does not know the pod {pod}: {error}") from None
        metadata = found.metadata
        if metadata is None or metadata.uid != pod.uid:
            raise Refused(f"the pod {pod} is another one now")
        account = found.spec.serviceAccountName if found.spec else None
        known = PodIdentity(pod.uid, pod.namespace, pod.name, account or "")
        await self.known.wait()
        own = [each.policy for key, each in self._held.items() if key[0] == pod.namespace]
        chosen = selecting(own, metadata.labels or {})
        if not chosen:
            raise Refused(f"no KeyholePolicy of {pod.namespace} selects the pod {pod.name}")
        if len(chosen) > 1:
            names = ", ".join(sorted(each.name for each in chosen))
            raise Refused(f"more than one KeyholePolicy selects the pod {pod}: {names}")
        seed = (metadata.annotations or {}).get(SEED, pod.uid)
        ports = probe_ports(found.to_dict())
        policy = self._valid(chosen[0])
        await self._secrets.use((pod.namespace, chosen[0].name), pod.uid)
        return KnownPod(known, seed, policy, metadata.labels or {}, ports, sandbox)

    async def claim_of(self, pod: PodIdentity) -> Claim | None:
        """The SandboxClaim that has a pod; None: there is none. Raises AWAY: nothing is known."""
        return await find_claim(self._client, pod)

    def release(self, pod: str) -> None:
        """A pod of this node is gone, or is under no policy now: forget its Secrets."""
        self._secrets.release(pod)

    async def is_there(self, pod: PodIdentity) -> bool:
        """Whether the API server has the pod, or does not say that it has not."""
        try:
            found = await self._client.get(Pod, pod.name, namespace=pod.namespace)
        except ApiError as error:
            return error.status.code != NOT_FOUND
        except AWAY:
            return True
        return found.metadata is not None and found.metadata.uid == pod.uid

    async def claimed_policy(self, pod: PodIdentity, claim: Claim) -> ExaminedPolicy | None:
        """The policy whose claimSelector selects the claim of a pod; None: the pod's own. Raises
        Refused."""
        own = [each.policy for key, each in self._held.items() if key[0] == pod.namespace]
        chosen = [each for each in own if each.claims.selects(claim.labels)]
        if len(chosen) > 1:
            names = ", ".join(sorted(each.name for each in chosen))
            raise Refused(f"more than one KeyholePolicy selects the claim {claim.name}: {names}")
        if not chosen:
            return None
        policy = self._valid(chosen[0])
        await self._secrets.use((pod.namespace, chosen[0].name), pod.uid)
        return policy

    def _valid(self, policy: ClusterPolicy) -> ExaminedPolicy:
        held = self._held[policy.namespace, policy.name]
        if held.examined is None:
            raise Refused(f"the KeyholePolicy {held.policy.name} is not valid: {held.faults[0]}")
        return held.examined

    async def labels_at(self, namespace: str, address: str) -> dict[str, str]:
        """The labels of the one pod of a namespace that runs and has this address; none if there
        is no such pod, or if it shares the address with its node."""
        now, key = asyncio.get_running_loop().time(), (namespace, address)
        known = self._peers.get(key)
        if known is not None and now - known[0] < PEER_SECONDS:
            return known[1]
        labels = await self._ask_labels(namespace, address)
        self._peers.pop(key, None)
        self._peers[key] = now, labels
        if len(self._peers) > MAX_PEERS:
            self._peers.pop(next(iter(self._peers)))
        return labels

    async def _ask_labels(self, namespace: str, address: str) -> dict[str, str]:
        try:
            listed = self._client.list(Pod, namespace=namespace, fields={"status.podIP": address})
            found = [each async for each in listed]
        except AWAY:
            return {}
        running = [each for each in found if each.status and each.status.phase == "Running"]
        if len(running) != 1 or (running[0].spec and running[0].spec.hostNetwork):
            return {}
        return dict((running[0].metadata and running[0].metadata.labels) or {})

    # ── policies ──────────────────────────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Read and follow the policies; never returns."""
        async with asyncio.TaskGroup() as tasks:
            wide, namespaces = asyncio.Event(), asyncio.Event()
            tasks.create_task(self._repeat(lambda: self._follow_cluster_wide(wide)))
            tasks.create_task(self._repeat(lambda: self._follow_namespaces(namespaces)))
            await wide.wait()
            await namespaces.wait()
            tasks.create_task(self._repeat(self._follow_policies))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except AWAY as error:
                self._say(f"the API server is away ({error!r}); policies stay as they are")
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_cluster_wide(self, first: asyncio.Event) -> None:
        listed = self._client.list(ClusterKeyholePolicy)
        found = {key_of(each)[1]: each async for each in listed}
        await self._take_cluster_wide(found)
        first.set()
        async for change, resource in self._client.watch(
            ClusterKeyholePolicy, resource_version=listed.resourceVersion
        ):
            found.pop(key_of(resource)[1], None)
            if change != "DELETED":
                found[key_of(resource)[1]] = resource
            await self._take_cluster_wide(found)

    async def _take_cluster_wide(self, found: Mapping[str, Generic]) -> None:
        """Hold every policy to the bounds of the cluster as they are now. Of a resource that cannot
        be read, the last valid version stays in force; without one, it closes what it selects."""
        held: dict[str, ClusterWide] = {}
        for name in sorted(found)[:MAX_CLUSTER_WIDE]:
            faults: tuple[str, ...] = ()
            try:
                held[name] = ClusterWide.read(found[name])
                await asyncio.to_thread(self._files.check_wide, held[name])
            except KeyholeError as error:
                faults = _described(error)
                before = self._wide.get(name)
                held[name] = before or ClusterWide(name, broken=faults[0])
            await self._report_wide(name, metadata_of(found[name]).generation or 0, faults)
        if len(found) > MAX_CLUSTER_WIDE:
            why = f"there are more than {MAX_CLUSTER_WIDE}"
            held[""] = ClusterWide("", broken=why)
        if held != self._wide:
            self._wide = held
            for each in list(self._held.values()):
                await self._hold(each.policy)

    async def _follow_namespaces(self, first: asyncio.Event) -> None:
        """Follow the labels of namespaces, by which ClusterKeyholePolicies select them."""
        listed = self._client.list(Namespace)
        found = {key_of(each)[1]: _labels(each) async for each in listed}
        for name in self._namespaces.keys() - found.keys():
            self._namespaces.pop(name)
        for name, labels in found.items():
            await self._take_namespace(name, labels)
        first.set()
        async for change, resource in self._client.watch(
            Namespace, resource_version=listed.resourceVersion
        ):
            if change == "DELETED":
                self._namespaces.pop(key_of(resource)[1], None)
            else:
                await self._take_namespace(key_of(resource)[1], _labels(resource))

    async def _take_namespace(self, name: str, labels: dict[str, str]) -> None:
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            for each in [held for key, held in self._held.items() if key[0] == name]:
                await self._hold(each.policy)

    async def _follow_policies(self) -> None:
        listed = self._client.list(KeyholePolicy, namespace="*")
        found = [each async for each in listed]
        seen = set(map(key_of, found))
        for key in [key for key in self._held if key not in seen]:
            await self._remove(key)
        for each in found:
            await self._take("MODIFIED", each)
        self.known.set()
        self.following = True
        try:
            async for change, resource in self._client.watch(
                KeyholePolicy, namespace="*", resource_version=listed.resourceVersion
            ):
                await self._take(change, resource)
        finally:
            self.following = False

    async def _take(self, change: str, resource: Generic) -> None:
        key = key_of(resource)
        if change == "DELETED":
            await self._remove(key)
            return
        before = self._held.get(key)
        if before is None and (many := self._too_many(key[0])):
            self._say(f"{key[0]}/{key[1]} is not kept: there are {many} policies already")
            return
        try:
            policy = ClusterPolicy.read(resource)
        except KeyholeError as error:
            self._say(f"the KeyholePolicy {key[0]}/{key[1]} is not used: {error}")
            return
        if before is None or before.policy != policy:
            await self._hold(policy)

    def _too_many(self, namespace: str) -> int:
        """The bound that another policy of a namespace would exceed; 0: none."""
        if len(self._held) >= MAX_POLICIES:
            return MAX_POLICIES
        own = sum(each == namespace for each, _ in self._held)
        return MAX_NAMESPACE_POLICIES if own >= MAX_NAMESPACE_POLICIES else 0

    async def _hold(self, policy: ClusterPolicy) -> None:
        """Have the gateway read it, if it is valid. Else the last valid one stays in force, if it
        still is within the bounds of the cluster; else the doors under it are closed."""
        key = (policy.namespace, policy.name)
        before = self._held.get(key)
        held = HeldPolicy(policy)
        labels = self._namespaces.get(policy.namespace)
        wide = selecting_namespace(list(self._wide.values()), labels)
        last = before.valid if before is not None else None
        for candidate in [policy] if last in (None, policy) else [policy, last]:
            try:
                held.examined = await asyncio.to_thread(self._files.write, candidate, wide)
                held.valid = candidate
                break
            except KeyholeError as error:
                held.faults = held.faults or _described(error)
        self._held[key] = held
        if held.examined is None:
            if before is not None and before.examined is not None:
                await self.removed(self._files.path(policy))
                self._files.remove_text(policy)
        else:
            names = named_secrets(held.examined.file.loaded.policy)
            self._secrets.set(policy, names)
            await self.changed(held.examined, (held.valid or policy).selector)
        await self._report(held)

    async def _remove(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            await self.removed(self._files.path(held.policy))
            self._secrets.remove(key)
            self._files.remove(held.policy)

    # ── status ────────────────────────────────────────────────────────────────────────────────────

    async def _report(self, held: HeldPolicy) -> None:
        """Write the status of a policy: valid or not, and each fault with its line and column."""
        policy, status = held.policy, _status(held.policy.generation, held.faults)
        try:
            await self._client.patch(
                KeyholePolicy.Status, policy.name, status,
                namespace=policy.namespace, patch_type=PatchType.MERGE,
            )  # fmt: skip
        except AWAY as error:
            self._say(f"the status of {policy.namespace}/{policy.name} was not written: {error!r}")

    async def _report_wide(self, name: str, generation: int, faults: tuple[str, ...]) -> None:
        if faults:
            self._say(f"the ClusterKeyholePolicy {name} is not valid: {faults[0]}")
        try:
            await self._client.patch(
                ClusterKeyholePolicy.Status, name, _status(generation, faults),
                patch_type=PatchType.MERGE,
            )  # fmt: skip
        except AWAY as error:
            self._say(f"the status of the ClusterKeyholePolicy {name} was not written: {error!r}")


def _status(generation: int, faults: tuple[str, ...]) -> dict[str, Any]:
    valid = "False" if faults else "True"
    return {"status": {"observedGeneration": generation, "valid": valid, "faults": list(faults)}}


def _described(error: KeyholeError) -> tuple[str, ...]:
    return describe_faults(error) if isinstance(error, PolicyFaults) else (str(error),)


def _labels(resource: ApiObject) -> dict[str, str]:
    return dict(metadata_of(resource).labels or {})
