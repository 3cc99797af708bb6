"""What happens to pods when agents, policies, the API server and networks come and go (I2)."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Pod

from keyhole.app.kube.pod_events import POD_BURST, REASON
from keyhole.app.kube.resources import ClusterKeyholePolicy, KeyholePolicy
from tests.rigs.kube.estate import POLICY, SERVED, kill_entered, secret
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.kube.estate import Estate

ROLE = "lasting"
ASK = ("curl", "-sS", "--max-time", "20", "--cacert", "/tmp/ca.pem")  # noqa: S108 - in a pod
COPY = "import shutil; shutil.copy('/etc/keyhole/ca.pem', '/tmp/ca.pem')"


def _answers(estate: Estate, pod: str, path: str = "/v1/life") -> bool:
    try:
        return estate.inside(pod, *ASK, f"https://one.example{path}")[0] == 0
    except (ApiError, OSError):
        return False


def _identity(estate: Estate, name: str) -> tuple[str, int]:
    """The uid of a pod, and how often its container was started again."""
    pod = estate.client.get(Pod, name, namespace="default")
    statuses = (pod.status.containerStatuses if pod.status else None) or []
    uid = (pod.metadata.uid if pod.metadata else None) or ""
    return uid, sum(each.restartCount for each in statuses)


@pytest.fixture(scope="module")
def lasting(estate: Estate) -> Iterator[str]:
    """A pod under a policy of its own, with a copy of the CA that it was started with."""
    estate.apply(estate.policy(ROLE, POLICY, role=ROLE))
    pod = estate.pod("lasting", selected=False)
    pod["metadata"]["labels"] = {"role": ROLE}
    estate.create(pod)
    until(lambda: estate.phase("lasting") == "Running", told=lambda: estate.said[-3000:])
    assert estate.inside("lasting", "python3", "-c", COPY)[0] == 0
    assert _answers(estate, "lasting")
    yield "lasting"
    estate.remove("lasting")
    estate.client.delete(KeyholePolicy, ROLE, namespace="default")


def test_the_next_agent_signs_with_the_same_ca_and_restarts_no_pod_i2(
    estate: Estate, lasting: str
) -> None:
    """The copy is what a program has read at its start."""
    before = _identity(estate, lasting)
    estate.kill_agent()
    try:
        assert not _answers(estate, lasting)
    finally:
        estate.start_agent()
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])
    assert _identity(estate, lasting) == before
    kept = estate.on_node("/usr/bin/find", "/run/keyhole/pods", "-printf", "%f %m %u\n")
    assert f"{before[0]}.pem 600 root" in kept
    assert "pods 700 root" in kept


def test_a_worker_that_dies_closes_a_door_and_the_agent_opens_it_again_i2(
    estate: Estate, lasting: str
) -> None:
    before = estate.said.count("default/lasting: its door is served")
    for pid in estate.processes("keyhole.app.daemon.data_plane"):
        estate.on_node("/bin/kill", "-9", pid)
    until(lambda: estate.said.count("default/lasting: its door is served") > before)
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])


def test_a_second_agent_on_a_node_does_not_start_and_the_first_goes_on(
    estate: Estate, lasting: str
) -> None:
    second = subprocess.run(
        estate.words("kube", "agent", "--node", "node"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert second.returncode != 0, second.stdout
    assert "already" in second.stderr, second.stderr
    assert _answers(estate, lasting)


def test_of_two_agents_that_start_at_once_one_serves_and_the_other_ends_i2(
    estate: Estate, lasting: str
) -> None:
    estate.kill_agent()
    began = estate.said.count(SERVED)
    words = estate.words("kube", "agent", "--node", "node")
    rival = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    estate.launch_agent()
    until(lambda: (rival.poll() is None) != estate.agent_runs, told=lambda: estate.said[-3000:])
    if rival.poll() is None:
        # The other way round, so that the agent of the tests is the one that serves.
        kill_entered(rival)
        estate.launch_agent()
    until(lambda: estate.said.count(SERVED) > began, told=lambda: estate.said[-3000:])
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])
    assert _links(estate, lasting) == 1


def _links(estate: Estate, pod: str) -> int:
    """How many interfaces a pod has; one is `lo`."""
    return len(estate.inside(pod, "ip", "-o", "link")[1].strip().splitlines())


def test_an_interface_that_is_put_into_a_pod_is_taken_out_and_its_door_closed_i2(
    estate: Estate, lasting: str
) -> None:
    """As a further network plugin or a driver of devices may do it after the pod has started."""
    pod = estate.pod("invaded", selected=False)
    pod["metadata"]["labels"] = {"role": ROLE}
    before = set(estate.on_node("/bin/ls", "/run/netns").split())
    estate.create(pod)
    until(lambda: estate.phase("invaded") == "Running", told=lambda: estate.said[-3000:])
    try:
        made = set(estate.on_node("/bin/ls", "/run/netns").split()) - before
        (network,) = [each for each in made if estate.links(each) == {"lo"}]
        with estate.spare_network() as spare:
            veth = ("link", "add", "far", "type", "veth", "peer", "name", "near")
            estate.on_node("/sbin/ip", *veth)
            estate.on_node("/sbin/ip", "link", "set", "far", "netns", spare)
            assert "far" in estate.links(spare), "the control: elsewhere one stays"
            estate.on_node("/sbin/ip", "link", "set", "near", "netns", network)
            until(lambda: estate.links(network) == {"lo"}, pause=0.1)
        asked = ("curl", "-sS", "--max-time", "5", "https://one.example/v1/invaded")
        until(lambda: estate.inside("invaded", *asked)[0] != 0, pause=0.2)
        assert estate.audited("invaded", "interface-added") == [{"interface": "near"}]
        assert _answers(estate, lasting), "another pod goes on"
    finally:
        estate.remove("invaded")


def test_a_node_keeps_the_secrets_of_policies_that_its_pods_are_under_and_no_others_i1(
    estate: Estate, lasting: str
) -> None:
    """Both policies are valid, and the agent may read both Secrets."""

    def kept() -> set[str]:
        found = "/var/lib/keyhole/cluster/policies/default"
        listed = estate.on_node("/usr/bin/find", found, "-path", "*/secrets/*", "-type", "f")
        return {each.removeprefix(f"{found}/") for each in listed.split()}

    idle = POLICY.replace("kube:one/", "kube:idle/")
    estate.apply(secret("idle", "made-up-and-unused-0123456789"))
    estate.apply(estate.policy("idle", idle, role="idle"))
    until(lambda: _status(estate, "idle").get("valid") == "True")
    assert f"{ROLE}/secrets/one/token" in kept(), "the control: a pod is under this one"
    assert not any(each.startswith("idle/") for each in kept())
    pod = estate.pod("busy", selected=False)
    pod["metadata"]["labels"] = {"role": "idle"}
    estate.create(pod)
    until(lambda: estate.phase("busy") == "Running", told=lambda: estate.said[-3000:])
    assert "idle/secrets/idle/token" in kept()
    estate.remove("busy")
    until(lambda: not any(each.startswith("idle/secrets/") for each in kept()), pause=0.2)
    estate.client.delete(KeyholePolicy, "idle", namespace="default")


def test_an_agent_that_starts_between_a_pods_volume_and_its_network_goes_on_with_its_ca_i2(
    estate: Estate, lasting: str
) -> None:
    """What would serve its door stands still until the agent is killed, so that the volume is
    there and the network is not."""
    pod = estate.pod("early", selected=False)
    pod["metadata"]["labels"] = {"role": ROLE}
    volumes = "/var/lib/kubelet/pods"
    with estate.stopped("keyhole.app.daemon.data_plane"):
        estate.create(pod)
        uid = _identity(estate, "early")[0]
        find = ("/usr/bin/find", volumes, "-path", f"*/{uid}/*", "-name", "policy.json")
        until(lambda: estate.on_node(*find), pause=0.1, told=lambda: estate.said[-3000:])
        estate.kill_agent()
    estate.start_agent()
    until(lambda: estate.phase("early") == "Running", told=lambda: estate.said[-3000:])
    asked = ("curl", "-sS", "--max-time", "20", "https://one.example/v1/early")
    assert estate.inside("early", *asked)[0] == 0
    estate.remove("early")


def test_without_the_api_server_a_running_pod_goes_on_and_a_new_one_waits(
    estate: Estate, lasting: str
) -> None:
    ask = " ".join((*ASK, "https://one.example/v1/steady"))
    steady = f"(while :; do {ask}; sleep 0.3; done) >/dev/null 2>&1 &"
    estate.inside(lasting, "/bin/sh", "-c", steady)

    def asked() -> int:
        return len(estate.origin.credentials("/v1/steady"))

    until(lambda: asked() > 0)
    with estate.spare_network() as network, estate.stopped("kube-apiserver"):
        before = asked()
        refused = estate.add("new", network, uid="00000000-0000-0000-0000-000000000001")
        assert refused["done"] is False
        until(lambda: asked() > before + 2)
    until(lambda: _answers(estate, lasting), pause=0.2)


def test_a_deleted_policy_closes_doors_and_the_same_one_opens_them_again_i3(
    estate: Estate, lasting: str
) -> None:
    estate.client.delete(KeyholePolicy, ROLE, namespace="default")
    until(lambda: not _answers(estate, lasting), pause=0.2)
    assert estate.phase(lasting) == "Running"
    estate.apply(estate.policy(ROLE, POLICY, role=ROLE))
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])


def test_a_policy_that_selects_other_pods_now_closes_the_doors_of_those_i3(
    estate: Estate, lasting: str
) -> None:
    estate.apply(estate.policy(ROLE, POLICY, role="others"))
    until(lambda: not _answers(estate, lasting), pause=0.2)
    estate.apply(estate.policy(ROLE, POLICY, role=ROLE))
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])


@contextlib.contextmanager
def bounded(estate: Estate, bounds: str) -> Iterator[None]:
    """The cluster has these bounds for the namespace of the tests."""
    named = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    estate.apply(
        {
            "apiVersion": "keyhole.dev/v1alpha1", "kind": "ClusterKeyholePolicy",
            "metadata": {"name": "bounds"},
            "spec": {"namespaceSelector": named, "bounds": bounds},
        }
    )  # fmt: skip
    try:
        yield
    finally:
        estate.client.delete(ClusterKeyholePolicy, "bounds")


def _status(estate: Estate, name: str) -> dict[str, Any]:
    found: Any = estate.client.get(KeyholePolicy, name, namespace="default")
    return dict(found.status or {})


def test_a_bound_closes_the_doors_of_policies_beyond_it_and_says_where_i3(
    estate: Estate, lasting: str
) -> None:
    with bounded(estate, 'hosts = ["one.example"]'):
        until(lambda: _wide_is_valid(estate))
        assert _answers(estate, lasting), "the control: it is within this bound"
    with bounded(estate, 'hosts = ["two.example"]'):
        until(lambda: not _answers(estate, lasting), pause=0.2)
        until(lambda: _status(estate, ROLE).get("valid") == "False")
        (fault,) = _status(estate, ROLE)["faults"]
        assert fault.startswith("2:11: the host one.example is beyond")
        beyond = POLICY.replace("one.example", "three.example")
        with pytest.raises(ApiError, match="beyond the cluster's bound"):
            estate.apply(estate.policy("beyond", beyond, role="beyond"))
    until(lambda: _answers(estate, lasting), pause=0.2, told=lambda: estate.said[-3000:])
    assert _status(estate, ROLE)["valid"] == "True"


def _wide_is_valid(estate: Estate) -> bool:
    found: Any = estate.client.get(ClusterKeyholePolicy, "bounds")
    return (found.status or {}).get("valid") == "True"


def test_refusals_are_events_on_the_pod_and_a_flood_is_bounded_i9_i12(
    estate: Estate, lasting: str
) -> None:
    flood = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do getent hosts $n.two.example; done"
    estate.inside(lasting, "/bin/sh", "-c", flood)

    def events() -> list[str]:
        listed = estate.client.list(Event, namespace="default", fields={"reason": REASON})
        uid = _identity(estate, lasting)[0]
        return [each.message or "" for each in listed if each.involvedObject.uid == uid]

    until(lambda: any("two.example" in each for each in events()), told=lambda: estate.said[-2000:])
    assert len(events()) <= POD_BURST + 2, "a few at once, and then one a minute"


def test_a_pod_that_is_deleted_while_its_network_is_made_leaves_nothing_i2(
    estate: Estate, lasting: str
) -> None:
    """What would serve its door stands still, so that the ADD waits in the middle."""

    def networks() -> set[str]:
        return set(estate.on_node("/bin/ls", "/run/netns").split())

    before = networks()
    pod = estate.pod("hasty", selected=False)
    pod["metadata"]["labels"] = {"role": ROLE}
    with estate.stopped("keyhole.app.daemon.data_plane"):
        estate.create(pod)
        until(lambda: networks() - before, pause=0.1)
        estate.client.delete(Pod, "hasty", namespace="default", grace_period=0)
    estate.remove("hasty")
    until(lambda: networks() <= before, pause=0.5, told=lambda: (before, networks(), estate.said))
    until(lambda: _answers(estate, lasting), pause=0.2)


def test_a_new_network_of_a_pod_has_the_ca_that_its_volume_has_i2(
    estate: Estate, lasting: str
) -> None:
    """The network ends while no agent is there, and with it the agent's record of it."""
    estate.kill_agent()
    try:
        estate.end_sandbox(lasting)
    finally:
        estate.start_agent()

    def is_back() -> bool:
        try:
            copied, _ = estate.inside(lasting, "python3", "-c", COPY)
            _, links = estate.inside(lasting, "ip", "-o", "link")
        except (ApiError, OSError):
            return False
        assert len(links.strip().splitlines()) == 1
        return copied == 0 and _answers(estate, lasting)

    until(is_back, pause=0.5, told=lambda: estate.said[-3000:])


