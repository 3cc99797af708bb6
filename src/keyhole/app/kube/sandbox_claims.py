"""Which SandboxClaim has a pod of agent-sandbox, as the API server says.

A pod of a warm pool starts before anybody wants it, and has no door. When a SandboxClaim is given
its Sandbox, `pod_sessions.py` opens the door under the policy for that claim. Attack: a user who
may patch pods or Sandboxes writes the labels, annotations and owners of a claimed one on another.
So every link is asked for at the API server and must hold in both directions; the last one, the
claim's status, is written by agent-sandbox's controller alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import TYPE_CHECKING, TypeVar

from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.resources.core_v1 import Pod
from msgspec import Struct

from keyhole.app.kube.resources import (
    AWAY,
    CLAIMS,
    NOT_FOUND,
    SANDBOXES,
    Sandbox,
    SandboxClaim,
    key_of,
    metadata_of,
    status_of,
)
from keyhole.model.errors import KeyholeError, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from lightkube import AsyncClient
    from lightkube.generic_resource import Generic

    from keyhole.app.kube.resources import ApiObject, PodIdentity

POD_NAME = "agents.x-k8s.io/pod-name"
"""The annotation of a Sandbox that names its pod; without it, the pod has the Sandbox's name."""

RETRY_SECONDS = 1.0
"""Pause before the API server is asked again after it failed."""

MAX_PAUSE = 30.0
"""The longest pause before a pod is settled again; each failure doubles it."""

MAX_LOOKS = 6
"""Looks at a pod that stays closed, after each change: its claim's status may be seen before the
Sandbox says whose it is, and Sandboxes are not followed. The last is about half a minute later."""


_Kind = TypeVar("_Kind", Pod, GenericNamespacedResource)


class Settled(enum.Enum):
    """How a pod is after its claim was asked for."""

    CLOSED = "closed"
    OPEN = "open"
    GONE = "gone"


class Claim(Struct, frozen=True):
    """A SandboxClaim that was given a pod."""

    uid: str
    name: str
    labels: Mapping[str, str]


class ClaimChange(Struct, frozen=True):
    """A change of a SandboxClaim."""

    namespace: str
    uid: str
    sandbox: str
    """The Sandbox that it was given, or nothing."""
    valid: bool
    """Whether it is neither deleted nor being deleted."""


def controller_of(resource: ApiObject, group: str) -> tuple[str, str, str]:
    """The kind, name and uid of an object's controller, if that is of a group; else empty."""
    for owner in metadata_of(resource).ownerReferences or ():
        if owner.controller and owner.apiVersion.partition("/")[0] == group:
            return owner.kind, owner.name, owner.uid
    return "", "", ""


async def claimed_sandbox(client: AsyncClient, pod: ApiObject) -> str:
    """The name of a pod's Sandbox, if that belongs to a warm pool or a claim; else empty: a Sandbox
    that a user made is a pod like any other. Raises Refused."""
    kind, name, uid = controller_of(pod, SANDBOXES)
    if kind != "Sandbox":
        return ""
    sandbox = await _get(client, Sandbox, name, key_of(pod)[0], uid)
    if sandbox is None:
        raise Refused(f"the Sandbox {name} is another one now")
    return name if controller_of(sandbox, CLAIMS)[0] else ""


async def find_claim(client: AsyncClient, pod: PodIdentity) -> Claim | None:
    """The claim that was given a pod; None: there is none. Raises ApiError and the like: then
    nothing is known."""
    # 1. The pod is the one that the kubelet named, and a Sandbox controls it.
    found = await _get(client, Pod, pod.name, pod.namespace, pod.uid)
    if found is None:
        return None
    kind, name, uid = controller_of(found, SANDBOXES)
    if kind != "Sandbox":
        return None
    # 2. The Sandbox has this pod, and a claim controls it.
    sandbox = await _get(client, Sandbox, name, pod.namespace, uid)
    if sandbox is None or (metadata_of(sandbox).annotations or {}).get(POD_NAME, name) != pod.name:
        return None
    kind, claimed_by, uid = controller_of(sandbox, CLAIMS)
    if kind != "SandboxClaim":
        return None
    # 3. The claim is there, and its status names this Sandbox.
    claim = await _get(client, SandboxClaim, claimed_by, pod.namespace, uid)
    if claim is None or not _names(claim, name):
        return None
    return Claim(uid, claimed_by, dict(metadata_of(claim).labels or {}))


