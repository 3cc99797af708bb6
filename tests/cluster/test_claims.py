"""Pods of agent-sandbox's warm pools: closed until a SandboxClaim has them, by its real controller.

Each wall has the pod of a real claim as its control.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType, PatchType

from keyhole.app.kube.resources import Sandbox, SandboxClaim
from tests.rigs.kube.estate import POLICY, SECRET
from tests.rigs.kube.sandboxes import AgentSandbox, SandboxWarmPool
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.kube.estate import Estate

URL = "https://one.example/v1/claimed"
ASK = ("curl", "-sS", "--max-time", "5", "--cacert", "/etc/keyhole/bundle.pem")
WATCH = """
import os, socket, ssl, sys, time
context = ssl.create_default_context(cafile="/etc/keyhole/bundle.pem")
asked = "GET /v1/warm HTTP/1.1|host: one.example|authorization: Bearer {}|connection: close||"
asked = asked.format(os.environ["ONE_KEY"]).replace("|", "\\r\\n").encode()
question = bytes.fromhex("123401000001000000000000036f6e65076578616d706c650000010001")
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        # A question of its own: the resolver of the library waits five seconds for an answer.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
            names.settimeout(0.05)
            names.connect(("192.0.2.53", 53))
            names.send(question)
            address = socket.inet_ntoa(names.recv(512)[-4:])
        with socket.create_connection((address, 443), 2) as plain:
            with context.wrap_socket(plain, server_hostname="one.example") as sock:
                sock.sendall(asked)
                if sock.recv(12) == b"HTTP/1.1 200":
                    print(time.time())
                    sys.exit(0)
    except OSError:
        pass
    time.sleep(0.02)
