"""A policy is hostile until a person accepted these very bytes (I11)."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import (
    AcceptanceStore,
    ExaminedPolicy,
    describe_changes,
    examine_policy,
)
from keyhole.app.setup.policy_file import PolicyFile, open_policy
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def places(tmp_path: Path) -> HostPaths:
    return HostPaths(*(tmp_path / each for each in ("home", "config", "state", "run")))


@pytest.fixture
def store(places: HostPaths) -> AcceptanceStore:
    return AcceptanceStore(places.trust)


def policy_file(tmp_path: Path, places: HostPaths, text: str) -> PolicyFile:
    path = tmp_path / "keyhole.toml"
    path.write_text("version = 1\n" + text)
    return open_policy(path, places, FileCatalogue())


def examined(tmp_path: Path, places: HostPaths, text: str, search_path: str = "") -> ExaminedPolicy:
    return examine_policy(policy_file(tmp_path, places, text), places.home, search_path)


def test_the_digest_of_a_policy_that_refers_to_nothing_is_that_of_its_bytes(
    tmp_path: Path, places: HostPaths
) -> None:
    found = examined(tmp_path, places, "")
    data = (tmp_path / "keyhole.toml").read_bytes()
    assert found.digest == "sha256:" + hashlib.sha256(data).hexdigest()


def test_nothing_is_accepted_until_it_is(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    found = examined(tmp_path, places, "")
    assert store.find(found.file.path) is None
    store.accept(found)
    accepted = store.find(found.file.path)
    assert accepted is not None
    assert accepted.digest == found.digest


def test_a_change_of_one_byte_is_a_change(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    store.accept(examined(tmp_path, places, "[egress]\nallow = ['a.example']"))
    now = examined(tmp_path, places, "[egress]\nallow = ['b.example']")
    before = store.find(now.file.path)
    assert before is not None
    assert before.digest != now.digest
    assert [line for line in describe_changes(now, before) if line.startswith(("+a", "-a"))] == [
        "-allow = ['a.example']",
        "+allow = ['b.example']",
    ]


def test_a_diff_hides_nothing(tmp_path: Path, places: HostPaths, store: AcceptanceStore) -> None:
    """I8: bidi overrides and escapes in a changed policy are shown as escapes."""
    store.accept(examined(tmp_path, places, "# plain"))
    now = examined(tmp_path, places, "# \u202e hidden \u2028 line")
    before = store.find(now.file.path)
    assert before is not None
    assert r"+# \u202e hidden \u2028 line" in describe_changes(now, before)


def test_a_file_that_the_policy_refers_to_is_part_of_it(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    """Certificates and scripts: their content counts, and so does their absence."""
    text = "[upstream]\nca_file = 'ca.pem'\n[services.x]\nhosts = ['x.example']\n"
    text += "allow = []\nsecret = 'exec:./token.sh now extra.sh'\ninject = { query = 'k' }\n"
    missing = examined(tmp_path, places, text)
    (tmp_path / "ca.pem").write_text("one")
    (tmp_path / "token.sh").write_text("echo")
    first = examined(tmp_path, places, text)
    assert [r.data for r in first.referred] == [b"one", b"echo"]
    store.accept(first)
    (tmp_path / "token.sh").write_text("curl evil")
    second = examined(tmp_path, places, text)
    (tmp_path / "extra.sh").write_text("an argument")
    third = examined(tmp_path, places, text)
    assert len({d.digest for d in (missing, first, second, third)}) == 4
    before = store.find(second.file.path)
    assert before is not None
    assert [c for c in describe_changes(second, before) if c.startswith("changed")] == [
        f"changed: services.x.secret ({tmp_path}/token.sh)"
    ]


def test_a_program_found_by_name_counts_by_its_place_not_its_content(
    tmp_path: Path, places: HostPaths
) -> None:
    text = "[services.github]\nsecret = 'exec:gh auth token'\nrepos = ['a/b']\n"
    for name in ("one", "two"):
        program = tmp_path / name / "gh"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    first = examined(tmp_path, places, text, str(tmp_path / "one"))
    (tmp_path / "one" / "gh").write_text("#!/bin/sh\n# upgraded\n")
    upgraded = examined(tmp_path, places, text, str(tmp_path / "one"))
    moved = examined(tmp_path, places, text, f"{tmp_path}/two:{tmp_path}/one")
    gone = examined(tmp_path, places, text, "")
    assert first.digest == upgraded.digest
    assert len({first.digest, moved.digest, gone.digest}) == 3


def test_a_home_path_is_the_users(tmp_path: Path, places: HostPaths) -> None:
    places.home.mkdir()
    (places.home / "ca.pem").write_text("home")
    found = examined(tmp_path, places, "[upstream]\nca_file = '~/ca.pem'")
    assert found.referred[0].data == b"home"


def test_a_secret_file_is_neither_read_nor_hashed(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    """I1: rotation is no change of policy, and no digest of a secret is kept."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0)
    text = f"[services.anthropic]\nsecret = 'file:{secret}'"
    found = examined(tmp_path, places, text)
    assert found.referred == ()
    store.accept(found)
    kept = "".join(p.read_text() for p in places.trust.iterdir())
    assert "hunter2" not in kept
    assert str(secret) in kept


def test_acceptances_are_the_users_alone(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    store.accept(examined(tmp_path, places, ""))
    assert places.trust.stat().st_mode & 0o077 == 0
    assert [p.stat().st_mode & 0o077 for p in places.trust.iterdir()] == [0]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"digest": 1}', json.dumps({"text": "x"})])
def test_a_damaged_record_accepts_nothing(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore, damage: str
) -> None:
    """I3: whatever cannot be read denies."""
    found = examined(tmp_path, places, "")
    store.accept(found)
    assert store.find(found.file.path)
    next(places.trust.iterdir()).write_text(damage)
    assert store.find(found.file.path) is None


def test_a_policy_of_another_path_is_another_policy(
    tmp_path: Path, places: HostPaths, store: AcceptanceStore
) -> None:
    store.accept(examined(tmp_path, places, ""))
    (tmp_path / "clone").mkdir()
    clone = examined(tmp_path / "clone", places, "")
    assert store.find(clone.file.path) is None


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "missing"])
def test_only_a_regular_file_is_a_policy(tmp_path: Path, places: HostPaths, kind: str) -> None:
    """I9: a pipe in its place does not hang the run."""
    path = tmp_path / "keyhole.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    with pytest.raises(Refused):
        open_policy(path, places, FileCatalogue())
