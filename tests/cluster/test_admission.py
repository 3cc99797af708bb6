"""Admission in a real cluster: what the API server refuses because Keyhole says so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from lightkube import Client, KubeConfig, codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod, PodEphemeralcontainers, PodResize, Secret
from lightkube.types import PatchType
from msgspec import ValidationError

from keyhole.app.kube.resources import KeyholePolicy
from tests.rigs.kube.estate import POLICY
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.kube.estate import Estate

COMMAND = POLICY.replace("kube:one/token", "exec:/usr/bin/id")
FILE = POLICY.replace("kube:one/token", "file:/etc/shadow")
ADDRESS = POLICY + '[upstream.connect]\n"one.example:443" = "127.0.0.1:6443"\n'
ANSWERER = POLICY + '[approvals]\ncommand = "/usr/bin/id"\n'
MISSPELT = POLICY.replace("hosts ", "hots  ")


def refusal(estate: Estate, thing: dict[str, Any]) -> str:
    """Why the API server does not take an object; empty if it does."""
    try:
        estate.client.create(codecs.from_dict(thing), dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POLICY, ""),
        (COMMAND, "kube:NAME/KEY"),
        (FILE, "kube:NAME/KEY"),
        (ADDRESS, "ClusterKeyholePolicy"),
        (ANSWERER, "ClusterKeyholePolicy"),
        (MISSPELT, "3:1: "),
    ],
    ids=["valid", "a command", "a file", "an address", "an answering command", "misspelt"],
)
def test_a_policy_of_a_namespace_names_nothing_of_the_node_i11(
    estate: Estate, text: str, said: str
) -> None:
    told = refusal(estate, estate.policy("tried", text, role="tried"))
    assert said in told
    assert bool(said) == bool(told), told


def _set(pod: dict[str, Any], **keys: object) -> None:
    pod["spec"].update(keys)


def _context(pod: dict[str, Any], **keys: object) -> None:
    pod["spec"]["containers"][0]["securityContext"] |= keys


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "hostNetwork": lambda pod: _set(pod, hostNetwork=True),
    "hostPID": lambda pod: _set(pod, hostPID=True),
    "path of the node": lambda pod: _set(
        pod, volumes=[{"name": "node", "hostPath": {"path": "/"}}]
    ),
    "privileged": lambda pod: _context(pod, privileged=True, allowPrivilegeEscalation=True),
    "capabilities": lambda pod: _context(pod, capabilities={"add": ["NET_ADMIN"]}),
    "further network": lambda pod: pod["metadata"].update(
        annotations={"k8s.v1.cni.cncf.io/networks": "lan"}
    ),
    "has no further network": lambda pod: pod["metadata"].update(
        annotations={"v1.multus-cni.io/default-network": "lan"}
    ),
    "node's network": lambda pod: _set(
        pod, volumes=[{"name": "far", "nfs": {"server": "192.0.2.1", "path": "/"}}]
    ),
    "seccomp": lambda pod: _context(pod, seccompProfile={"type": "Unconfined"}),
    "port of the node": lambda pod: pod["spec"]["containers"][0].update(
        ports=[{"containerPort": 8080, "hostPort": 8080}]
    ),
    "is privileged": lambda pod: _set(
        pod,
        nodeName="node",
        initContainers=[pod["spec"]["containers"][0] | {
            "name": "first", "securityContext": {"privileged": True},
        }],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_selected_pod_has_no_way_around_its_door_i2(estate: Estate, way: str) -> None:
    for selected in (False, True):
        pod = estate.pod("tried", selected=selected)
        WAYS[way](pod)
        told = refusal(estate, pod)
        assert (way in told) is selected, told or "it was taken"


@pytest.fixture
def boxed(estate: Estate) -> Iterator[str]:
    """A pod behind a door."""
    estate.run("held", selected=True)
    yield "held"
    estate.remove("held")


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"keyhole.dev/policy": None}},
        {"annotations": {"keyhole.dev/placeholders": "mine"}},
        {"labels": {"role": None}},
        {"labels": {"role": "other"}},
    ],
    ids=["no stamp", "other placeholders", "no label", "another label"],
)
def test_what_was_stamped_stays_so_i2(
    estate: Estate, boxed: str, change: dict[str, dict[str, str | None]]
) -> None:
    def patch(metadata: object) -> None:
        estate.client.patch(Pod, boxed, {"metadata": metadata}, namespace="default")

    patch({"labels": {"colour": "green"}})  # the control: another label may change
    with pytest.raises(ApiError, match="keyhole:"):
        patch(change)


@pytest.mark.parametrize("part", ["status", "ephemeralcontainers", "resize"])
def test_a_subresource_is_no_way_around_admission_i2(estate: Estate, boxed: str, part: str) -> None:
    """Each of them can change labels and annotations of a pod, too."""
    kind: Any = {"ephemeralcontainers": PodEphemeralcontainers, "resize": PodResize}.get(
        part, Pod.Status
    )

    def patch(metadata: object) -> None:
        estate.client.patch(kind, boxed, {"metadata": metadata}, namespace="default")

    patch({"labels": {"colour": "green"}})  # the control: another label may change
    for change in ({"labels": {"role": None}}, {"annotations": {"keyhole.dev/policy": None}}):
        with contextlib.suppress(ApiError):
            patch(change)
        metadata = estate.client.get(Pod, boxed, namespace="default").metadata
        assert metadata is not None
        assert (metadata.labels or {}).get("role") == "agent"
        assert "keyhole.dev/policy" in (metadata.annotations or {})


def test_an_ephemeral_container_has_no_further_rights_i2(estate: Estate, boxed: str) -> None:
    def add(name: str, context: dict[str, Any]) -> None:
        container = {"name": name, "image": "keyhole.test/tools:1", "securityContext": context}
        change = {"spec": {"ephemeralContainers": [container]}}
        estate.client.patch(PodEphemeralcontainers, boxed, change, namespace="default")

    with pytest.raises(ApiError, match="adds capabilities"):
        add("looking", {"capabilities": {"add": ["NET_ADMIN"]}})
    with pytest.raises(ApiError, match="privileged"):
        add("looking", {"privileged": True})
    add("looking", {})  # the control


def test_a_binding_brings_no_annotation_that_leads_around_a_door_i2(estate: Estate) -> None:
    pod = estate.pod("unbound", selected=True)
    pod["spec"]["schedulerName"] = "nobody"
    estate.create(pod)
    try:

        def bind(annotations: dict[str, str]) -> None:
            metadata = {"name": "unbound", "namespace": "default", "annotations": annotations}
            target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
            # The API server answers with a Status, which the client takes for a Binding.
            with contextlib.suppress(ValidationError):
                estate.create(binding | {"target": target})

        for name in ("k8s.v1.cni.cncf.io/networks", "keyhole.dev/policy"):
            with pytest.raises(ApiError, match="keyhole:"):
                bind({name: "other"})
        bind({"colour": "green"})  # the control
        until(lambda: estate.phase("unbound") == "Running")
    finally:
        estate.remove("unbound")


def test_a_policy_for_exempt_pods_is_refused(estate: Estate) -> None:
    told = refusal(estate, estate.policy("tried", POLICY, namespace="kube-system"))
    assert "exempt" in told


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"policy": '[upstream]\nprivate = ["*.corp.example"]'}, ""),
        ({"bounds": 'hosts = ["*.corp.example"]'}, ""),
        ({"policy": '[services.cluster]\nhosts = ["a.example"]\nallow = ["GET /**"]\n'
                    'secret = "file:/etc/keyhole-token"\n'
                    'inject = { header = "Authorization", value = "{secret}" }'}, ""),
        ({"bounds": 'host = ["*.corp.example"]'}, "1:1: "),
        ({"policy": '[upstream]\nprivat = []'}, "2:1: "),
        ({"policy": '[egress]\nallow = ["example.org"]'}, "'egress' is not one of"),
        ({"namespaceSelector": {}, "bounds": ""}, "selects nothing"),
    ],
    ids=["tables", "bounds", "file", "misspelt bound", "misspelt key", "table", "selector"],
)  # fmt: skip
def test_a_policy_of_the_cluster_is_read_before_it_is_stored(
    estate: Estate, spec: dict[str, Any], said: str
) -> None:
    told = refusal(
        estate,
        {
            "apiVersion": "keyhole.dev/v1alpha1", "kind": "ClusterKeyholePolicy",
            "metadata": {"name": "tried"}, "spec": spec,
        },
    )  # fmt: skip
    assert said in told
    assert bool(said) == bool(told), told


def test_a_policy_uses_only_secrets_that_its_author_may_read_i1(estate: Estate) -> None:
    """The author may write policies, and read one of two Secrets."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "author", "namespace": "default"},
        "rules": [
            {"apiGroups": ["keyhole.dev"], "resources": ["keyholepolicies"], "verbs": ["*"]},
            {
                "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["own"],
                "verbs": ["get"],
            },
        ],
    }  # fmt: skip
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "author", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author"},
        "subjects": [{"kind": "User", "name": "author"}],
    }  # fmt: skip
    estate.apply(role, binding)
    config = KubeConfig.from_file(estate.cluster.directory / "author.conf")
    with Client(config, field_manager="author", trust_env=False) as author:

        def write(secret: str) -> None:
            text = POLICY.replace("kube:one/", f"kube:{secret}/")
            policy = codecs.from_dict(estate.policy("authored", text, role="authored"))
            author.create(policy, dry_run=True)

        def change_policy(name: str, change: dict[str, Any]) -> None:
            kind = PatchType.MERGE
            author.patch(KeyholePolicy, name, change, namespace="default", patch_type=kind)

        write("own")
        with pytest.raises(ApiError, match="may not read the Secret one"):
            write("one")
        # A Secret that is named later, and another author's policy, are asked about as well.
        text = POLICY.replace("kube:one/", "kube:own/")
        author.create(codecs.from_dict(estate.policy("authored", text, role="authored")))
        try:
            change = {"spec": {"policy": POLICY}}
            with pytest.raises(ApiError, match="may not read the Secret one"):
                change_policy("authored", change)
            selector = {"spec": {"podSelector": {"matchLabels": {"role": "other"}}}}
            change_policy("authored", selector)
            with pytest.raises(ApiError, match="may not read the Secret one"):
                change_policy("agents", selector)
            # The control: a label grants nothing, and neither does a stored object rewritten.
            change_policy("agents", {"metadata": {"labels": {"seen": "yes"}}})
        finally:
            author.delete(KeyholePolicy, "authored", namespace="default")


