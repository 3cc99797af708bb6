"""What code in the sandbox is told of the policy, and what not (I1)."""

from __future__ import annotations

import json
from typing import Any

from keyhole.inject.injection import BasicInjection
from keyhole.inject.preset import Preset, PresetHost
from keyhole.model.host import HostPattern
from keyhole.model.secret import Secret
from keyhole.policy.disclose import disclose
from keyhole.policy.learning_mode import LearningMode
from keyhole.policy.policy import Limits
from keyhole.policy.presets import join_presets
from tests.rigs.policies import loaded
from tests.unit.policy.test_load import FULL


def told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(disclose(loaded(text).policy))
    return found


def service(text: str, name: str) -> dict[str, Any]:
    (found,) = [s for s in told(text)["services"] if s["name"] == name]
    return dict(found)


def test_an_empty_policy_grants_nothing_and_says_so() -> None:
    """I3."""
    found = told("")
    assert list(found) == [
        "version", "note", "tunnelled", "presets", "services", "ports", "asked", "wait", "limits"
    ]  # fmt: skip
    assert found["ports"] == {"published": [], "host": [], "inbound": []}
    assert found["version"] == 1
    assert "refused" in found["note"]
    assert (found["tunnelled"], found["presets"], found["services"]) == ([], [], [])
    assert set(found["limits"]) == set(Limits.__struct_fields__)


def test_what_a_person_is_asked_about_is_told_and_never_the_command() -> None:
    """I1: the command is of the host."""
    assert told("")["asked"] is None  # hosts and requests, while the person watches
    assert told('[approvals]\nask = ["pushes", "hosts"]')["asked"] == ["hosts", "pushes"]
    assert told("[approvals]\nask = []\nwait = '5s'")["asked"] == []
    text = disclose(loaded("[approvals]\ncommand = '/opt/bot --ask'").policy)
    assert json.loads(text)["asked"] == ["hosts", "requests"]
    assert "bot" not in text


def test_nothing_of_the_host_is_told() -> None:
    """I1: no reference to a secret, command, path, variable, address, proxy or certificate.
    Control: what is granted is."""
    text = disclose(loaded(FULL).policy)
    for hidden in ("store:", "exec:", "gh auth", "file:", ".secrets", "10.0.3.7", "2001:db8",
                   "proxy.corp", "ca.pem", "~/", "/opt/tools", "EDITOR", '"ci"'):  # fmt: skip
        assert hidden not in text, hidden
    for shown in ("db.corp.example:5432", "api.model.example", "acme/widgets", "GET /v1/**"):
        assert shown in text, shown


def test_an_agent_is_told_the_ports_that_the_person_can_open() -> None:
    text = '[sandbox]\npublish = ["8080:3000", "0:3000", 5173]\nhost_ports = [11434]\n'
    text += 'inbound = ["8080 from role=web"]'
    assert told(text)["ports"] == {
        "published": [3000, 5173], "host": [11434], "inbound": ["8080 from role=web"],
    }  # fmt: skip


def test_hosts_are_tunnelled_or_belong_to_a_service() -> None:
    found = told(FULL)
    assert found["tunnelled"] == ["example.org", "*.example.org", "db.corp.example:5432"]
    assert found["presets"] == ["python", "node"]
    billing = service(FULL, "billing")
    assert billing["tunnelled"] == ["billing.corp.example"]
    assert billing["variables"] == ["BILLING_KEY"]
    assert billing["credential"] is True
    assert billing["git"] is None
    assert (billing["http"], service(FULL, "model")["http"]) == ("2", None)


def test_rules_stand_in_the_order_in_which_they_speak() -> None:
    policy = """
[services.model]
secret = "store:model"
allow = ["GET /v1/**", "POST /v1/keys/mine"]
deny = ["GET /v1/admin/**"]
"""
    api, storage = service(policy, "model")["hosts"]
    assert list(api) == ["hosts", "deny", "opened", "guarded", "allow", "bodies"]
    assert api == {
        "hosts": ["api.model.example"],
        "deny": ["GET /v1/admin/**"],
        "opened": ["POST /v1/keys/mine"],
        "guarded": ["* /v1/keys/**", "POST /v1/files/**", "PATCH /v1/**", "PATCH /v1/jobs/*/run"],
        "allow": ["GET /v1/**"],
        "bodies": ["DELETE+body /v1/bulk/**", "DELETE+body /v1/keys/*"],
    }
    assert storage["allow"] == ["GET /**"]


def test_a_service_without_a_secret_has_no_placeholder() -> None:
    found = service("[services.model]\n", "model")
    assert found["credential"] is False
    assert found["variables"] == []


def test_a_forge_tells_its_repositories_and_branches() -> None:
    assert service(FULL, "forge")["git"] == {
        "forge": "github",
        "repos": ["acme/docs", "acme/widgets"],
        "push": ["agent/*"],
        "tags": ["v*"],
        "protect": ["release/**"],
        "create": False,
        "force": True,
        "delete": True,
        "deny_paths": ["ci/**"],
        "push_options": ["ci.skip"],
        "api": "pull-requests",
    }
    usual = service('[services.forge]\nrepos = ["a/b"]', "forge")
    assert usual["git"]["protect"] is None


def test_a_rule_for_each_repository_is_told_once() -> None:
    """A policy with a hundred repositories is not a hundred times as long."""
    rules = service(FULL, "forge")["hosts"][1]["allow"]
    assert rules == ["GET /repos/{repo}/issues/**", "GET /rate_limit", "POST /repos/{repo}/pulls"]


def test_a_presets_credential_is_told_of_and_not_told() -> None:
    """I1."""
    pattern = HostPattern.parse("mirror.example")
    host = PresetHost(pattern, inject=BasicInjection("me"), credential=Secret("hunter2hunter2hu"))
    preset = Preset("python", (host,), sources=("/home/me/.config/pip/pip.conf",))
    policy, _ = join_presets(loaded('[egress]\npresets = ["python"]').policy, [preset])
    text = disclose(policy)
    (found,) = json.loads(text)["services"]
    assert found["name"] == "preset.python"
    assert found["credential"] is True
    assert found["hosts"][0]["allow"] == ["GET /**"]
    assert "hunter2" not in text
    assert "/home/me" not in text


def test_the_same_policy_is_told_in_the_same_words() -> None:
    assert disclose(loaded(FULL).policy) == disclose(loaded(FULL).policy)
    assert disclose(loaded(FULL).policy).isascii()


def test_a_learning_run_is_told_as_one() -> None:
    policy = loaded("").policy
    assert json.loads(disclose(LearningMode().apply(policy)))["learning"] is True
    assert "learning" not in told("")
