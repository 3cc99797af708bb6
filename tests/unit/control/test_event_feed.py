"""Streams of events: bounded for each reader, and no question is lost (I9)."""

from __future__ import annotations

import json
import os
import selectors
from typing import TYPE_CHECKING

import pytest

from keyhole.control import event_feed
from keyhole.control.event_feed import MAX_FEEDS, EventFeeds, now_ms
from keyhole.control.values import EventQuery, WatchEvent, WatchKind
from keyhole.control.watchers import is_watched, watching
from keyhole.model.errors import Refused
from tests.rigs.control.rig import ASK, KNOWN, Rig
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.control.client import EventStream

SESSION = WatchEvent(WatchKind.SESSION, 1, KNOWN, state="opened")
QUESTION = WatchEvent(WatchKind.ASK, 1, KNOWN, ASK)


def events(lines: bytes) -> list[str]:
    return [json.loads(line)["event"] for line in lines.splitlines()]


def test_every_reader_gets_what_happens_and_only_some_answer() -> None:
    changes: list[bool] = []
    feeds = EventFeeds(lambda: changes.append(feeds.answered))
    answering = feeds.open(EventQuery(), [QUESTION])
    looking = feeds.open(EventQuery(answers="no"), [])
    feeds.publish(SESSION)
    assert events(answering.take(1 << 20)) == ["ask", "session"]
    assert events(looking.take(1 << 20)) == ["session"]
    answering.close()
    answering.close()
    assert changes == [True, True, False]
    feeds.publish(QUESTION)
    assert answering.take(1) == b""


def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_FEED", 10_000)
    feeds = EventFeeds(lambda: None)
    feed = feeds.open(EventQuery(), [])
    for _ in range(100):
        feeds.publish(QUESTION)
    assert feed.over
    assert feed.take(1) == b""  # nothing is held for it
    assert not feeds.answered
    assert feeds.open(EventQuery(), [QUESTION] * 100).over
    assert not feeds.answered
    assert not feeds.open(EventQuery(), [QUESTION]).over  # control
    assert feeds.answered


def test_streams_are_counted() -> None:
    feeds = EventFeeds(lambda: None)
    for _ in range(MAX_FEEDS):
        feeds.open(EventQuery(), [])
    with pytest.raises(Refused, match="streams"):
        feeds.open(EventQuery(), [])
    feeds.close()
    feeds.open(EventQuery(), [])
    assert now_ms() > 0


def next_events(stream: EventStream) -> list[WatchEvent] | None:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(20):
            found = stream.read()
            if found is None or found:
                return found
    raise TimeoutError


def test_a_client_follows_a_stream_to_its_end(rig: Rig) -> None:
    rig.gateway.streams = True
    stream = rig.client.watch({"answers": "yes"})
    first = next_events(stream)
    assert first is not None
    assert (first[0].event, first[0].ask) == (WatchKind.ASK, ASK)
    rig.call(lambda: rig.gateway.feeds.publish(QUESTION))
    assert next_events(stream)
    assert rig.gateway.feeds.answered
    stream.close()
    until(lambda: not rig.gateway.feeds.answered)
    again = rig.client.watch({})
    next_events(again)
    rig.call(rig.gateway.feeds.close)
    assert next_events(again) is None
    again.close()


def test_a_watcher_is_seen_for_as_long_as_it_lives(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    runtime = tmp_path / "run"
    assert not is_watched(runtime)
    with watching(runtime), watching(runtime):
        assert is_watched(runtime)
    assert not is_watched(runtime)


def test_two_runs_that_start_together_do_not_see_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe takes no lock: one whose file is still open is no watcher."""
    tmp_path.chmod(0o700)
    runtime = tmp_path / "run"
    with watching(runtime):
        pass
    kept: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", kept.append)
        first, second = is_watched(runtime), is_watched(runtime)
    try:
        assert kept
        assert (first, second) == (False, False)
        with watching(runtime):
            assert is_watched(runtime)  # control
        assert not is_watched(runtime)
    finally:
        for descriptor in kept:
            os.close(descriptor)