def test_the_status_of_a_policy_says_whether_it_is_valid(estate: Estate) -> None:
    found: Any = estate.client.get(KeyholePolicy, "agents", namespace="default")
    assert found.status["valid"] == "True"


def test_the_certificate_of_admission_is_renewed_while_it_serves(estate: Estate) -> None:
    """The API server asks all the time, and every request is answered by admission. The control is
    the certificate of the Secret, which is another one afterwards."""
    renewed = "a new certificate of admission is served"
    policy = estate.policy("tried", MISSPELT, role="tried")

    def certificate() -> str:
        found = estate.client.get(Secret, "keyhole-admission", namespace="keyhole-system")
        return str((found.data or {})["tls.crt"])

    estate.kill_admission()
    estate.client.delete(Secret, "keyhole-admission", namespace="keyhole-system")
    estate.start_admission("--certificate-lifetime", "24s")
    try:
        until(estate.is_admitted, pause=0.1, told=lambda: estate.said[-3000:])
        first, began, refusals = certificate(), estate.said.count(renewed), []

        def asked() -> bool:
            refusals.append(refusal(estate, policy))
            return estate.said.count(renewed) > began

        until(asked, pause=0.1, told=lambda: estate.said[-3000:])
        refusals += [refusal(estate, policy) for _ in range(5)]
        assert certificate() != first
        assert all("3:1: " in each for each in refusals), set(refusals)
    finally:
        estate.kill_admission()
        estate.start_admission()
    until(estate.is_admitted, pause=0.1, told=lambda: estate.said[-3000:])
