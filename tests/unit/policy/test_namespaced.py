"""What the author of a namespace's policy cannot make a node do (I11)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keyhole.policy.namespaced import faults_in_namespace
from tests.rigs.policies import loaded

PLAIN = """
[egress]
allow = ["example.org"]
[services.own]
hosts  = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:own/token"
allow  = ["GET /**"]
"""


def test_a_policy_with_secrets_of_its_namespace_has_no_fault() -> None:
    assert faults_in_namespace(loaded(PLAIN)) == ()
    without = PLAIN.replace('secret = "kube:own/token"\n', "")
    assert faults_in_namespace(loaded(without)) == ()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[upstream]\nproxy = 'http://proxy.example:3128'\n", "upstream: "),
        ("[approvals]\ncommand = '/usr/bin/id'\n", "approvals.command: "),
        ("[sandbox]\nhost_ports = [11434]\n", "sandbox.host_ports: "),
        ("[sandbox]\npublish = [8080]\n", "sandbox.publish: "),
        ("[sandbox]\npass_env = ['LANG']\n", "sandbox.pass_env: "),
    ],
)
def test_what_a_node_would_do_for_its_author_is_a_fault(more: str, said: str) -> None:
    (fault,) = faults_in_namespace(loaded(PLAIN + more))
    assert fault.message.startswith(said)
    assert fault.source.strip(), "it has a line"


@pytest.mark.parametrize("secret", ["exec:/usr/bin/id", "file:/etc/shadow", "store:own"])
def test_a_secret_of_the_node_is_a_fault(secret: str) -> None:
    (fault,) = faults_in_namespace(loaded(PLAIN.replace("kube:own/token", secret)))
    assert fault.message.startswith("services.own.secret: ")


def test_a_key_that_signs_is_a_fault() -> None:
    plain = loaded(PLAIN)
    sandbox = replace(plain.policy.sandbox, sign="~/.ssh/key.pub")
    signing = replace(plain, policy=replace(plain.policy, sandbox=sandbox))
    (fault,) = faults_in_namespace(signing)
    assert fault.message.startswith("sandbox.sign: ")


def test_a_preset_is_a_fault() -> None:
    text = PLAIN.replace('allow = ["example.org"]', 'presets = ["python"]')
    (fault,) = faults_in_namespace(loaded(text))
    assert fault.message.startswith("egress.presets: ")