def _names(claim: Generic, sandbox: str) -> bool:
    return metadata_of(claim).deletionTimestamp is None and _given_sandbox(claim) == sandbox


def _given_sandbox(claim: Generic) -> str:
    given = status_of(claim).get("sandbox")
    name = given.get("name") if isinstance(given, dict) else None
    return name if isinstance(name, str) else ""


def _read_change(change: str, claim: Generic) -> ClaimChange:
    metadata = metadata_of(claim)
    gone = change == "DELETED" or metadata.deletionTimestamp is not None
    return ClaimChange(key_of(claim)[0], metadata.uid or "", _given_sandbox(claim), not gone)


async def _get(
    client: AsyncClient, kind: type[_Kind], name: str, namespace: str, uid: str
) -> _Kind | None:
    """An object with this uid; None: there is none now."""
    try:
        found = await client.get(kind, name, namespace=namespace)
    except ApiError as error:
        if error.status.code == NOT_FOUND:
            return None
        raise
    return found if metadata_of(found).uid == uid else None


class ClaimWatch:
    """Follows the claims of the cluster, and has pods settled that a change is about.

    Each pod has a task of its own, which sees the last of many changes: a user who changes a claim
    in a loop delays nobody but the claim's own pod (I12).
    """

    def __init__(
        self,
        client: AsyncClient,
        concerned: Callable[[ClaimChange | None], Iterable[str]],
        settle: Callable[[str], Awaitable[Settled]],
        say: Callable[[str], None],
    ) -> None:
        """`concerned` lists the pods that a change is about, or all. `settle` asks for the claim of
        one, and opens or closes its door."""
        self._client = client
        self._concerned = concerned
        self._settle = settle
        self._say = say
        self._needed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._news: dict[str, asyncio.Event] = {}

    def want(self, uid: str) -> None:
        """A pod waits for a claim. Until one does, nothing is asked: most clusters have no
        claims."""
        self._needed.set()
        self._tell([uid])

    async def follow(self) -> None:
        """Follow the claims; never returns."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as self._tasks:
            while True:
                try:
                    await self._follow()
                except AWAY as error:
                    self._say(f"claims cannot be followed ({error!r}); doors stay as they are")
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        listed = self._client.list(SandboxClaim, namespace="*")
        async for _ in listed:
            pass
        # Each pod asks for its own claim: a change that was missed is found there.
        self._tell(self._concerned(None))
        async for change, claim in self._client.watch(
            SandboxClaim, namespace="*", resource_version=listed.resourceVersion
        ):
            self._tell(self._concerned(_read_change(change, claim)))

    def _tell(self, pods: Iterable[str]) -> None:
        if self._tasks is None:
            return  # all pods are told when it begins to follow
        for uid in pods:
            if uid not in self._news:
                self._news[uid] = asyncio.Event()
                self._tasks.create_task(self._serve(uid, self._news[uid]))
            self._news[uid].set()

    async def _serve(self, uid: str, news: asyncio.Event) -> None:
        """Settle a pod after every change, again after a failure, and a few times while it stays
        closed."""
        pause: float | None = None
        looks = 0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), pause)
                if news.is_set():
                    news.clear()
                    pause, looks = None, 0
                again = min(2 * pause, MAX_PAUSE) if pause else RETRY_SECONDS
                try:
                    settled = await self._settle(uid)
                except (KeyholeError, *AWAY) as error:
                    self._say(f"the door of the pod {uid} stays as it is: {error}")
                    pause = again
                    continue
                if settled is Settled.GONE and not news.is_set():
                    return
                looks += 1
                pause = again if settled is Settled.CLOSED and looks < MAX_LOOKS else None
        finally:
            del self._news[uid]
