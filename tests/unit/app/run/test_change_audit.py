"""Every act on changes that were held for review has its event, and none is untrue (I8)."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.run.change_audit import ChangeAudit, auditing_changes, hold_recorded
from keyhole.audit.log import AuditLog
from keyhole.changes.transaction import Transaction
from keyhole.model.errors import ResourceUnusable
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {"a": "one\n", "b": "two\n"}


class Broken(Exception):
    """The process ends here."""


def broken(*_: object) -> None:
    raise Broken


@contextlib.contextmanager
def acting(review: Review, audit: Path) -> Iterator[ChangeAudit]:
    """As a verb begins."""
    with auditing_changes(audit, review.store) as log, review.store.holding("a verb"):
        log.record_recovered()
        yield log


def events(audit: Path) -> list[dict[str, Any]]:
    lines = [
        line for file in sorted(audit.glob("*.jsonl")) for line in file.read_text().split("\n")
    ]
    found = [json.loads(line) for line in lines if line.strip("\0")]
    acts = [each for each in found if each.get("kind") == "changes"]
    return sorted(acts, key=lambda each: str(each["ts"]))


def reasons(audit: Path) -> list[str]:
    return [each["reason"] for each in events(audit)]


def apply(review: Review, log: ChangeAudit) -> None:
    plan = review.plan()
    with log.recording_failure("apply"):
        review.store.apply(plan)
    log.record("applied", plan.chosen)


@pytest.mark.parametrize("act", ["apply", "undo", "discard"])
def test_an_act_whose_event_was_not_written_is_recorded_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Control: one whose event was written is recorded once."""
    audit = tmp_path / "audit"
    review = Review.of(tmp_path, FILES)
    review.write("a", "sandbox\n")
    with acting(review, audit) as log:
        apply(review, log)
    review.write("b", "sandbox\n")
    with (
        acting(review, audit) as log,
        monkeypatch.context() as patch,
        contextlib.suppress(Broken),
    ):
        patch.setattr(AuditLog, "record", broken)
        match act:
            case "apply":
                apply(review, log)
            case "undo":
                review.store.undo()
                log.record("undone")
            case _:
                review.store.discard(None)
                log.record("discarded")
    assert review.store.unrecorded == act
    assert reasons(audit) == ["applied"]
    os.close(hold_recorded(audit, review.store, "a run"))
    assert reasons(audit) == ["applied", f"{act}-unrecorded"]
    with acting(review, audit):
        pass
    assert reasons(audit) == ["applied", f"{act}-unrecorded"]


def test_an_apply_that_was_killed_is_finished_only_with_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, nothing changes."""
    review = Review.of(tmp_path, FILES)
    review.write("a", "sandbox\n")
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "go_forward", broken)
        with pytest.raises(Broken):
            review.apply()
    closed = tmp_path / "closed"
    closed.write_text("a file")
    for begin in (
        lambda: hold_recorded(closed, review.store, "a run"),
        lambda: acting(review, closed).__enter__(),
    ):
        with pytest.raises((OSError, ResourceUnusable)):
            begin()
    assert review.files() == FILES
    audit = tmp_path / "audit"
    os.close(hold_recorded(audit, review.store, "a run"))
    assert review.files() == FILES | {"a": "sandbox\n"}
    assert reasons(audit) == ["apply-recovered"]
    assert not review.store.unrecorded


def test_an_act_that_fails_is_recorded_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = Review.of(tmp_path, FILES)
    review.write("a", "sandbox\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with acting(review, tmp_path / "audit") as log, monkeypatch.context() as patch:
        patch.setattr(Transaction, "go_forward", full)
        with pytest.raises(ResourceUnusable):
            apply(review, log)
    assert [(e["reason"], e["verdict"]) for e in events(tmp_path / "audit")] == [
        ("apply-failed", "deny")
    ]
    assert not review.store.unrecorded


def test_names_cannot_forge_what_an_event_says(tmp_path: Path) -> None:
    """Attack: a name that reads as two names and a count."""
    review = Review.of(tmp_path, FILES)
    names = ["a, src", "a, src/login.py, and 900 more", 'q"],"unnamed=0', "tab\tand\x1b"]
    for name in names[1:]:
        review.write(name, "x\n")
    audit = tmp_path / "audit"
    with acting(review, audit) as log:
        apply(review, log)
    details = events(audit)[0]["details"]
    assert set(json.loads(details["paths"])) == set(names)
    assert (details["changes"], details["unnamed"]) == (len(names), 0)


def test_many_and_long_names_are_counted_and_never_cut(tmp_path: Path) -> None:
    """I9: an event is small."""
    review = Review.of(tmp_path, FILES)
    names = [*(f"{n:02}" + "\x01" * 60 for n in range(30)), *(f"s{n}" for n in range(30))]
    for name in names:
        review.write(name, "x\n")
    audit = tmp_path / "audit"
    with acting(review, audit) as log:
        apply(review, log)
    details = events(audit)[0]["details"]
    named = json.loads(details["paths"])
    assert named
    assert set(named) < set(names)
    assert details["unnamed"] == len(names) - len(named)
