"""The kept CAs of pods: the same after a restart, for root alone (I1)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from keyhole.app.kube.pod_authorities import PodAuthorities

if TYPE_CHECKING:
    from pathlib import Path

DAY = timedelta(days=1)


def test_the_next_agent_has_the_same_ca(tmp_path: Path) -> None:
    place = tmp_path / "pods"
    first = PodAuthorities(place).open("aa", DAY)
    assert PodAuthorities(place).open("aa", DAY) == first
    assert PodAuthorities(place).open("bb", DAY) != first
    assert place.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in place.iterdir()} == {0o600}


def test_one_that_ends_too_soon_or_is_broken_is_made_anew(tmp_path: Path) -> None:
    kept = PodAuthorities(tmp_path)
    first = kept.open("aa", DAY)
    second = kept.open("aa", timedelta(days=300))
    assert second != first
    (tmp_path / "aa.pem").write_bytes(b"half")
    assert kept.open("aa", DAY) not in (first, second)


def test_the_ca_of_a_pod_that_is_gone_is_removed(tmp_path: Path) -> None:
    kept = PodAuthorities(tmp_path)
    first = kept.open("aa", DAY)
    kept.open("bb", DAY)
    kept.remove("bb")
    kept.keep_only({"aa"})
    assert [each.name for each in tmp_path.iterdir()] == ["aa.pem"]
    kept.keep_only(set())
    assert kept.open("aa", DAY) != first
