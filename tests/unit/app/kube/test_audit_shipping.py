"""The audit log of a node, shipped with the pod of each event, from a real log."""

from __future__ import annotations

import io
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from keyhole.app.kube.audit_shipping import (
    AuditShipper,
    RotatedFile,
    SessionPods,
    ShippedEvent,
    StandardOutput,
)
from keyhole.app.kube.pod_states import BOUND
from keyhole.audit.log import AuditLog
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_line import line_digest
from keyhole.audit.log_reader import LogReader
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

POD = {"namespace": "team", "pod": "one", "uid": "0-1", "account": "runner"}


def _bound(**details: str) -> Event:
    return Event(EventKind.SESSION, Verdict.ALLOW, BOUND, details=tuple(details.items()))


def _denied(host: str) -> Event:
    return Event(EventKind.DNS, Verdict.DENY, "no-rule", rule="default", host=host)


def _write(directory: Path, *hosts: str, session: str = "s1", bound: bool = True) -> None:
    with AuditLog(directory) as log:
        if bound:
            log.record(session, _bound(**POD))
        for host in hosts:
            log.record(session, _denied(host))


class _Receiver:
    name = "test"

    def __init__(self) -> None:
        self.events: list[ShippedEvent] = []
        self.away = False
        self.refused = 0
        self.said: list[str] = []

    def take(self, events: list[ShippedEvent]) -> None:
        if self.away:
            self.refused += 1
            raise OSError("away")
        self.events += events

    @property
    def hosts(self) -> list[str]:
        return [each.record.host for each in self.events if each.record.host]


def _ship(directory: Path, place: Path, receiver: _Receiver) -> None:
    shipper = AuditShipper(directory, place, "node", receiver, receiver.said.append)
    threading.Thread(target=shipper.run, daemon=True).start()


def test_events_have_the_pod_of_their_session_i8(tmp_path: Path) -> None:
    _write(tmp_path / "log", "evil.example")
    _write(tmp_path / "log", "own.example", session="s2", bound=False)
    receiver = _Receiver()
    _ship(tmp_path / "log", tmp_path, receiver)
    until(lambda: sorted(receiver.hosts) == ["evil.example", "own.example"])
    pods = {each.record.host: each.pod for each in receiver.events if each.record.host}
    assert pods == {"evil.example": POD, "own.example": {}}


def test_a_shipped_line_is_the_logs_own_with_two_members_behind_it_i8(tmp_path: Path) -> None:
    """What the chain of digests is made of can be had back."""
    _write(tmp_path, "evil.example")
    entries = LogReader(LogDirectory.open(tmp_path)).fresh()
    pods = SessionPods()
    for entry in entries:
        assert entry.record is not None
        event = ShippedEvent(entry.record, entry.data, "node-1", pods.pod_of(entry.record))
        told: dict[str, Any] = json.loads(event.line)
        assert (told.pop("node"), told.pop("pod")) == ("node-1", event.pod)
        assert told == json.loads(entry.data)
        assert line_digest(event.line.partition(b',"node":')[0] + b"}") == entry.id


def test_after_a_restart_nothing_is_left_out_and_nothing_comes_twice(tmp_path: Path) -> None:
    first, second = _Receiver(), _Receiver()
    _write(tmp_path / "log", "one.example")
    _ship(tmp_path / "log", tmp_path, first)
    until(lambda: first.hosts == ["one.example"] and (tmp_path / "test.json").exists())
    first.away = True
    _write(tmp_path / "log", "two.example", bound=False)
    _ship(tmp_path / "log", tmp_path, second)
    until(lambda: second.hosts == ["two.example"])
    (event,) = (each for each in second.events if each.record.host)
    assert event.pod == POD, "the session's pod was remembered"


def test_a_receiver_that_was_away_gets_everything_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.app.kube.audit_shipping.RETRY_SECONDS", 0.01)
    receiver = _Receiver()
    receiver.away = True
    _write(tmp_path / "log", "one.example", "two.example")
    _ship(tmp_path / "log", tmp_path, receiver)
    until(lambda: receiver.refused > 1)
    receiver.away = False
    until(lambda: receiver.hosts == ["one.example", "two.example"])
    assert receiver.said == ["audit events wait for test: away"], "it is said once"


def _events(directory: Path) -> list[ShippedEvent]:
    entries = LogReader(LogDirectory.open(directory)).fresh()
    return [ShippedEvent(each.record, each.data, "n", {}) for each in entries if each.record]


def test_lines_on_standard_output_are_json(tmp_path: Path) -> None:
    _write(tmp_path, "a\nb.example")
    stream = io.StringIO()
    StandardOutput(stream).take(_events(tmp_path))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["host"] for each in lines if each["host"]] == ["a\nb.example"]


def test_a_full_file_is_renamed_and_the_oldest_goes_i9(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RotatedFile, "SIZE", 10)
    _write(tmp_path / "log", "one.example")
    events = _events(tmp_path / "log")
    file = RotatedFile(tmp_path / "audit.jsonl")
    for _ in range(7):
        file.take(events)
    names = sorted(path.name for path in tmp_path.glob("audit.jsonl*"))
    assert names == [f"audit.jsonl.{number}" for number in range(1, RotatedFile.KEPT + 1)]


def test_only_the_owner_reads_a_shipped_file_as_the_log_itself_i8(tmp_path: Path) -> None:
    """Whatever the process was started with."""
    _write(tmp_path / "log", "one.example")
    before = os.umask(0)
    try:
        RotatedFile(tmp_path / "audit.jsonl").take(_events(tmp_path / "log"))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("audit.jsonl")}
    assert modes == {"audit.jsonl": 0o600}


def test_the_pods_of_too_many_sessions_are_not_remembered_i9(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.app.kube.audit_shipping.MAX_SESSIONS", 2)
    for number in range(4):
        _write(tmp_path, session=f"s{number}")
    pods = SessionPods()
    for event in _events(tmp_path):
        pods.pod_of(event.record)
    assert len(pods.known) == 2
