"""A rule goes into the accepted file, which stays accepted; into any other it does not (I11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, ExaminedPolicy, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.policy_saving import PolicyChange, plan_change, save_change
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.policy.edit import RuleAddition
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from pathlib import Path

TEXT = 'version = 1\n[egress]\nallow = ["a.example"]  # mine\n'
RULE = RuleAddition(("egress",), "allow", "new.example")
CATALOGUE = FileCatalogue()


@pytest.fixture
def places(tmp_path: Path) -> HostPaths:
    return HostPaths(*(tmp_path / each for each in ("home", "config", "state", "run")))


@pytest.fixture
def store(places: HostPaths) -> AcceptanceStore:
    return AcceptanceStore(places.trust)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keyhole.toml"
    path.write_text(TEXT)
    return path


def examine(path: Path, places: HostPaths) -> ExaminedPolicy:
    return examine_policy(open_policy(path, places, CATALOGUE), places.home, "")


def plan(
    path: Path, places: HostPaths, store: AcceptanceStore, *rules: RuleAddition
) -> PolicyChange:
    return plan_change(examine(path, places), rules or (RULE,), store, places, CATALOGUE, "")


def test_a_saved_rule_is_in_the_file_and_the_file_is_accepted(
    path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    store.accept(examine(path, places))
    inode = path.stat().st_ino
    change = plan(path, places, store)
    assert change.diff()[2:] == [
        "@@ -1,4 +1,4 @@",
        " version = 1",
        " [egress]",
        '-allow = ["a.example"]  # mine',
        '+allow = ["a.example", "new.example"]  # mine',
        " ",
    ]
    assert path.read_text() == TEXT  # planning writes nothing
    save_change(change, store)
    assert path.read_text() == TEXT.replace('e"]', 'e", "new.example"]')
    assert path.stat().st_ino == inode  # a sandbox's mount on it stays
    accepted = store.find(path)
    assert accepted is not None
    assert accepted.digest == examine(path, places).digest
    assert plan(path, places, store).is_empty


def test_a_file_that_is_not_accepted_is_left_alone(
    path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    with pytest.raises(Refused, match="not accepted as it is now"):
        plan(path, places, store)
    store.accept(examine(path, places))
    path.write_text(TEXT + "[sandbox]\n")
    with pytest.raises(Refused, match="keyhole policy trust"):
        plan(path, places, store)


def test_a_file_that_changes_meanwhile_is_left_alone(
    path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    """Attack: a tool rewrites the policy while the person looks at the question."""
    store.accept(examine(path, places))
    change = plan(path, places, store)
    hostile = TEXT.replace("a.example", "evil.example")
    path.write_text(hostile)
    with pytest.raises(Refused, match="changed meanwhile"):
        save_change(change, store)
    assert path.read_text() == hostile
    accepted = store.find(path)
    assert accepted is not None
    assert accepted.digest != examine(path, places).digest


def test_a_link_or_a_pipe_in_its_place_is_not_written(
    path: Path, places: HostPaths, store: AcceptanceStore, tmp_path: Path
) -> None:
    store.accept(examine(path, places))
    change = plan(path, places, store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResourceUnusable):
        save_change(change, store)
    assert (tmp_path / "elsewhere").read_text() == TEXT
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Refused, match="not a regular file"):
        save_change(change, store)


def test_a_rule_that_does_not_fit_is_refused_by_the_real_parser(
    path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    store.accept(examine(path, places))
    with pytest.raises(PolicyFaults):
        plan(path, places, store, RuleAddition(("egress",), "allow", "*.com"))


def test_a_program_that_was_changed_is_not_accepted_along(
    path: Path, places: HostPaths, store: AcceptanceStore, tmp_path: Path
) -> None:
    script = tmp_path / "token"
    script.write_text("echo a")
    path.write_text(TEXT + '[services.anthropic]\nsecret = "exec:./token"\n')
    before = examine(path, places)
    store.accept(before)
    script.write_text("echo evil")
    with pytest.raises(Refused, match="has changed since the policy was accepted"):
        plan_change(before, (RULE,), store, places, CATALOGUE, "")
