"""Admission in a real cluster: what the API server refuses because Keyhole says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lightkube import Client, KubeConfig, codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from keyhole.app.kube.resources import KeyholePolicy
from tests.rigs.kube.estate import POLICY

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
}


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

        write("own")
        with pytest.raises(ApiError, match="may not read the Secret one"):
            write("one")


def test_the_status_of_a_policy_says_whether_it_is_valid(estate: Estate) -> None:
    found: Any = estate.client.get(KeyholePolicy, "agents", namespace="default")
    assert found.status["valid"] == "True"
