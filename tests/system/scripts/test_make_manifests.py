"""What installs Keyhole in a cluster is as its sources are; no Helm is needed to see it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from keyhole import __version__
from keyhole.app.kube.permissions import ADMISSION, AGENT, all_roles
from scripts.make_manifests import CHART, PLAIN, RULES, rules_file


def _objects(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(text) if each]
    metadata = [each["metadata"] for each in found]
    keys = [(each["kind"], m.get("namespace", ""), m["name"])
            for each, m in zip(found, metadata, strict=True)]  # fmt: skip
    return dict(zip(keys, found, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_the_charts_rules_are_those_of_the_source(name: str) -> None:
    written = (CHART / "files" / name).read_text("utf-8")
    assert written == rules_file(name), "run `make manifests`"


def test_the_plain_manifests_have_the_definitions_of_the_chart() -> None:
    plain = _objects(PLAIN.read_text("utf-8"))
    crds = _objects((CHART / "files/crds.yaml").read_text("utf-8"))
    assert len(crds) >= 3
    assert {key: plain.get(key) for key in crds} == crds, "run `make manifests`"


def test_the_plain_manifests_have_the_roles_that_are_printed() -> None:
    plain = _objects(PLAIN.read_text("utf-8"))
    printed = _objects(all_roles("keyhole-system"))
    assert {name for _, _, name in printed} == {AGENT, ADMISSION}
    assert {key: plain.get(key) for key in printed} == printed, "run `make manifests`"


def test_no_role_of_the_chart_has_a_wildcard_or_reads_every_secret_i1() -> None:
    roles = [each for (kind, _, _), each in _objects(PLAIN.read_text("utf-8")).items()
             if kind in ("Role", "ClusterRole")]  # fmt: skip
    rules = [(role["kind"], rule) for role in roles for rule in role["rules"]]
    assert len(rules) >= 8
    for kind, rule in rules:
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert kind == "Role" or "secrets" not in rule["resources"]


def test_the_container_that_others_connect_to_has_no_privilege_and_no_token_i1() -> None:
    agent = _objects(PLAIN.read_text("utf-8"))["DaemonSet", "keyhole-system", AGENT]
    spec = agent["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in spec["containers"]}
    assert "ports" not in containers["agent"], "the control: the agent itself has no port"
    assert containers["agent"]["securityContext"]["privileged"]
    reports = containers["reports"]
    assert reports["ports"]
    assert reports["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not spec["automountServiceAccountToken"]
    mounted = {each["name"] for each in reports["volumeMounts"]}
    assert not mounted & {"account", "state", "run", "kubelet"}, "Secrets and sockets are there"


def test_the_charts_version_is_keyholes() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == __version__


def test_every_value_of_the_chart_has_its_shape_in_the_schema() -> None:
    """A misspelt value is refused by Helm, as the schema allows no other."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, value in values.items():
        assert schema["properties"][name]["additionalProperties"] is False
        assert value.keys() == schema["properties"][name]["properties"].keys(), name


def test_the_templates_use_no_value_that_is_not_there() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    used = {word for path in (CHART / "templates").iterdir()
            for word in re.findall(r"\.Values\.([\w.]+)", path.read_text("utf-8"))}  # fmt: skip
    assert len(used) > 20
    for each in used:
        found: Any = values
        for part in each.split("."):
            assert part in found, each
            found = found[part]
