"""The least roles of Keyhole's accounts, as they are printed."""

from __future__ import annotations

from keyhole.app.kube.permissions import all_roles, secret_role


def test_roles_say_why_each_rule_is_there() -> None:
    lines = all_roles("keyhole-system").splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert len(rules) >= 8
    assert all(lines[number - 1].startswith("  # ") for number in rules)


def test_a_namespace_grants_its_secrets_by_name_i1() -> None:
    printed = secret_role("team", ["anthropic", "github"], "elsewhere")
    assert 'resourceNames: ["anthropic", "github"]' in printed
    assert printed.count("namespace: team") == 2
    assert "name: keyhole-agent, namespace: elsewhere" in printed
    assert "Cluster" not in printed
