"""The rule that an "always" writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, ExaminedPolicy, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.watch.lasting_rule import rule_for, save_rule_for
from keyhole.model.errors import Refused
from keyhole.policy.asks import AskSubject
from keyhole.policy.schema import AskKind
from tests.rigs.control.rig import ASK

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("changed", "table", "key"),
    [
        ({"kind": "hosts", "service": "", "rule": "api.example"}, ("egress",), "allow"),
        ({}, ("services", "api"), "allow_also"),
        ({"kind": "pushes", "ref": "refs/heads/x", "rule": "x"}, ("services", "api"), "push"),
        ({"kind": "pushes", "ref": "refs/tags/x", "rule": "x"}, ("services", "api"), "tags"),
    ],
)
def test_a_question_becomes_the_narrowest_rule(
    changed: dict[str, str], table: tuple[str, ...], key: str
) -> None:
    added = rule_for(replace(ASK, **changed))
    assert (added.table, added.key, added.value) == (table, key, changed.get("rule", ASK.rule))


def test_a_preset_is_no_service_of_the_policy() -> None:
    with pytest.raises(Refused):
        rule_for(replace(ASK, service="preset.python"))


@pytest.mark.parametrize("ref", ["refs/heads/refs/tags/main", "refs/tags/refs/heads/x"])
def test_a_ref_that_is_called_like_another_gets_no_rule(ref: str) -> None:
    """I3: "always" for it must not unprotect main. Control: the rule of a plain name is above."""
    subject = AskSubject(AskKind.PUSHES, "git.example", 443, "api", "create", "a/b", ref)
    with pytest.raises(Refused, match="no policy can name refs/"):
        rule_for(replace(ASK, kind="pushes", ref=ref, rule=subject.rule))


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "hosts", "rule": "*.api.example"},
        {"kind": "hosts", "host": "*.api.example", "rule": "*.api.example"},
        {"kind": "hosts", "rule": "other.example"},
        {"kind": "hosts", "rule": "api.example:8443"},
        {"rule": "* /v1/x"},
        {"rule": "GET,DELETE /v1/x"},
        {"rule": "GET /v1/**", "path": "/v1/**"},
        {"method": "*", "rule": "* /v1/x"},
        {"kind": "pushes", "ref": "refs/heads/x", "rule": "main"},
        {"kind": "pushes", "ref": "refs/heads/*", "rule": "*"},
    ],
)
def test_a_rule_that_allows_more_than_the_question_says_is_refused_i3(
    changed: dict[str, str],
) -> None:
    """A data plane that was taken over chooses each member by itself. The control is above."""
    with pytest.raises(Refused):
        rule_for(replace(ASK, **changed))


TEXT = 'version = 1\n[services.api]\nhosts = ["api.example"]\nallow = ["GET /"]\n'


@pytest.fixture
def places(tmp_path: Path) -> HostPaths:
    return HostPaths(*(tmp_path / each for each in ("home", "config", "state", "run")))


@pytest.fixture
def policy(tmp_path: Path, places: HostPaths) -> Path:
    """An accepted one."""
    path = tmp_path / "keyhole.toml"
    path.write_text(TEXT)
    AcceptanceStore(places.trust).accept(examine(path, places))
    return path


def examine(path: Path, places: HostPaths) -> ExaminedPolicy:
    return examine_policy(open_policy(path, places, FileCatalogue()), places.home, "")


def test_a_rule_for_the_service_of_another_host_is_not_written_i3(
    policy: Path, places: HostPaths
) -> None:
    with pytest.raises(Refused, match=r"services\.api has no host harmless\.example"):
        save_rule_for(replace(ASK, host="harmless.example"), str(policy), places, "")
    assert policy.read_text() == TEXT
    save_rule_for(ASK, str(policy), places, "")  # the control
    assert policy.read_text() == TEXT + 'allow_also = ["GET /v1/x"]\n'


def test_no_rule_is_lost_when_many_are_written_at_once(policy: Path, places: HostPaths) -> None:
    def save(number: int) -> None:
        path = f"/v1/{number}"
        ask = replace(ASK, path=path, rule=f"{ASK.method} {path}")
        save_rule_for(ask, str(policy), places, "")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(16)))
    after = examine(policy, places)
    assert all(f"{ASK.method} /v1/{number}" in policy.read_text() for number in range(16))
    accepted = AcceptanceStore(places.trust).find(policy)
    assert accepted is not None
    assert accepted.digest == after.digest
