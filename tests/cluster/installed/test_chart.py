"""The chart: what Helm says of it, what the API server says of it, and a pod that works by it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from lightkube import codecs
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from keyhole.app.kube.permissions import (
    ADMISSION,
    ADMISSION_OWN_RULES,
    ADMISSION_RULES,
    AGENT,
    AGENT_RULES,
    AGENT_SECRETS,
)
from keyhole.app.kube.resources import AWAY, KeyholePolicy
from scripts.make_manifests import CHART, PLAIN, plain_manifests
from tests.rigs.kube.binaries import build
from tests.rigs.kube.collector import Collector
from tests.rigs.kube.estate import POLICY, SECRET, secret
from tests.rigs.kube.node import NODE
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.rigs.kube.installed import InstalledCluster

CREATED, FORBIDDEN = 201, 403
SHIPPED = "/var/lib/keyhole-reports/shipped"
"""A directory that the node of the tests does not share with this machine."""
ASK = ("curl", "-sS", "--max-time", "20", "--cacert", "/etc/keyhole/bundle.pem")


def test_helm_finds_no_fault_in_the_chart() -> None:
    done = subprocess.run(
        [build() / "helm", "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_plain_manifests_are_the_chart_as_helm_renders_it() -> None:
    assert PLAIN.read_text("utf-8") == plain_manifests(build() / "helm"), "run `make manifests`"


def test_a_pod_gets_an_answer_with_the_credential_through_the_installed_chart_i1_i6(
    installed: InstalledCluster,
) -> None:
    installed.run("boxed", selected=True)
    try:
        said = []

        def arrives() -> bool:
            # The API server may not know yet that the agent was granted the Secret.
            said.append(installed.inside("boxed", *ASK, "https://one.example/v1/hello"))
            return bool(installed.origin.credentials("/v1/hello"))

        until(arrives, pause=0.5, told=lambda: f"{said[-1]}{installed.said}")
        assert set(installed.origin.credentials("/v1/hello")) == {f"Bearer {SECRET}"}
        assert SECRET not in str(said)
        _, links = installed.inside("boxed", "ip", "-o", "link")
        assert len(links.strip().splitlines()) == 1
    finally:
        installed.remove("boxed")


def test_a_pod_of_a_namespace_that_granted_no_secret_gets_none_i1(
    installed: InstalledCluster,
) -> None:
    """The same policy in another namespace: its author may read the Secret, and Keyhole may not.
    The control is the test above."""
    installed.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        secret("one", SECRET, "team"),
        installed.policy("agents", POLICY, namespace="team"),
    )
    installed.run("boxed", selected=True, namespace="team")
    try:
        url = "https://one.example/v1/not-granted"
        _, said = installed.inside("boxed", *ASK, url, namespace="team")
        assert "got" not in said
        assert installed.origin.credentials("/v1/not-granted") == []
    finally:
        installed.remove("boxed", "team")


def test_status_shows_agents_policies_and_pods(installed: InstalledCluster) -> None:
    installed.run("boxed", selected=True)
    try:

        def pod() -> dict[str, object]:
            told = json.loads(installed.keyhole("kube", "status", "--json", check=False))
            own = (each for each in told["pods"] if each["namespace"] == "default")
            return next((each for each in own if each["name"] == "boxed"), {})

        until(lambda: pod().get("door") == "open")
        assert pod()["policy"] == "agents"

        def counted() -> bool:
            # A pod of the same name may still be ending, for which the command fails.
            told = installed.keyhole("kube", "status", "-n", "default", "--json", check=False)
            read = json.loads(told)
            return bool(read["good"]) and read["policies"][0]["pods"] == 1

        until(counted)
        printed = installed.keyhole("kube", "status", "-n", "default")
        for expected in ("node", "serves", "agents", "boxed", "open"):
            assert expected in printed
    finally:
        installed.remove("boxed")
    until(lambda: pod() == {})


def test_status_shows_a_pod_that_is_older_than_its_policy_i3(installed: InstalledCluster) -> None:
    """It keeps its interface, which nobody must take for a door."""
    old = installed.pod("old", selected=False)
    old["metadata"]["labels"] = {"role": "late"}
    installed.create(old)
    try:
        until(lambda: installed.phase("old") == "Running")
        assert "old" not in installed.keyhole("kube", "status", "-n", "default", check=False)
        installed.apply(installed.policy("late", POLICY, role="late"))
        told = json.loads(
            installed.keyhole("kube", "status", "-n", "default", "--json", check=False)
        )
        (row,) = [each for each in told["pods"] if each["name"] == "old"]
        assert (row["door"], row["policy"], told["good"]) == ("none", "late", False)
    finally:
        installed.remove("old")
        installed.client.delete(KeyholePolicy, "late", namespace="default")


def test_metrics_are_served_to_others_and_out_of_reach_behind_a_door_i2(
    installed: InstalledCluster,
) -> None:
    (agent,) = installed.parts("agent")
    status = installed.client.get(Pod, agent, namespace="keyhole-system").status
    url = f"http://{(status.podIP if status else None) or ''}:9464/metrics"
    fetch = ("curl", "-sS", "--max-time", "10", url)
    installed.run("boxed", selected=True)
    installed.run("plain", selected=False)
    try:
        until(lambda: 'keyhole_pods{door="open"} 1.0' in installed.inside("plain", *fetch)[1])
        _, metrics = installed.inside("plain", *fetch)
        assert "keyhole_decisions_total" in metrics
        assert 'keyhole_policies{valid="true"}' in metrics
        assert "boxed" not in metrics, "no pod is a label (I9)"
        code, said = installed.inside("boxed", *fetch)
        assert "keyhole_" not in said, f"{code} {said}"
    finally:
        installed.remove("boxed")
        installed.remove("plain")


def test_the_kubelets_probes_reach_a_pod_of_an_installed_agent(
    installed: InstalledCluster,
) -> None:
    """The agent is in a network of its own, and asks in the node's who connects."""
    pod = installed.pod("probed", selected=True)
    container = pod["spec"]["containers"][0]
    container["command"] = ["python3", "-m", "http.server", "8080"]
    container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    installed.create(pod)

    def ready() -> bool:
        status = installed.client.get(Pod, "probed", namespace="default").status
        conditions = (status.conditions if status else None) or []
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    try:
        until(ready, told=lambda: installed.said[-3000:])
    finally:
        installed.remove("probed")


