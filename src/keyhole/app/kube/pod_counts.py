"""Writes how many pods each policy has, from the reports of the agents of all nodes.

Each process of admission runs it: they write the same numbers, and only those that have changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from lightkube.types import PatchType

from keyhole.app.kube.pod_states import DoorState
from keyhole.app.kube.resources import AWAY, KeyholeNode, KeyholePolicy, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightkube import AsyncClient

COUNT_SECONDS = 10.0


async def keep_pod_counts(client: AsyncClient, say: Callable[[str], None]) -> None:
    """Keep `status.pods` of every policy current; never returns."""
    while True:
        try:
            await _count(client)
        except AWAY as error:
            say(f"the pods of policies were not counted: {error!r}")
        await asyncio.sleep(COUNT_SECONDS)


async def _count(client: AsyncClient) -> None:
    counts = count_pods([each async for each in client.list(KeyholeNode)])
    async for policy in client.list(KeyholePolicy, namespace="*"):
        namespace, name = key = key_of(policy)
        status: Any = policy.status
        if not isinstance(status, dict) or status.get("pods") != counts[key]:
            await client.patch(
                KeyholePolicy.Status, name, {"status": {"pods": counts[key]}},
                namespace=namespace, patch_type=PatchType.MERGE,
            )  # fmt: skip


def count_pods(nodes: Iterable[Any]) -> Counter[tuple[str, str]]:
    """Pods with an open door, by the namespace and the name of their policy."""
    return Counter(
        (pod.get("namespace", ""), pod.get("policy", ""))
        for node in nodes
        for pod in (node.status or {}).get("pods") or ()
        if pod.get("door") == DoorState.OPEN.value
    )
