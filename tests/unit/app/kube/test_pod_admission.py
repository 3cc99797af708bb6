"""Pods at admission: which are stamped, and which are refused (I2, I3)."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.app.kube.pod_admission import (
    SEED,
    VOLUME,
    admit_change,
    admit_pod,
    bound_pod,
    check_pod,
    objections,
    seeded_noise,
    selecting,
)
from keyhole.app.kube.resources import ClusterPolicy
from keyhole.sandbox.pods.cni_plugin import STAMP
from tests.rigs.policies import loaded

TEXT = """
[services.own]
hosts  = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:own/token"
env    = ["OWN_KEY"]
allow  = ["GET /**"]
"""


def named(name: str, **labels: str) -> ClusterPolicy:
    spec = {"podSelector": {"matchLabels": labels}, "policy": TEXT}
    return ClusterPolicy.of("team", name, spec)


AGENTS = named("agents", role="agent")


def pod(**spec: object) -> dict[str, Any]:
    container = {"name": "main", "image": "tools", "env": [{"name": "LANG", "value": "C"}]}
    return {
        "metadata": {"labels": {"role": "agent"}, "annotations": {"note": "mine"}},
        "spec": {"containers": [container], **spec},
    }


def patched(given: dict[str, Any]) -> dict[str, Any]:
    """The values of the patch, by their paths."""
    admission = admit_pod(given, [AGENTS], loaded(TEXT).policy, "seed")
    assert admission.allowed, admission.why
    return {each["path"]: each["value"] for each in admission.patch}


def test_a_selected_pod_gets_stamp_volume_and_placeholders_i1() -> None:
    values = patched(pod())
    assert values["/metadata/annotations"] == {"note": "mine", STAMP: "agents", SEED: "seed"}
    assert values["/spec/volumes"][-1]["csi"]["driver"] == "csi.keyhole.dev"
    assert values["/spec/containers/0/volumeMounts"][-1]["mountPath"] == "/etc/keyhole"
    env = {each["name"]: each["value"] for each in values["/spec/containers/0/env"]}
    assert env["LANG"] == "C", "its own stay"
    assert env["SSL_CERT_FILE"] == "/etc/keyhole/bundle.pem"
    assert "keyhole" in env["OWN_KEY"], "a placeholder"


def test_placeholders_follow_from_the_seed() -> None:
    assert patched(pod()) == patched(pod())
    assert seeded_noise("a")(16) != seeded_noise("b")(16)
    noise = seeded_noise("a")
    assert noise(16) != noise(16)


def test_a_pod_that_another_webhook_has_changed_keeps_its_placeholders() -> None:
    """The API server asks again then. A container that was added has those of the first one."""
    first, second = "a" * 32, "b" * 32
    policy = loaded(TEXT).policy

    def admitted(given: dict[str, Any], seed: str) -> dict[str, Any]:
        patch = admit_pod(given, [AGENTS], policy, seed).patch
        return {each["path"]: each["value"] for each in patch}

    stamped = pod()
    values = admitted(stamped, first)
    stamped["metadata"]["annotations"] = values["/metadata/annotations"]
    stamped["spec"]["containers"][0]["env"] = values["/spec/containers/0/env"]
    stamped["spec"]["containers"].append({"name": "sidecar", "image": "mesh"})
    again = admitted(stamped, second)
    assert again["/metadata/annotations"][SEED] == first

    def key(path: str, found: dict[str, Any]) -> str:
        return str(next(each["value"] for each in found[path] if each["name"] == "OWN_KEY"))

    assert key("/spec/containers/0/env", again) == key("/spec/containers/0/env", values)
    assert key("/spec/containers/1/env", again) == key("/spec/containers/0/env", values)
    # The control: a pod that nobody has stamped, or that has no seed of ours, gets a new one.
    for given in ({SEED: first}, {STAMP: "agents", SEED: "mine"}):
        other = pod()
        other["metadata"]["annotations"] = given
        assert admitted(other, second)["/metadata/annotations"][SEED] == second


def test_a_volume_of_that_name_is_replaced_i2() -> None:
    given = pod(volumes=[{"name": VOLUME, "emptyDir": {}}])
    given["spec"]["containers"][0]["volumeMounts"] = [{"name": VOLUME, "mountPath": "/x"}]
    values = patched(given)
    assert [each["name"] for each in values["/spec/volumes"]] == [VOLUME]
    assert len(values["/spec/containers/0/volumeMounts"]) == 1


TOKEN = {
    "name": "kube-api-access-x7k2q",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
}
OWN_TOKEN = TOKEN | {"name": "vault"}


def test_the_token_that_the_api_server_adds_is_taken_out_again_i1() -> None:
    """The pod cannot reach the API server, and could only hand the token on."""
    given = pod(volumes=[TOKEN, OWN_TOKEN, {"name": "work", "emptyDir": {}}])
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    given["spec"]["containers"][0]["volumeMounts"] = [
        {"name": TOKEN["name"], "mountPath": path}, {"name": "work", "mountPath": "/w"},
    ]  # fmt: skip
    values = patched(given)
    assert values["/spec/automountServiceAccountToken"] is False
    assert [each["name"] for each in values["/spec/volumes"]] == ["vault", "work", VOLUME]
    found = values["/spec/containers/0/volumeMounts"]
    assert [each["name"] for each in found] == ["work", VOLUME]
    # The control: a pod that says that it wants the token keeps it.
    given["spec"]["automountServiceAccountToken"] = True
    values = patched(given)
    assert "/spec/automountServiceAccountToken" not in values
    assert [each["name"] for each in values["/spec/volumes"]] == [
        TOKEN["name"], "vault", "work", VOLUME,
    ]  # fmt: skip
    assert values["/spec/containers/0/volumeMounts"][0]["name"] == TOKEN["name"]


def test_a_pod_that_no_policy_selects_passes_as_it_is() -> None:
    admission = admit_pod(pod(hostNetwork=True), [], None, "seed")
    assert admission.allowed
    assert not admission.patch


def test_two_policies_or_an_invalid_one_refuse_i3() -> None:
    other = named("others", role="agent")
    assert selecting([AGENTS, other], {"role": "agent"}) == [AGENTS, other]
    assert "more than one" in admit_pod(pod(), [AGENTS, other], loaded(TEXT).policy, "seed").why
    assert "not valid" in admit_pod(pod(), [AGENTS], None, "seed").why


def _contained(**context: object) -> dict[str, Any]:
    given = pod()
    given["spec"]["initContainers"] = [{"name": "first", "securityContext": context}]
    return given


WAYS = [
    pod(hostNetwork=True),
    pod(hostPID=True),
    pod(hostIPC=True),
    pod(volumes=[{"name": "node", "hostPath": {"path": "/"}}]),
    _contained(privileged=True),
    _contained(capabilities={"add": ["NET_ADMIN"]}),
    pod(ephemeralContainers=[{"name": "debug", "securityContext": {"privileged": True}}]),
    pod(containers=[{"name": "main", "ports": [{"containerPort": 1, "hostPort": 1}]}]),
    pod(volumes=[{"name": "far", "nfs": {"server": "192.0.2.1", "path": "/"}}]),
    pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    _contained(seccompProfile={"type": "Unconfined"}),
    _contained(procMount="Unmasked"),
]


@pytest.mark.parametrize("given", WAYS)
def test_what_leads_around_a_door_is_refused_i2(given: dict[str, Any]) -> None:
    assert not list(objections(pod())), "the control"
    assert not admit_pod(given, [AGENTS], loaded(TEXT).policy, "seed").allowed
    given["metadata"]["annotations"] = {STAMP: "agents"}
    assert not check_pod(given, [AGENTS]).allowed


@pytest.mark.parametrize(
    "name", ["k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"]
)
def test_a_further_network_is_refused_i2(name: str) -> None:
    given = pod()
    given["metadata"]["annotations"][name] = "lan"
    assert "further network" in admit_pod(given, [AGENTS], loaded(TEXT).policy, "seed").why


def test_a_static_pod_that_a_policy_selects_is_refused_i2() -> None:
    """Its kubelet starts it from a file, before anyone was asked."""
    given = pod()
    given["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "0123"
    assert "static pod" in admit_pod(given, [AGENTS], loaded(TEXT).policy, "seed").why
    assert admit_pod(given, [], None, "seed").allowed


def test_a_pod_without_a_seccomp_profile_gets_the_runtimes() -> None:
    assert patched(pod(securityContext={"runAsUser": 1000}))["/spec/securityContext"] == {
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    own = {"seccompProfile": {"type": "Localhost", "localhostProfile": "strict.json"}}
    assert "/spec/securityContext" not in patched(pod(securityContext=own))


def test_a_binding_is_judged_as_the_pod_that_it_makes_i2() -> None:
    stamped = pod()
    stamped["metadata"]["annotations"] |= {STAMP: "agents", SEED: "seed"}

    def bound(**metadata: dict[str, str]) -> bool:
        made = bound_pod(stamped, {"metadata": metadata})
        return admit_change(stamped, made, [AGENTS]).allowed

    assert bound()
    assert bound(annotations={"colour": "green"}, labels={"zone": "a"})
    assert not bound(annotations={STAMP: "other"})
    assert not bound(annotations={"k8s.v1.cni.cncf.io/networks": "lan"})
    assert not bound(labels={"role": "other"})


def test_labels_do_not_select_a_pod_that_runs_without_a_door_i2() -> None:
    plain = pod() | {"metadata": {"labels": {"role": "other"}}}
    assert "make a new one" in admit_change(plain, pod(), [AGENTS]).why
    assert admit_change(pod(), plain, [AGENTS]).allowed


def test_a_stamp_is_there_where_a_policy_selects_and_nowhere_else_i3() -> None:
    stamped, plain = pod(), pod()
    stamped["metadata"]["annotations"][STAMP] = "agents"
    assert check_pod(stamped, [AGENTS]).allowed
    assert not check_pod(plain, [AGENTS]).allowed
    assert not check_pod(stamped, []).allowed
    assert check_pod(plain, []).allowed
    assert not check_pod(stamped, [AGENTS, named("others", role="agent")]).allowed


def test_a_stamp_is_neither_taken_nor_given_by_a_change_i2() -> None:
    plain, stamped = pod(), pod()
    stamped["metadata"]["annotations"] |= {STAMP: "agents", SEED: "seed"}
    assert admit_change(plain, plain, [AGENTS]).allowed
    assert admit_change(stamped, stamped, [AGENTS]).allowed
    assert not admit_change(stamped, plain, [AGENTS]).allowed
    assert not admit_change(plain, stamped, [AGENTS]).allowed
    relabelled = stamped | {"metadata": stamped["metadata"] | {"labels": {"role": "other"}}}
    assert "another KeyholePolicy" in admit_change(stamped, relabelled, [AGENTS]).why
    debugged = stamped | {"spec": stamped["spec"] | {"hostNetwork": True}}
    assert not admit_change(stamped, debugged, [AGENTS]).allowed