def test_the_audit_log_is_shipped_with_the_pods_identity_i8(installed: InstalledCluster) -> None:
    installed.run("boxed", selected=True)
    try:
        installed.inside("boxed", "getent", "hosts", "evil.example")
        (agent,) = installed.parts("agent")
        found = installed.client.get(Pod, "boxed", namespace="default").metadata
        uid = found.uid if found else None

        def denied() -> list[dict[str, Any]]:
            lines = installed.log(agent, "reports").splitlines()
            events = [json.loads(line) for line in lines if line.startswith("{")]
            return [each for each in events if each["host"] == "evil.example"
                    and each["pod"].get("uid") == uid]  # fmt: skip

        until(lambda: bool(denied()), told=lambda: installed.said[-3000:])
        assert denied()[0]["node"] == "node"
        assert denied()[0]["pod"] == {
            "namespace": "default", "pod": "boxed", "uid": uid, "account": "default",
        }  # fmt: skip
    finally:
        installed.remove("boxed")


def test_every_rule_of_the_roles_is_used_and_none_is_missing(installed: InstalledCluster) -> None:
    """By the API server's own log of what each account asked for. A peer connects, since the
    agent asks for its labels, and a name is refused, which is an event of the pod."""
    inbound = '[sandbox]\ninbound = ["8080 from role=frontend"]\n'
    installed.apply(installed.policy("agents", POLICY + inbound))
    installed.run("boxed", selected=True)
    installed.run("plain", selected=False)
    try:
        serve = "python3 -m http.server 8080 >/dev/null 2>&1 &"
        installed.inside("boxed", "/bin/sh", "-c", serve)
        installed.inside("boxed", "getent", "hosts", "evil.example")
        status = installed.client.get(Pod, "boxed", namespace="default").status
        url = f"http://{(status.podIP if status else None) or ''}:8080/"

        def all_used() -> bool:
            installed.inside("plain", "curl", "-sS", "--max-time", "2", url)
            return _unused(installed) == set()

        until(all_used, pause=0.5, told=lambda: str(_unused(installed)))
    finally:
        installed.apply(installed.policy("agents", POLICY))
        installed.remove("boxed")
        installed.remove("plain")
    secret_requests = 0
    for account in (AGENT, ADMISSION):
        for each in installed.asked(account):
            if each.get("responseStatus", {}).get("code") != FORBIDDEN:
                continue
            # The Secret of the namespace that granted none.
            assert each["objectRef"]["resource"] == "secrets", each
            assert each["objectRef"]["namespace"] == "team", each
            secret_requests += 1
    assert secret_requests, "the control: a request without a rule is refused"


def _unused(installed: InstalledCluster) -> set[tuple[str, str, str, str]]:
    """Account, group, resource and verb of rules by which nothing was asked for."""
    allowed = {
        (account, rule.group, resource, verb)
        for account, rules in (
            (AGENT, (*AGENT_RULES, AGENT_SECRETS)),
            (ADMISSION, (*ADMISSION_RULES, *ADMISSION_OWN_RULES)),
        )
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
    }
    asked = set()
    for account in (AGENT, ADMISSION):
        for each in installed.asked(account):
            about = each.get("objectRef", {})
            part = f"/{about['subresource']}" if "subresource" in about else ""
            resource = f"{about.get('resource', '')}{part}"
            asked.add((account, about.get("apiGroup", ""), resource, each["verb"]))
            if each.get("responseStatus", {}).get("code") == CREATED:
                # An apply of what was not there yet takes this verb beside `patch`.
                asked.add((account, about.get("apiGroup", ""), resource, "create"))
    # A certificate is renewed after ten months.
    return allowed - asked - {(ADMISSION, "", "secrets", "update")}


