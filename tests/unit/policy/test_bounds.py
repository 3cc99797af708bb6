"""The bounds of a cluster, which no policy of a namespace goes beyond (I3)."""

from __future__ import annotations

import pytest

from keyhole.policy.bounds import faults_beyond, read_bounds
from keyhole.policy.fault import PolicyFaults
from tests.rigs.policies import loaded

POLICY = """
[sandbox]
inbound = ["8080 from role=web"]
[egress]
allow = ["example.org"]
[services.model]
secret = "kube:model/key"
[services.own]
hosts  = ["api.own.example"]
allow  = ["GET /**"]
[limits]
connections = 64
[approvals]
ask  = ["hosts"]
wait = "1m"
"""


def faults(bounds: str, policy: str = POLICY) -> list[str]:
    found = faults_beyond(loaded(policy), read_bounds("cluster", bounds))
    return [f"{each.span.line}: {each.message}" for each in found]


@pytest.mark.parametrize(
    "bounds",
    [
        "",
        'hosts = ["example.org", "*.model.example", "*.own.example"]',
        'services = ["model", "own"]',
        'inbound = ["8080 from role=web", "8081 from 192.0.2.0/24"]',
        '[approvals]\nask = ["hosts", "requests"]\nwait = "1m"',
        "[limits]\nconnections = 64\nrequests_per_second = 50",
    ],
    ids=["none", "hosts", "services", "inbound", "approvals", "limits"],
)
def test_a_policy_within_the_bounds_has_no_fault(bounds: str) -> None:
    assert faults(bounds) == []


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ('hosts = ["*.model.example", "*.own.example"]', "example.org is beyond"),
        ('hosts = ["example.org", "*.model.example"]', "api.own.example is beyond"),
        ('services = ["model"]', "a service of your own may not be used"),
        ('services = ["own"]', "model may not be used"),
        ("inbound = []", "'8080 from role=web' is beyond"),
        ("[approvals]\nask = []", "nobody is asked about hosts"),
        ('[approvals]\nwait = "30s"', "bound is 30 seconds"),
        ("[limits]\nconnections = 32", "limits.connections is 64; the cluster's bound is 32"),
        ("[limits]\nrequests_per_second = 5", "limits.requests_per_second is 50"),
        ("[limits]\ncpus = 2", "limits.cpus is without a bound"),
    ],
)
def test_a_policy_beyond_a_bound_has_a_fault_with_its_line(bounds: str, said: str) -> None:
    (fault,) = faults(bounds)
    line, _, message = fault.partition(": ")
    assert said in message
    assert int(line) >= 1


def test_a_fault_stands_at_the_key_that_goes_beyond() -> None:
    (fault,) = faults_beyond(loaded(POLICY), read_bounds("cluster", "[limits]\nconnections = 32"))
    assert "connections = 64" in fault.source
    assert fault.hint == "the ClusterKeyholePolicy cluster sets this bound"
    (unset,) = faults_beyond(loaded(POLICY), read_bounds("cluster", "[limits]\nbody = '1MiB'"))
    assert "[limits]" in unset.source, "where the key would stand"


def test_a_policy_that_says_nothing_asks_about_hosts_and_requests() -> None:
    silent = POLICY.partition("[approvals]")[0]
    assert len(faults("[approvals]\nask = []", silent)) == 2


@pytest.mark.parametrize("text", ["host = []", "hosts = 1", "[limits]\non_decoy = 'note'", "["])
def test_bounds_of_another_form_are_faults_i3(text: str) -> None:
    with pytest.raises(PolicyFaults):
        read_bounds("cluster", text)