sys.exit(1)
"""
"""Asks until it is answered, with the CA that it read when it started, and says when it was."""


@pytest.fixture(scope="module")
def sandboxes(estate: Estate) -> Iterator[AgentSandbox]:
    """agent-sandbox, with a warm pool of two."""
    made = AgentSandbox(estate)
    try:
        made.pool("pool", 2)
        yield made
        kinds: tuple[Any, ...] = (SandboxWarmPool, SandboxClaim, Sandbox)
        for kind in kinds:
            for each in list(estate.client.list(kind, namespace="default")):
                discard(estate, kind, each.metadata.name)
        until(lambda: not list(estate.client.list(Sandbox, namespace="default")), pause=0.2)
    finally:
        made.close()


def is_answered(estate: Estate, pod: str, namespace: str = "default") -> bool:
    """Whether a pod runs and gets an answer; one of a pool that was just filled may not run yet."""
    return estate.is_there(pod) and estate.inside(pod, *ASK, URL, namespace=namespace)[0] == 0


def is_closed(estate: Estate, pod: str, namespace: str = "default") -> bool:
    """Whether a pod reaches nobody, and has no interface to try."""
    links = estate.inside(pod, "ip", "-o", "link", namespace=namespace)[1]
    return len(links.strip().splitlines()) == 1 and not is_answered(estate, pod, namespace)


def bind(estate: Estate, sandboxes: AgentSandbox, claim: str) -> float:
    """Claim a pod of the pool; the seconds from the claim's status to the first answer in the pod.

    The program that asks was started before the claim, and is not started again.
    """
    warm = until_warm(sandboxes, 2)
    for each in warm:
        begin = f"python3 -c '{WATCH}' > /tmp/answered 2>&1 &"
        assert estate.inside(each, "/bin/sh", "-c", begin)[0] == 0
    begun = [_started(estate, each) for each in warm]
    sandboxes.claim(claim, "pool")
    given = sandboxes.given(claim)
    told = time.time()
    assert given in warm
    until(lambda: estate.inside(given, "cat", "/tmp/answered")[1].strip(), pause=0.1)  # noqa: S108
    answered = float(estate.inside(given, "cat", "/tmp/answered")[1])  # noqa: S108
    assert begun == [_started(estate, each) for each in warm], "no restart"
    return answered - told


def test_a_warm_pod_is_closed_until_it_is_claimed_i1_i2(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    warm = until_warm(sandboxes, 2)
    assert all(is_closed(estate, each) for each in warm)
    assert not estate.origin.credentials("/v1/claimed")
    bind(estate, sandboxes, "first")
    assert estate.origin.credentials("/v1/warm") == [f"Bearer {SECRET}"]
    [other] = [each for each in warm if each != sandboxes.given("first")]
    assert is_closed(estate, other), "the pod that nobody claimed"


@pytest.mark.attack
def test_a_claimed_pod_answers_within_a_second(estate: Estate, sandboxes: AgentSandbox) -> None:
    """By the middle one of five: beside other work a single one takes longer."""
    took = []
    for number in range(5):
        took.append(bind(estate, sandboxes, f"timed-{number}"))
        discard(estate, SandboxClaim, f"timed-{number}")
    sys.stderr.write(f"\nbound: {', '.join(f'{each:.2f}' for each in took)} s\n")
    assert statistics.median(took) < 1.0


def test_a_pod_that_waited_while_the_agent_was_restarted_is_opened_by_its_claim_i2(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    warm = until_warm(sandboxes, 2)
    estate.kill_agent()
    assert all(is_closed(estate, each) for each in warm)
    estate.start_agent()
    assert all(is_closed(estate, each) for each in warm)
    sandboxes.claim("patient", "pool")
    given = sandboxes.given("patient")
    assert given in warm
    until(lambda: is_answered(estate, given), pause=0.1, told=lambda: estate.said[-2000:])
    discard(estate, SandboxClaim, "patient")


def test_a_claim_that_is_deleted_closes_the_door_of_a_pod_that_stays_i2(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """The claim is deleted without its Sandbox: so the pod runs on, and nothing but Keyhole can
    have closed it."""
    sandboxes.claim("short", "pool")
    given = sandboxes.given("short")
    until(lambda: is_answered(estate, given), pause=0.1)
    estate.client.delete(SandboxClaim, "short", namespace="default", cascade=CascadeType.ORPHAN)
    until(lambda: not is_answered(estate, given), pause=0.1)
    assert estate.phase(given) == "Running"
    assert is_closed(estate, given)
    # A pod that ran for one claim is never given to another, which would find what it left.
    sandboxes.claim("heir", "pool")
    heir = sandboxes.given("heir")
    _adopt(estate, given, "heir")
    until(lambda: is_answered(estate, heir), pause=0.1)
    assert is_closed(estate, given)
    discard(estate, SandboxClaim, "heir")
    discard(estate, Sandbox, given)


def test_a_claimed_pod_whose_network_is_made_anew_has_its_door_again_i2(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """The runtime removes the network and makes another, for the same pod."""
    sandboxes.claim("lasting", "pool")
    given = sandboxes.given("lasting")
    until(lambda: is_answered(estate, given), pause=0.1, told=lambda: estate.said[-2000:])
    begun = _started(estate, given)
    estate.end_sandbox(given)

    def is_back() -> bool:
        try:
            return _started(estate, given) != begun and is_answered(estate, given)
        except (ApiError, OSError, AttributeError):
            return False

    until(is_back, pause=0.5, told=lambda: estate.said[-3000:])
    links = estate.inside(given, "ip", "-o", "link")[1]
    assert len(links.strip().splitlines()) == 1
    discard(estate, SandboxClaim, "lasting")


def test_a_pod_is_opened_when_its_sandbox_says_whose_it_is_after_the_claim_did_i5(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """Nothing changes the claim afterwards, so only a further look finds it."""
    late = until_warm(sandboxes, 2)[0]
    with sandboxes.away():
        sandboxes.claim("hasty", "pool")
        status = {"status": {"sandbox": {"name": late}}}
        _patch(estate, SandboxClaim.Status, "hasty", status)
        assert is_closed(estate, late), "the control: the Sandbox is the pool's"
        _adopt(estate, late, "hasty")
        until(lambda: is_answered(estate, late), pause=0.1, told=lambda: estate.said[-2000:])
    discard(estate, SandboxClaim, "hasty")
    discard(estate, Sandbox, late)


FORGERIES: dict[str, Callable[[Estate, str, str, Any], None]] = {}


def forgery(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def enter(work: Callable[..., None]) -> Callable[..., None]:
        FORGERIES[name] = work
        return work

    return enter


@forgery("the claim's uid in the pod's labels")
def _label(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    labels = {"agents.x-k8s.io/claim-uid": claim.metadata.uid}
    _patch(estate, Pod, warm, {"metadata": {"labels": labels}})


@forgery("the annotations of the claimed pod and Sandbox")
def _annotate(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    for kind in (Pod, Sandbox):
        found: Any = estate.client.get(kind, given, namespace="default")
        copied = {k: v for k, v in (found.metadata.annotations or {}).items() if "keyhole" not in k}
        _patch(estate, kind, warm, {"metadata": {"annotations": copied}})


@forgery("the claimed Sandbox as the pod's owner")
def _own_pod(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    found: Any = estate.client.get(Pod, given, namespace="default")
    _patch(estate, Pod, warm, {"metadata": {"ownerReferences": _owners(found)}})


@forgery("no owner at all")
def _disown(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    _patch(estate, Pod, warm, {"metadata": {"ownerReferences": []}})


@forgery("the claim as the Sandbox's owner")
def _own_sandbox(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    _adopt(estate, warm, claim.metadata.name)


@forgery("the Sandbox's name in the claim's annotations")
def _name(estate: Estate, warm: str, given: str, claim: Any) -> None:  # noqa: ANN401
    annotations = {"agents.x-k8s.io/sandbox-name": warm}
    _patch(estate, SandboxClaim, claim.metadata.name, {"metadata": {"annotations": annotations}})


def test_no_label_annotation_or_owner_opens_the_door_of_an_unclaimed_pod_i5(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """agent-sandbox's controller is away meanwhile, so that it repairs nothing: what holds here is
    Keyhole's own. The pod of a real claim is the control."""
    sandboxes.claim("real", "pool")
    given = sandboxes.given("real")
    until(lambda: is_answered(estate, given), pause=0.1)
    warm = until_warm(sandboxes, 2)[0]
    with sandboxes.away():
        claim: Any = estate.client.get(SandboxClaim, "real", namespace="default")
        # One after the other, so that each is tried together with those before it.
        for way, forge in FORGERIES.items():
            forge(estate, warm, given, claim)
            # The agent hears of the claim again.
            _patch(estate, SandboxClaim, "real", {"metadata": {"labels": {"told": str(len(way))}}})
            assert is_closed(estate, warm), way
        # An agent looks at every pod again when it starts.
        estate.kill_agent()
        estate.start_agent()
        until(lambda: is_answered(estate, given), pause=0.1)
        assert is_closed(estate, warm)
    discard(estate, SandboxClaim, "real")
    discard(estate, Sandbox, warm)


