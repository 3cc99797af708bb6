"""What the API server says about policies, Secrets and pods, kept as files for the gateway.

Policies are watched, and so is each Secret that a valid policy names. While the API server is away,
what it said last stays in force: pods that run go on, and new ones wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import TYPE_CHECKING, Any

from httpx2 import HTTPError
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod
from lightkube.resources.core_v1 import Secret as SecretResource
from lightkube.types import PatchType
from msgspec import Struct, field

from keyhole.app.kube.pod_admission import SEED, selecting
from keyhole.app.kube.policy_files import (
    PolicyFiles,
    check_cluster_wide,
    describe_faults,
    named_secrets,
)
from keyhole.app.kube.resources import (
    ClusterKeyholePolicy,
    ClusterPolicy,
    KeyholePolicy,
    PodIdentity,
    key_of,
)
from keyhole.model.errors import KeyholeError, Refused
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lightkube import AsyncClient

    from keyhole.app.setup.policy_acceptance import ExaminedPolicy

MAX_POLICIES = 4096
"""Policies of a cluster that one node keeps."""

RETRY_SECONDS = 1.0
"""Pause before the API server is asked again after it failed."""

SECRET_SECONDS = 5.0
"""How long a new policy waits for a Secret that it names."""

AWAY = (ApiError, OSError, HTTPError)
"""Errors of an API server that is away, or that declines."""


async def _ignore(policy: Path) -> None:
    """Nobody wants to know."""


class HeldPolicy(Struct):
    """A policy as the API server has it."""

    policy: ClusterPolicy
    examined: ExaminedPolicy | None = None
    """As the gateway reads it; None: it was never valid, and no pod starts under it."""
    faults: tuple[str, ...] = ()
    secrets: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class KnownPod(Struct, frozen=True):
    """A pod that a policy selects."""

    pod: PodIdentity
    seed: str
    """Its placeholders are made of this."""
    policy: ExaminedPolicy


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
        self.removed: Callable[[Path], Awaitable[None]] = _ignore
        """Called with the file of a policy that is gone."""
        self.known = asyncio.Event()
        """Set when the policies that there are have been read once."""

    async def known_pod(self, pod: PodIdentity) -> KnownPod:
        """The pod as the API server knows it, with the one policy that selects it. Raises Refused:
        a pod without exactly one valid policy does not start (I3)."""
        try:
            found = await self._client.get(Pod, pod.name, namespace=pod.namespace)
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
        held = self._held[pod.namespace, chosen[0].name]
        if held.examined is None:
            raise Refused(f"the KeyholePolicy {held.policy.name} is not valid: {held.faults[0]}")
        return KnownPod(known, (metadata.annotations or {}).get(SEED, pod.uid), held.examined)

    # ── policies ──────────────────────────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Read and follow the policies; never returns."""
        async with asyncio.TaskGroup() as tasks:
            first = asyncio.Event()
            tasks.create_task(self._repeat(lambda: self._follow_cluster_wide(first)))
            await first.wait()
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

    async def _take_cluster_wide(self, found: dict[str, Any]) -> None:
        """Put the tables of the cluster behind every policy. There is one such resource; the first
        by name counts, so that a second one changes nothing."""
        text = ""
        for name in sorted(found)[:1]:
            spec = found[name].spec if isinstance(found[name].spec, dict) else {}
            given = spec.get("policy")
            try:
                check_cluster_wide(given if isinstance(given, str) else "")
                text = str(given or "")
            except Refused as error:
                self._say(f"the ClusterKeyholePolicy {name} is not used: {error}")
                text = self._files.cluster_wide
        if text != self._files.cluster_wide:
            self._files.cluster_wide = text
            for held in list(self._held.values()):
                await self._hold(held.policy)

    async def _follow_policies(self) -> None:
        listed = self._client.list(KeyholePolicy, namespace="*")
        found = [each async for each in listed]
        seen = set(map(key_of, found))
        for key in [key for key in self._held if key not in seen]:
            await self._remove(key)
        for each in found:
            await self._take("MODIFIED", each)
        self.known.set()
        async for change, resource in self._client.watch(
            KeyholePolicy, namespace="*", resource_version=listed.resourceVersion
        ):
            await self._take(change, resource)

    async def _take(self, change: str, resource: Any) -> None:  # noqa: ANN401 - of the API server
        key = key_of(resource)
        if change == "DELETED":
            await self._remove(key)
            return
        before = self._held.get(key)
        if before is None and len(self._held) >= MAX_POLICIES:
            self._say(f"{key[0]}/{key[1]} is not kept: there are {MAX_POLICIES} policies already")
            return
        try:
            policy = ClusterPolicy.read(resource)
        except KeyholeError as error:
            self._say(f"the KeyholePolicy {key[0]}/{key[1]} is not used: {error}")
            return
        if before is None or before.policy != policy:
            await self._hold(policy)

    async def _hold(self, policy: ClusterPolicy) -> None:
        """Have the gateway read it, if it is valid; else the last valid one stays in force."""
        key = (policy.namespace, policy.name)
        before = self._held.get(key)
        held = HeldPolicy(policy)
        if before is not None:
            held.examined, held.secrets = before.examined, before.secrets
        try:
            held.examined = await asyncio.to_thread(self._files.write, policy)
        except PolicyFaults as faults:
            held.faults = describe_faults(faults)
        except KeyholeError as error:
            held.faults = (str(error),)
        self._held[key] = held
        await self._read_secrets(held)
        await self._report(held)

    async def _remove(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            for task in held.secrets.values():
                task.cancel()
            await self.removed(self._files.path(held.policy))
            self._files.remove(held.policy)

    # ── Secrets ───────────────────────────────────────────────────────────────────────────────────

    async def _read_secrets(self, held: HeldPolicy) -> None:
        """Read the Secrets that a policy names, and follow them."""
        if held.examined is None:
            return
        names = set(named_secrets(held.examined.file.loaded.policy))
        for name in [name for name in held.secrets if name not in names]:
            held.secrets.pop(name).cancel()
        for name in names - held.secrets.keys():
            first = asyncio.Event()
            held.secrets[name] = asyncio.create_task(self._follow_secret(held.policy, name, first))
            with contextlib.suppress(TimeoutError):  # its service is closed until it is there
                await asyncio.wait_for(first.wait(), SECRET_SECONDS)

    async def _follow_secret(self, policy: ClusterPolicy, name: str, first: asyncio.Event) -> None:
        async def follow() -> None:
            async for change, resource in self._client.watch(
                SecretResource, namespace=policy.namespace, fields={"metadata.name": name}
            ):
                data = {} if change == "DELETED" else resource.data or {}
                values = {key: base64.b64decode(text) for key, text in data.items()}
                await asyncio.to_thread(self._files.write_secret, policy, name, values)
                first.set()

        await self._repeat(follow)

    # ── status ────────────────────────────────────────────────────────────────────────────────────

    async def _report(self, held: HeldPolicy) -> None:
        """Write the status of a policy: valid or not, and each fault with its line and column."""
        policy = held.policy
        status = {
            "observedGeneration": policy.generation,
            "valid": "False" if held.faults else "True",
            "faults": list(held.faults),
        }
        try:
            await self._client.patch(
                KeyholePolicy.Status, policy.name, {"status": status},
                namespace=policy.namespace, patch_type=PatchType.MERGE,
            )  # fmt: skip
        except AWAY as error:
            self._say(f"the status of {policy.namespace}/{policy.name} was not written: {error!r}")
