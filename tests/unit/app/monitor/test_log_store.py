from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from keyhole.app.monitor import log_view
from keyhole.app.monitor.log_store import MAX_FRESH, MAX_PAGE, LogStore
from keyhole.app.monitor.log_view import EventFilter
from keyhole.model.decision import Reason, Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.audit.million import refusal, request, write_lines
from tests.rigs.audit.writing import NOON

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_log_that_does_not_exist_yet_is_empty_and_found_later(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "audit")
    assert store.refresh() == 0
    assert store.page(EventFilter(), None, 10).total == 0
    assert not store.fresh(0).events
    assert not store.usage("service", "hour").series
    assert store.choices()["services"] == []
    write_lines(tmp_path / "audit/a.jsonl", [(NOON, request())])
    assert store.refresh() == 1
    assert store.choices()["services"] == ["api"]


def test_a_page_is_bounded_and_counted_from_the_oldest(tmp_path: Path) -> None:
    events = [(NOON + n, request(f"/{n}")) for n in range(MAX_PAGE + 50)]
    write_lines(tmp_path / "a.jsonl", events)
    store = LogStore(tmp_path)
    store.refresh()
    newest = store.page(EventFilter(), None, 10)
    assert (newest.total, newest.first, len(newest.events)) == (250, 240, 10)
    assert newest.events[-1]["details"]["path"] == "/249"
    assert [e["n"] for e in store.page(EventFilter(), 3, 2).events] == [3, 4]
    assert len(store.page(EventFilter(), 0, 10**9).events) == MAX_PAGE
    assert store.page(EventFilter(), 10**9, 10).events == []
    fresh = store.fresh(0)
    assert (fresh.total, len(fresh.events), fresh.events[-1]["n"]) == (250, MAX_FRESH, 249)


def test_hidden_characters_of_every_text_are_written_out(tmp_path: Path) -> None:
    """I8: a name that reorders its line would read as another one."""
    bad = "a\u202eb\x1b[31m"
    event = Event(EventKind.REQUEST, Verdict.DENY, bad, bad, bad, ((bad, bad), ("method", bad)))
    write_lines(tmp_path / "a.jsonl", [(NOON, event)], session=bad)
    store = LogStore(tmp_path)
    store.refresh()
    (shown,) = store.page(EventFilter(), None, 1).events
    assert "\u202e" not in str(shown)
    assert "\x1b" not in str(shown)
    assert shown["host"] == "a\\u202eb\\x1b[31m"


def test_an_event_says_what_explains_it(tmp_path: Path) -> None:
    hostile = request("/a b;rm -rf $HOME'")
    write_lines(
        tmp_path / "a.jsonl",
        [(NOON, refusal("x.example")), (NOON, refusal("x.example", 8443)), (NOON, hostile)],
    )
    store = LogStore(tmp_path)
    store.refresh()
    first, second, third = store.page(EventFilter(), None, 3).events
    assert first["why"] == "keyhole why x.example"
    assert first["says"] == "no rule names it"
    assert second["why"] == "keyhole why x.example:8443"
    assert third["why"] == (
        "keyhole why GET 'https://api.example/a b;rm -rf $HOME'\"'\"''"
    )  # pasted into a shell, it is one word


def test_a_push_is_explained_as_the_push_of_its_ref(tmp_path: Path) -> None:
    details = (("repository", "acme/widgets"), ("ref", "refs/heads/x y"))
    reason = Reason.REF_NOT_GRANTED
    pushed = Event(EventKind.REF, Verdict.DENY, reason, "", "git.example", details)
    write_lines(tmp_path / "a.jsonl", [(NOON, pushed)])
    store = LogStore(tmp_path)
    store.refresh()
    (shown,) = store.page(EventFilter(), None, 1).events
    assert shown["why"] == "keyhole why git push https://git.example/acme/widgets 'refs/heads/x y'"


def test_a_search_of_seconds_holds_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others see what happens while somebody searches. Control: in one slice, they wait."""
    write_lines(tmp_path / "a.jsonl", [(NOON + n, request(f"/{n}")) for n in range(1000)])

    def slowly(*_: object) -> bool:
        time.sleep(0.0005)
        return False

    monkeypatch.setattr(log_view, "_says", slowly)
    monkeypatch.setattr(log_view, "_ROWS_BETWEEN_LOOKS", 8)

    def longest_wait() -> float:
        store, waits = LogStore(tmp_path), []
        store.refresh()
        search = threading.Thread(target=store.page, args=(EventFilter(text="rule"), None, 10))
        search.start()
        while search.is_alive():
            began = time.monotonic()
            store.fresh(0)
            waits.append(time.monotonic() - began)
        return max(waits)

    sliced = longest_wait()
    monkeypatch.setattr(log_view, "SLICE_SECONDS", 10.0)
    assert sliced < longest_wait() / 2
