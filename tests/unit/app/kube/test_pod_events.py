"""Events on pods: a hostile pod does not flood the API server (I9, I12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from keyhole.app.kube.pod_events import MAX_MESSAGE, NODE_BURST, POD_BURST, PodEvents
from keyhole.app.kube.resources import PodIdentity

if TYPE_CHECKING:
    from collections.abc import Callable


class Written:
    """Takes what would be sent to the API server."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def create(self, event: Any) -> None:  # noqa: ANN401
        self.events.append(event)


def write(refuse: Callable[[PodEvents], None]) -> list[Any]:
    """The events that are written."""

    async def run() -> list[Any]:
        client = Written()
        events = PodEvents(client, "node")  # type: ignore[arg-type]
        refuse(events)
        task = asyncio.ensure_future(events.write())
        for _ in range(200):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return client.events

    return asyncio.run(run())


def pod(number: int) -> PodIdentity:
    return PodIdentity(f"{number:04x}", "team", f"pod-{number}")


def test_a_refusal_is_an_event_on_its_pod() -> None:
    (event,) = write(lambda events: events.refused(pod(1), "one.example: no rule\x1b[31m"))
    assert event.involvedObject.uid == "0001"
    assert event.metadata.namespace == "team"
    assert event.type == "Warning"
    assert "\x1b" not in event.message
    assert event.message.startswith("one.example: no rule")


def test_one_pod_has_a_few_events_and_leaves_those_of_others_i12() -> None:
    def refuse(events: PodEvents) -> None:
        for _ in range(1000):
            events.refused(pod(1), "x" * 10_000)
        events.refused(pod(2), "other")

    found = write(refuse)
    assert len(found) == POD_BURST + 1
    assert found[-1].involvedObject.uid == "0002"
    assert len(found[0].message) == MAX_MESSAGE


def test_all_pods_together_have_a_rate_i9() -> None:
    def refuse(events: PodEvents) -> None:
        for number in range(2000):
            events.refused(pod(number), "no rule")

    assert len(write(refuse)) == NODE_BURST
