"""`kube:`: values that the node agent keeps beside a policy's file (I1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.vault.cluster_source import ClusterSource
from keyhole.vault.interface import SecretUnavailable
from tests.rigs.vault.rig import VALUE, ref

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of one Secret."""
    made = tmp_path / "secrets" / "billing"
    made.mkdir(parents=True)
    (made / "token").write_text(VALUE)
    return made


def test_the_value_beside_the_policy_is_read_and_a_new_one_is_noticed(
    tmp_path: Path, place: Path
) -> None:
    source, wanted = ClusterSource(tmp_path), ref("kube:billing/token")
    reading, before = source.read(wanted), source.mark(wanted)
    assert reading.secret is not None
    assert reading.secret.reveal() == VALUE
    beside = place / "new"
    beside.write_text("another-made-up-value-0123456789")
    beside.replace(place / "token")
    assert source.mark(wanted) != before


def test_another_key_or_a_link_is_not_a_secret_of_the_cluster(tmp_path: Path, place: Path) -> None:
    (place / "linked").symlink_to(place / "token")
    for name in ("missing", "linked"):
        with pytest.raises(SecretUnavailable, match="no such Secret"):
            ClusterSource(tmp_path).read(ref(f"kube:billing/{name}"))


def test_a_file_of_another_user_is_not_one(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(SecretUnavailable, match="only a node agent"):
        ClusterSource(tmp_path).read(ref("kube:billing/token"))