def test_an_upgrade_replaces_the_agent_and_the_pods_go_on_i2(installed: InstalledCluster) -> None:
    installed.run("boxed", selected=True)
    try:
        (before,) = installed.parts("agent")
        assert installed.inside("boxed", *ASK, "https://one.example/v1/before")[0] == 0
        installed.helm(
            "upgrade", "keyhole", str(CHART), "--reuse-values",
            "--set", "agent.podAnnotations.upgraded=yes", "--wait", "--timeout", "4m",
        )  # fmt: skip
        until(lambda: len(installed.parts("agent")) == 1 and installed.parts("agent") != [before])
        until(lambda: installed.inside("boxed", *ASK, "https://one.example/v1/after")[0] == 0)
        status = installed.client.get(Pod, "boxed", namespace="default").status
        containers = (status.containerStatuses if status else None) or []
        assert [each.restartCount for each in containers] == [0]
    finally:
        installed.remove("boxed")


def test_the_audit_log_reaches_a_file_of_the_node_and_a_collector_i8(
    installed: InstalledCluster,
) -> None:
    collector = Collector(NODE)
    installed.helm(
        "upgrade", "keyhole", str(CHART), "--reuse-values",
        "--set", f"reports.audit.directory={SHIPPED}",
        "--set", f"reports.audit.otlp={collector.url}", "--wait", "--timeout", "4m",
    )  # fmt: skip
    installed.run("boxed", selected=True)
    try:
        installed.inside("boxed", "getent", "hosts", "shipped.example")
        found = installed.client.get(Pod, "boxed", namespace="default").metadata
        uid = (found.uid if found else None) or ""

        def in_file() -> list[dict[str, Any]]:
            lines = installed.on_node("/bin/sh", "-c", f"cat {SHIPPED}/*.jsonl").splitlines()
            return [e for e in map(json.loads, lines) if e["host"] == "shipped.example"]

        until(lambda: bool(in_file()), told=lambda: installed.said[-3000:])
        assert in_file()[0]["pod"]["uid"] == uid

        def collected() -> bool:
            return any(
                "shipped.example" in str(record) and uid in str(record)
                for _, record in collector.records
            )

        until(collected, told=lambda: installed.said[-3000:])
    finally:
        installed.remove("boxed")
        collector.close()


def test_the_api_server_takes_the_plain_manifests(installed: InstalledCluster) -> None:
    objects = list(codecs.load_all_yaml(PLAIN.read_text("utf-8")))
    assert len(objects) > 15
    for each in objects:
        installed.client.apply(each, field_manager="tests", force=True, dry_run=True)


def test_a_second_version_of_the_resource_can_be_served_beside_the_first(
    installed: InstalledCluster,
) -> None:
    """The way to the next version: both are served, with the same fields, while agents change."""
    name = "keyholepolicies.keyhole.dev"
    found: Any = installed.client.get(CustomResourceDefinition, name)
    versions = [each.to_dict() for each in found.spec.versions]
    further = {**versions[0], "name": "v1beta1", "storage": False}
    _patch_versions(installed, name, [*versions, further])
    later = create_namespaced_resource("keyhole.dev", "v1beta1", "KeyholePolicy", "keyholepolicies")
    try:

        def read() -> str:
            try:
                policy: Any = installed.client.get(later, "agents", namespace="default")
            except AWAY:  # until it is served, the API server answers without a Status
                return ""
            return str(policy.spec["policy"])

        until(lambda: read() == POLICY)
    finally:
        _patch_versions(installed, name, versions)
        until(installed.knows_policies)


def _patch_versions(installed: InstalledCluster, name: str, versions: list[Any]) -> None:
    installed.client.patch(CustomResourceDefinition, name, {"spec": {"versions": versions}},
                           patch_type=PatchType.MERGE)  # fmt: skip


def test_a_removed_release_leaves_a_node_on_which_pods_start(installed: InstalledCluster) -> None:
    """The last test: nothing of Keyhole runs after it. Its plugin stays, and lets pods pass."""
    installed.helm("uninstall", "keyhole", "--wait", "--timeout", "4m")
    installed.run("left", selected=True)
    try:
        _, links = installed.inside("left", "ip", "-o", "link")
        assert "eth0" in links
        policy: Any = installed.client.get(KeyholePolicy, "agents", namespace="default")
        assert policy.spec["policy"] == POLICY, "policies are kept"
    finally:
        installed.remove("left")
