"""What sessions did, out of a log that may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.learning import recorded_uses
from keyhole.app.learning.recorded_uses import last_session, read_uses
from keyhole.audit.log import AuditLog
from keyhole.audit.log_directory import LogDirectory
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.host import Host
from keyhole.policy.recorded_use import RecordedUse
from tests.rigs.audit.writing import Hands, session_event

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


def connect(host: str, verdict: Verdict = ALLOW, reason: str = "rule", port: int = 443) -> Event:
    return Event(EventKind.CONNECT, verdict, reason, host=host, details=(("port", port),))


def request(host: str, path: str) -> Event:
    details = (("method", "GET"), ("path", path), ("service", "s"))
    return Event(EventKind.REQUEST, ALLOW, "rule", host=host, details=details)


def write(path: Path, *events: tuple[str, Event]) -> LogDirectory:
    hands = Hands()
    with AuditLog(path, hands.clock()) as log:
        for session, event in events:
            log.record(session, event)
            hands.now += 1
    return LogDirectory.open(path)


def test_each_thing_is_counted_once_for_all_sessions(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        ("one", connect("a.example")),
        ("two", connect("a.example")),
        ("two", connect("a.example", DENY, "no-rule")),
        ("two", connect("a.example", ALLOW, "closed")),
        ("two", connect("b.example", DENY, "over-limit")),
        ("two", connect("not a host!", DENY, "no-rule")),
        ("two", Event(EventKind.DNS, DENY, "no-rule", host="c.example")),
    )
    found = read_uses(directory, None, lambda _: True)
    a, c = RecordedUse(Host("a.example")), RecordedUse(Host("c.example"))
    assert {use: (n.allowed, n.denied, n.total) for use, n in found.uses.items()} == {
        a: (2, 1, 3),
        c: (0, 1, 1),
    }
    assert found.uses[a].session == "one"
    assert found.events == 5
    assert [*read_uses(directory, None, lambda s: s == "one").uses] == [a]


def test_a_request_has_the_port_of_its_host_in_that_session(tmp_path: Path) -> None:
    directory = write(
        tmp_path, ("one", connect("a.example", port=8443)), ("one", request("a.example", "/x"))
    )
    used = [*read_uses(directory, None, lambda _: True).uses][1]
    assert used == RecordedUse(Host("a.example"), 8443, "GET", "/x")


def test_the_last_learning_run_is_chosen_else_the_last_session(tmp_path: Path) -> None:
    assert last_session(write(tmp_path / "0"), None) is None
    plain = write(tmp_path / "1", ("one", connect("a.example")), ("two", connect("a.example")))
    assert last_session(plain, None) == "two"
    learnt = write(
        tmp_path / "2", ("one", session_event("learning")), ("two", connect("a.example"))
    )
    assert last_session(learnt, None) == "one"


def test_older_events_are_left_out(tmp_path: Path) -> None:
    directory = write(tmp_path, ("one", connect("a.example")), ("one", connect("b.example")))
    late = Hands().now + 0.5
    found = read_uses(directory, late, lambda _: True)
    assert [use.host.name for use in found.uses] == ["b.example"]


def test_the_number_of_different_things_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a sandbox that asks for a new path each time fills no memory."""
    monkeypatch.setattr(recorded_uses, "MAX_USES", 3)
    directory = write(tmp_path, *(("one", request("a.example", f"/{n}")) for n in range(5)))
    found = read_uses(directory, None, lambda _: True)
    assert (len(found.uses), found.beyond, found.events) == (3, 2, 5)
