"""The pods of a node on disk, for the next agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.kube.pod_records import PodRecord, PodRecords
from keyhole.app.kube.resources import PodIdentity

if TYPE_CHECKING:
    from pathlib import Path

POD = PodIdentity("0a-1b", "team", "agent")


def test_the_next_agent_reads_what_was_written(tmp_path: Path) -> None:
    network = tmp_path / "network"
    network.touch()
    record = PodRecord(POD, network, tmp_path / "away", ("192.0.2.7",), tmp_path / "volume")
    PodRecords(tmp_path / "pods").write(record)
    assert list(PodRecords(tmp_path / "pods").read()) == [record]
    PodRecords(tmp_path / "pods").remove(POD.uid)
    assert list(PodRecords(tmp_path / "pods").read()) == []


def test_after_a_reboot_the_claim_of_a_pod_is_still_known_i5(tmp_path: Path) -> None:
    """Its network and its volume were in memory; the API server says whether the pod comes back.
    The name of the other network may be a file."""
    away = tmp_path / "away"
    away.touch()
    records = PodRecords(tmp_path / "pods")
    lost = PodRecord(POD, tmp_path / "gone", away, (), tmp_path / "unmounted", "box", "claim")
    records.write(lost)
    (tmp_path / "pods" / "half.json").write_text("{")
    [found] = records.read()
    assert (found.has_network, found.has_volume) == (False, False)
    assert records.claimed(POD.uid) == ("box", "claim")
    assert not away.exists()
    assert [each.name for each in (tmp_path / "pods").iterdir()] == [f"{POD.uid}.json"]


def test_a_pod_that_has_a_volume_and_no_network_yet_has_a_record(tmp_path: Path) -> None:
    records = PodRecords(tmp_path / "pods")
    records.write_volume(POD, tmp_path / "volume")
    [found] = records.read()
    assert found.volume == tmp_path / "volume"
    assert not found.has_network
    whole = PodRecord(POD, tmp_path, tmp_path / "away", (), tmp_path / "volume", "box", "claim")
    records.write(whole)
    records.write_volume(POD, tmp_path / "volume")
    assert list(records.read()) == [whole], "a record with more in it stays"