def test_a_claim_of_another_namespace_opens_nothing_here_i5(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """Its status names a Sandbox that is here. Then a claim of this namespace with the same name,
    and the same status, does the same: the Sandbox is not its own, and stays closed too."""
    estate.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    here = until_warm(sandboxes, 2)[0]
    with sandboxes.away():
        for namespace in ("elsewhere", "default"):
            sandboxes.claim("stranger", "pool", namespace=namespace)
            status = {"status": {"sandbox": {"name": here}}}
            _patch(estate, SandboxClaim.Status, "stranger", status, namespace=namespace)
            assert is_closed(estate, here)
        _adopt(estate, here, "stranger")  # the control: with an owner it is whole
        _patch(
            estate, SandboxClaim, "stranger", {"metadata": {"labels": {"told": "again"}}},
        )  # fmt: skip
        until(lambda: is_answered(estate, here), pause=0.1)
    for namespace in ("elsewhere", "default"):
        discard(estate, SandboxClaim, "stranger", namespace)
    discard(estate, Sandbox, here)


def test_two_claims_that_race_for_one_pod_have_a_pod_each_i5(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    """One of them is given the warm pod; the other one's is started for it."""
    sandboxes.pool("single", 1)
    [warm] = sandboxes.warm("single")
    sandboxes.claim("left", "single")
    sandboxes.claim("right", "single")
    given = [sandboxes.given("left"), sandboxes.given("right")]
    assert warm in given
    assert given[0] != given[1]
    for each in given:
        until(lambda each=each: is_answered(estate, each), pause=0.2)  # type: ignore[misc]
    claims = [estate.audited(each, "claimed") for each in given]
    assert [[event["claim"] for event in each] for each in claims] == [["left"], ["right"]]
    for name in ("left", "right"):
        discard(estate, SandboxClaim, name)


def test_a_policy_for_claims_brings_its_own_credential_and_the_templates_placeholders_i1(
    estate: Estate, sandboxes: AgentSandbox
) -> None:
    policy = estate.policy("tenant", POLICY.replace("kube:one/", "kube:tenant/"))
    policy["spec"] = {
        "claimSelector": {"matchLabels": {"tenant": "blue"}}, "policy": policy["spec"]["policy"],
    }  # fmt: skip
    secret = {
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "blue-made-up-0123456789"},
        "metadata": {"name": "tenant", "namespace": "default"},
    }  # fmt: skip
    estate.apply(secret, policy)
    for claim, labels, held in (
        ("blue", {"tenant": "blue"}, "blue-made-up-0123456789"),
        ("grey", {}, SECRET),
    ):
        sandboxes.claim(claim, "pool", labels=labels)
        given = sandboxes.given(claim)
        path = f"/v1/for-{claim}"
        script = f'curl -sS -H "Authorization: Bearer $ONE_KEY" https://one.example{path}'
        until(
            lambda given=given, script=script: (
                estate.inside(given, "/bin/sh", "-c", script)[0]  # type: ignore[misc]
                == 0
            ),
            pause=0.1,
        )
        assert estate.origin.credentials(path)[-1] == f"Bearer {held}"
        discard(estate, SandboxClaim, claim)


def discard(estate: Estate, kind: Any, name: str, namespace: str = "default") -> None:  # noqa: ANN401
    """Delete an object, if the collector of garbage has not."""
    with contextlib.suppress(ApiError):
        estate.client.delete(kind, name, namespace=namespace)


def until_warm(sandboxes: AgentSandbox, count: int) -> list[str]:
    """The warm pods of the pool, when there are so many that run."""
    until(lambda: len(sandboxes.running("pool")) >= count, pause=0.2, told=lambda: sandboxes.said)
    return sandboxes.running("pool")


def _started(estate: Estate, pod: str) -> str:
    found: Any = estate.client.get(Pod, pod, namespace="default")
    return str(found.status.containerStatuses[0].state.running.startedAt)


def _patch(estate: Estate, kind: Any, name: str, patch: Any, namespace: str = "default") -> None:  # noqa: ANN401
    estate.client.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.MERGE)


def _owners(thing: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return [each.to_dict() for each in thing.metadata.ownerReferences or ()]


def _owner_reference(claim: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "name": claim.metadata.name, "uid": claim.metadata.uid, "controller": True,
    }  # fmt: skip


def _adopt(estate: Estate, sandbox: str, claim: str) -> None:
    """Write a claim as the controller of a Sandbox, as a user could who may patch Sandboxes."""
    found: Any = estate.client.get(SandboxClaim, claim, namespace="default")
    owners = [_owner_reference(found)]
    _patch(estate, Sandbox, sandbox, {"metadata": {"ownerReferences": owners}})
