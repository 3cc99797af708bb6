"""Which claim has a pod: every link must hold, in both directions (I5). The real API server and
controller are in tests/cluster; here a table stands for the objects, so that each can be bent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.app.kube import sandbox_claims
from keyhole.app.kube.resources import PodIdentity, Sandbox, SandboxClaim
from keyhole.app.kube.sandbox_claims import (
    MAX_LOOKS,
    POD_NAME,
    ClaimWatch,
    Settled,
    claimed_sandbox,
    find_claim,
)
from keyhole.model.errors import Refused
from tests.rigs.waiting import until_in_loop

POD = PodIdentity("u-pod", "team", "box")


def owner(kind: str, name: str, group: str, *, controller: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        apiVersion=f"{group}/v1beta1", kind=kind, name=name, uid=f"u-{name}", controller=controller
    )


def thing(uid: str, *owners: object, status: object = None, **annotations: str) -> SimpleNamespace:
    metadata = SimpleNamespace(
        uid=uid, name=uid, namespace="team", ownerReferences=list(owners),
        labels={"tenant": "blue"},
        annotations={key.replace("_", "/"): value for key, value in annotations.items()},
        deletionTimestamp=None,
    )  # fmt: skip
    return SimpleNamespace(metadata=metadata, status=status)


class Objects:
    """What the API server has: a pod, its Sandbox and the claim that was given that."""

    def __init__(self) -> None:
        self.pod = thing("u-pod", owner("Sandbox", "sandbox", "agents.x-k8s.io"))
        self.sandbox = thing(
            "u-sandbox", owner("SandboxClaim", "claim", "extensions.agents.x-k8s.io")
        )
        self.sandbox.metadata.annotations[POD_NAME] = "box"
        self.claim = thing("u-claim", status={"sandbox": {"name": "sandbox"}})
        self.asked: list[tuple[str, str]] = []

    async def get(self, kind: object, name: str, namespace: str) -> Any:  # noqa: ANN401
        self.asked.append((name, namespace))
        if kind is Sandbox:
            return self.sandbox
        return self.claim if kind is SandboxClaim else self.pod

    def found(self) -> Any:  # noqa: ANN401
        return asyncio.run(find_claim(self, POD))  # type: ignore[arg-type]


def test_a_claim_whose_status_names_the_sandbox_of_the_pod_has_it() -> None:
    objects = Objects()
    claim = objects.found()
    assert (claim.uid, claim.name, claim.labels) == ("u-claim", "claim", {"tenant": "blue"})
    assert {namespace for _, namespace in objects.asked} == {"team"}, "of its own namespace alone"


def _deleted(objects: Objects) -> None:
    objects.claim.metadata.deletionTimestamp = "now"


BENT: dict[str, Any] = {
    "another pod of that name": lambda o: setattr(o.pod.metadata, "uid", "other"),
    "a pod without an owner": lambda o: setattr(o.pod.metadata, "ownerReferences", None),
    "an owner that is not the controller": lambda o: setattr(
        o.pod.metadata.ownerReferences[0], "controller", False
    ),
    "an owner of another group": lambda o: setattr(
        o.pod.metadata.ownerReferences[0], "apiVersion", "apps/v1"
    ),
    "an owner of another kind": lambda o: setattr(
        o.pod.metadata.ownerReferences[0], "kind", "Other"
    ),
    "another Sandbox of that name": lambda o: setattr(o.sandbox.metadata, "uid", "other"),
    "a Sandbox with another pod": lambda o: o.sandbox.metadata.annotations.update(
        {POD_NAME: "other"}
    ),
    "a Sandbox of a pool": lambda o: setattr(
        o.sandbox.metadata.ownerReferences[0], "kind", "SandboxWarmPool"
    ),
    "another claim of that name": lambda o: setattr(o.claim.metadata, "uid", "other"),
    "a claim that is being deleted": _deleted,
    "a claim with another Sandbox": lambda o: setattr(
        o.claim, "status", {"sandbox": {"name": "other"}}
    ),
    "a claim without a status": lambda o: setattr(o.claim, "status", None),
    "a status of another shape": lambda o: setattr(o.claim, "status", {"sandbox": ["sandbox"]}),
    "a name of another shape": lambda o: setattr(o.claim, "status", {"sandbox": {"name": 1}}),
}


@pytest.mark.parametrize("way", BENT)
def test_a_link_that_does_not_hold_is_no_claim_i5(way: str) -> None:
    objects = Objects()
    assert objects.found() is not None, "the control"
    BENT[way](objects)
    assert objects.found() is None


@pytest.mark.parametrize(
    ("kind", "needs"), [("SandboxWarmPool", "sandbox"), ("SandboxClaim", "sandbox"), ("", "")]
)
def test_a_pod_needs_a_claim_if_its_sandbox_belongs_to_a_pool_or_a_claim_i3(
    kind: str, needs: str
) -> None:
    objects = Objects()
    owners = [owner(kind, "x", "extensions.agents.x-k8s.io")] if kind else []
    objects.sandbox.metadata.ownerReferences = owners
    assert asyncio.run(claimed_sandbox(objects, objects.pod)) == needs  # type: ignore[arg-type]
    objects.pod.metadata.ownerReferences = []
    assert asyncio.run(claimed_sandbox(objects, objects.pod)) == ""  # type: ignore[arg-type]


def test_a_pod_whose_sandbox_is_another_one_does_not_start_i3() -> None:
    objects = Objects()
    objects.sandbox.metadata.uid = "other"
    with pytest.raises(Refused):
        asyncio.run(claimed_sandbox(objects, objects.pod))  # type: ignore[arg-type]


def test_many_changes_of_a_claim_settle_its_pod_once_more_and_delay_no_other_i12() -> None:
    """One pod hangs; the other is settled, and again after it failed."""

    async def main() -> None:
        settled: list[str] = []
        said: list[str] = []
        hang = asyncio.Event()

        async def settle(uid: str) -> Settled:
            settled.append(uid)
            if uid == "slow":
                await hang.wait()
            elif settled.count("other") == 1:
                raise Refused("not yet")
            return Settled.GONE if uid == "other" else Settled.OPEN

        watch = ClaimWatch(Silent(), lambda _: [], settle, said.append)  # type: ignore[arg-type]
        following = asyncio.create_task(watch.follow())
        watch.want("slow")
        await until_in_loop(lambda: watch._tasks is not None)
        for _ in range(100):
            watch.want("slow")
        watch.want("other")
        await until_in_loop(lambda: settled.count("other") == 2)
        assert settled.count("slow") == 1
        assert said == ["the door of the pod other stays as it is: not yet"]
        watch.want("slow")
        hang.set()
        await until_in_loop(lambda: settled.count("slow") == 2)
        following.cancel()

    asyncio.run(main())


def test_a_pod_whose_claim_is_seen_before_its_sandboxes_owner_is_looked_at_again_i9(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing tells the agent that the owner was written, so it looks; a pod that nobody claims is
    not looked at for ever."""
    monkeypatch.setattr(sandbox_claims, "RETRY_SECONDS", 0.001)

    async def main() -> None:
        looks: list[str] = []

        async def settle(uid: str) -> Settled:
            looks.append(uid)
            late = uid == "late" and looks.count(uid) == 3
            return Settled.OPEN if late else Settled.CLOSED

        watch = ClaimWatch(Silent(), lambda _: [], settle, looks.append)  # type: ignore[arg-type]
        following = asyncio.create_task(watch.follow())
        watch.want("late")
        await until_in_loop(lambda: watch._tasks is not None)
        for uid in ("late", "warm"):
            watch.want(uid)
        await until_in_loop(lambda: looks.count("warm") == MAX_LOOKS)
        await asyncio.sleep(0.1)
        assert (looks.count("late"), looks.count("warm")) == (3, MAX_LOOKS)
        watch.want("warm")
        await until_in_loop(lambda: looks.count("warm") == 2 * MAX_LOOKS)
        following.cancel()

    asyncio.run(main())


class Silent:
    """An API server without a change."""

    def list(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        return Listing()

    async def watch(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        await asyncio.Event().wait()
        yield ""


class Listing:
    """An empty list."""

    resourceVersion = "1"

    def __aiter__(self) -> Listing:
        return self

    async def __anext__(self) -> None:
        raise StopAsyncIteration
