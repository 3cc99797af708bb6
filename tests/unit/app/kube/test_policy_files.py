"""Policies of a cluster as an agent reads them: admission may have been away (I3, I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.kube.cluster_wide import ClusterWide
from keyhole.app.kube.policy_files import PolicyFiles, describe_faults
from keyhole.app.kube.resources import ClusterPolicy
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.model.errors import Refused
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
version = 1
[services.own]
hosts  = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:own/token"
allow  = ["GET /**"]
"""
SHARED = """\
[services.shared]
hosts  = ["shared.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:/etc/shared-token"
allow  = ["GET /**"]
[upstream]
private = ["*.corp.example"]
"""


@pytest.fixture
def files(tmp_path: Path) -> PolicyFiles:
    places = HostPaths(*(tmp_path / name for name in ("home", "config", "state", "runtime")))
    return PolicyFiles(tmp_path / "cluster", places, FileCatalogue())


def policy(text: str = TEXT) -> ClusterPolicy:
    selector = {"matchLabels": {"role": "agent"}}
    return ClusterPolicy.of("team", "agents", {"podSelector": selector, "policy": text})


def wide(name: str = "cluster", **spec: Any) -> ClusterWide:  # noqa: ANN401
    return ClusterWide.of(name, spec)


def test_tables_of_the_cluster_join_a_policy(files: PolicyFiles) -> None:
    joined = files.write(policy(), (wide(policy=SHARED),)).file.loaded.policy
    assert [each.name for each in joined.services] == ["own", "shared"]
    assert joined.upstream.private
    assert files.path(policy()).read_text() == f"{TEXT}\n{SHARED}"
    assert files.own_secrets(policy()) == {"own"}, "its author is asked about no other"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TEXT.replace("kube:own/token", "exec:/usr/bin/id"), "5:10: services.own.secret: "),
        (TEXT + "[upstream]\nproxy = 'http://proxy.example:3128'\n", "7:2: upstream: "),
        (TEXT.replace("hosts ", "hots  "), "3:1: "),
    ],
    ids=["a command", "a proxy", "misspelt"],
)
def test_a_policy_that_admission_missed_is_refused_with_its_place_i11(
    files: PolicyFiles, text: str, place: str
) -> None:
    with pytest.raises(PolicyFaults) as caught:
        files.write(policy(text), ())
    assert any(each.startswith(place) for each in describe_faults(caught.value)), describe_faults(
        caught.value
    )
    assert not files.path(policy()).exists()


def test_every_bound_of_the_cluster_holds_i3(files: PolicyFiles) -> None:
    hosts, services = wide("a", bounds='hosts = ["own.example"]'), wide("b", bounds="services = []")
    assert files.check(policy(), (hosts,))
    for both in ((hosts, services), (services, hosts)):
        with pytest.raises(PolicyFaults, match="may not be used"):
            files.check(policy(), both)


def test_tables_of_the_cluster_are_not_bounded_and_not_replaced(files: PolicyFiles) -> None:
    both = wide(policy=SHARED, bounds='hosts = ["own.example"]')
    assert files.check(policy(), (both,)), "the administrator's own tables"
    taken = TEXT.replace("services.own", "services.shared")
    with pytest.raises(Refused, match="cannot be joined"):
        files.check(policy(taken), (wide(policy=SHARED),))


def test_one_that_cannot_be_read_closes_what_it_selects_i3(files: PolicyFiles) -> None:
    with pytest.raises(Refused, match="is not valid: half"):
        files.check(policy(), (ClusterWide("cluster", broken="half"),))


def test_tables_of_the_cluster_have_faults_with_their_own_lines(files: PolicyFiles) -> None:
    files.check_wide(wide(policy=SHARED))
    files.check_wide(wide())
    with pytest.raises(PolicyFaults) as caught:
        files.check_wide(wide(policy=SHARED.replace("hosts ", "hots  ")))
    assert describe_faults(caught.value)[0].startswith(("1:", "2:1: "))


def test_a_policy_that_is_gone_leaves_no_file(files: PolicyFiles) -> None:
    files.write(policy(), ())
    files.write_secret(policy(), "own", {"token": b"made-up"})
    files.remove_text(policy())
    assert not files.path(policy()).exists()
    files.remove(policy())
    assert not files.path(policy()).parent.exists()
