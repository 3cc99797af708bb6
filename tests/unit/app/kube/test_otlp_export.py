"""Audit events at a collector of OpenTelemetry, by its own protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyhole.app.kube.audit_shipping import ShippedEvent
from keyhole.app.kube.otlp_export import EVENT, OtlpReceiver
from keyhole.audit.log import AuditLog
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogReader
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.kube.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POD = {"namespace": "team", "pod": "one", "uid": "0-1", "account": "runner"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """It listens on loopback."""
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def events(tmp_path: Path) -> list[ShippedEvent]:
    """Two decisions of a real log."""
    with AuditLog(tmp_path) as log:
        for host, verdict in (("one.example", Verdict.ALLOW), ("two.example", Verdict.DENY)):
            log.record("s1", Event(EventKind.REQUEST, verdict, "rule", "services.one", host,
                                   details=(("ms", 7),)))  # fmt: skip
    entries = LogReader(LogDirectory.open(tmp_path)).fresh()
    return [ShippedEvent(each.record, each.data, "node-1", POD)
            for each in entries if each.record is not None and each.record.host]  # fmt: skip


def test_a_collector_gets_each_event_with_its_pod_i8(
    collector: Collector, events: list[ShippedEvent]
) -> None:
    OtlpReceiver(collector.url, "node-1").take(events)
    assert len(collector.records) == 2
    resource, record = collector.records[1]
    assert (resource["service.name"], resource["k8s.node.name"]) == ("keyhole", "node-1")
    told = {each.key: each.value.string_value for each in record.attributes}
    assert told["k8s.pod.name"] == "one"
    assert told["k8s.pod.uid"] == "0-1"
    assert told["keyhole.host"] == "two.example"
    assert (record.severity_text, record.event_name) == ("WARN", EVENT)
    assert json.loads(record.body.string_value)["pod"] == POD
    assert record.time_unix_nano == int(events[1].record.at * 1e9)


def test_what_a_collector_refuses_is_offered_again(
    collector: Collector, events: list[ShippedEvent]
) -> None:
    receiver = OtlpReceiver(collector.url, "node-1")
    collector.away = True
    with pytest.raises(OSError, match="did not take"):
        receiver.take(events)
    assert collector.refused
    collector.away = False
    receiver.take(events)
    assert len(collector.records) == 2
