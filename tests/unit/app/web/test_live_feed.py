from __future__ import annotations

import asyncio
import json
from typing import Any

from keyhole.app.web.live_feed import MAX_FEEDS, LiveFeed


def _told(part: bytes) -> dict[str, Any]:
    found = {}
    for event in part.decode().split("\n\n"):
        name, _, data = event.partition("\ndata: ")
        if data:
            found[name.removeprefix("event: ")] = json.loads(data)
    return found


def test_a_page_is_told_what_has_changed_and_no_more() -> None:
    state: dict[str, Any] = {"sessions": [1], "log": "a\n\nevent: forged\ndata: 1"}

    async def talk() -> None:
        feed = LiveFeed(lambda: dict(state))
        await feed.look()
        page = feed.follow()
        assert await anext(page) == b": keyhole\n\n"
        assert _told(await anext(page)) == state
        waiting = asyncio.ensure_future(anext(page))
        await feed.look()  # nothing has changed
        state["sessions"] = [1, 2]
        await feed.look()
        assert _told(await waiting) == {"sessions": [1, 2]}
        await feed.stop()

    asyncio.run(talk())


def test_a_slow_page_gets_the_newest_state_alone() -> None:
    """I9: nothing is queued for a page that does not read."""
    count = 0

    def look() -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"log": count}

    async def talk() -> None:
        feed = LiveFeed(look)
        page = feed.follow()
        await anext(page)
        for _ in range(100):
            await feed.look()
        assert _told(await anext(page)) == {"log": 100}

    asyncio.run(talk())


def test_pages_are_bounded_and_counted_down_when_they_end() -> None:
    async def talk() -> None:
        feed = LiveFeed(dict)
        pages = [feed.follow() for _ in range(MAX_FEEDS)]
        for each in pages:
            await anext(each)
        assert feed.full
        await pages.pop().aclose()  # type: ignore[attr-defined]
        assert not feed.full

    asyncio.run(talk())