def test_after_a_reboot_pods_stay_closed_until_an_agent_serves_their_doors_again_i2(
    estate: Estate, lasting: str
) -> None:
    """The container says at its start which interfaces it has. The control is a pod without a door,
    which comes back without an agent, with its interface."""
    words = ["/bin/sh", "-c", "ip -o link; exec sleep infinity"]
    for name in ("rebooted", "plain"):
        pod = estate.pod(name, selected=False)
        pod["metadata"]["labels"] = {"role": ROLE if name == "rebooted" else "none"}
        pod["spec"]["containers"][0]["command"] = words
        estate.create(pod)
        until(lambda name=name: estate.phase(name) == "Running")  # type: ignore[misc]
    before = _identity(estate, "rebooted")
    audited = len(estate.origin.credentials("/v1/life"))
    estate.reboot()

    def came_back(name: str, times: int) -> bool:
        return _identity(estate, name)[1] > times and estate.is_there(name)

    told = lambda: estate.logged("containerd") + estate.logged("kubelet") + estate.said[-3000:]  # noqa: E731
    until(lambda: came_back("plain", 0), seconds=180, pause=0.5, told=told)
    assert len(_interfaces(estate, "plain")) == 2
    assert not came_back("rebooted", before[1])
    assert not _answers(estate, lasting)
    assert len(estate.origin.credentials("/v1/life")) == audited
    estate.start_agent()
    until(lambda: came_back("rebooted", before[1]), seconds=180, pause=0.5, told=told)
    assert _identity(estate, "rebooted")[0] == before[0], "the same pod"
    assert len(_interfaces(estate, "rebooted")) == 1
    asked = ("curl", "-sS", "--max-time", "20", "https://one.example/v1/rebooted")
    until(lambda: estate.inside("rebooted", *asked)[0] == 0, pause=0.5, told=told)
    for name in ("rebooted", "plain"):
        estate.remove(name)


def _interfaces(estate: Estate, pod: str) -> list[str]:
    """What the container of a pod saw when it was started."""
    return [line for line in estate.client.log(pod, namespace="default") if ": " in line]
