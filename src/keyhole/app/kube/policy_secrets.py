"""The Secrets of policies that pods of this node are under, kept as files for the gateway.

Attack: break one node, and read the credentials of all policies there. So a node asks for a Secret
when the first of its pods needs the policy that names it, and removes it when the last one is gone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import TYPE_CHECKING

from lightkube.resources.core_v1 import Secret as SecretResource
from msgspec import Struct, field

from keyhole.app.kube.resources import AWAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightkube import AsyncClient

    from keyhole.app.kube.policy_files import PolicyFiles
    from keyhole.app.kube.resources import ClusterPolicy

RETRY_SECONDS = 1.0
"""Pause before a watch that the API server ended is begun again."""

DECLINED_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0)
"""Pauses before a Secret is asked for again that the agent was not granted, by the number of tries.
An API server knows of a new role a moment after it was created."""

SECRET_SECONDS = 5.0
"""How long a new pod waits for the Secrets that its policy names."""


class FollowedSecret(Struct):
    """One Secret of a policy in use."""

    task: asyncio.Task[None]
    arrived: asyncio.Event
    """Set when the API server has sent it, or declined twice."""


class NamedSecrets(Struct):
    """The Secrets that a policy names, and who needs them."""

    policy: ClusterPolicy
    names: frozenset[str] = frozenset()
    pods: set[str] = field(default_factory=set)
    """The uids of this node's pods that are under the policy."""
    followed: dict[str, FollowedSecret] = field(default_factory=dict)


class PolicySecrets:
    """The Secrets of all policies, by the policy's namespace and name."""

    def __init__(self, client: AsyncClient, files: PolicyFiles, say: Callable[[str], None]) -> None:
        self._client = client
        self._files = files
        self._say = say
        self._policies: dict[tuple[str, str], NamedSecrets] = {}

    def set(self, policy: ClusterPolicy, names: Iterable[str]) -> None:
        """A policy is new or has changed, and names these Secrets."""
        key = (policy.namespace, policy.name)
        named = self._policies.setdefault(key, NamedSecrets(policy))
        named.names = frozenset(names)
        self._follow(named)

    def remove(self, key: tuple[str, str]) -> None:
        """A policy is gone."""
        named = self._policies.pop(key, None)
        if named is not None:
            named.names = frozenset()
            self._follow(named)

    async def use(self, key: tuple[str, str], uid: str) -> None:
        """A pod of this node is under a policy from now on. Waits for a while for its Secrets; the
        service of one that does not come is closed until it is there."""
        named = self._policies.get(key)
        if named is None:
            return
        named.pods.add(uid)
        self._follow(named)
        awaited = [each.arrived for each in named.followed.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECRET_SECONDS):
                for each in awaited:
                    await each.wait()
        for each in awaited:
            each.set()  # the next pod under this policy does not wait as long again

    def release(self, uid: str) -> None:
        """A pod is gone, or is not under its policies any more."""
        for named in self._policies.values():
            if uid in named.pods:
                named.pods.remove(uid)
                self._follow(named)

    def _follow(self, named: NamedSecrets) -> None:
        """Begin and end watches as the policy and its pods want it. Nothing waits for a Secret
        here: a policy whose Secret is missing must not hold those of other namespaces (I12)."""
        wanted = named.names if named.pods else frozenset()
        for name in named.followed.keys() - wanted:
            named.followed.pop(name).task.cancel()
            self._files.remove_secret(named.policy, name)
        for name in wanted - named.followed.keys():
            arrived = asyncio.Event()
            task = asyncio.create_task(self._watch(named.policy, name, arrived))
            named.followed[name] = FollowedSecret(task, arrived)

    async def _watch(self, policy: ClusterPolicy, name: str, arrived: asyncio.Event) -> None:
        said, declined = "", 0

        async def watch() -> None:
            nonlocal declined
            async for change, resource in self._client.watch(
                SecretResource, namespace=policy.namespace, fields={"metadata.name": name}
            ):
                data = {} if change == "DELETED" else resource.data or {}
                values = {key: base64.b64decode(text) for key, text in data.items()}
                # Not in a thread, which would go on writing after the watch was cancelled and the
                # Secret removed.
                self._files.write_secret(policy, name, values)
                arrived.set()
                declined = 0

        while True:
            pause = RETRY_SECONDS
            try:
                await watch()
            except AWAY as error:
                if str(error) != said:
                    self._say(f"the Secret {policy.namespace}/{name} is not followed: {error}")
                said, pause = str(error), DECLINED_SECONDS[declined]
                if declined:
                    arrived.set()
                declined = min(declined + 1, len(DECLINED_SECONDS) - 1)
            await asyncio.sleep(pause)
