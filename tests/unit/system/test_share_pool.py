"""Places that sessions share: how they are given out, and what one session cannot do (I12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import OverLimit
from keyhole.system.share_pool import ShareBounds, SharePool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def play(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await test()

    asyncio.run(whole())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Given:
    """Who got a place, in order; each keeps it until it is told to leave."""

    def __init__(self, bounds: ShareBounds) -> None:
        self.places = SharePool(bounds)
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *names: str) -> None:
        for name in names:
            self.tasks.append(asyncio.create_task(self._take(name)))
        await settle()

    async def _take(self, name: str) -> None:
        await self.places.take(name)
        self.order.append(name)

    async def leave(self, name: str) -> None:
        self.places.leave(name)
        await settle()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_session_has_its_share_and_others_theirs() -> None:
    async def test() -> None:
        given = Given(ShareBounds("shares.tests", total=4, each=2, waiting=8))
        await given.ask("a", "a", "a", "a", "b")
        assert given.order == ["a", "a", "b"]
        await given.leave("a")
        assert given.order == ["a", "a", "b", "a"]
        await given.end()

    play(test)


def test_the_last_place_is_for_a_session_that_has_none() -> None:
    async def test() -> None:
        given = Given(ShareBounds("shares.tests", total=4, each=2, waiting=8, spare=1))
        await given.ask("a", "a", "b", "b")
        assert given.order == ["a", "a", "b"]
        await given.ask("c")
        assert given.order == ["a", "a", "b", "c"]
        # All are taken: the next that has none waits, and is before those that have one.
        await given.ask("d")
        assert given.order == ["a", "a", "b", "c"]
        await given.leave("a")
        assert given.order[4:] == ["d"]
        await given.end()

    play(test)


def test_who_has_none_gets_one_beyond_the_total() -> None:
    async def test() -> None:
        given = Given(ShareBounds("shares.tests", total=2, each=2, waiting=8, first_always=True))
        await given.ask("a", "a", "a", "b", "c", "b")
        assert given.order == ["a", "a", "b", "c"]
        await given.end()

    play(test)


def test_sessions_that_wait_take_turns() -> None:
    """However many of one wait before the other's first."""

    async def test() -> None:
        given = Given(ShareBounds("shares.tests", total=1, each=1, waiting=8))
        await given.ask("x", "a", "a", "a", "b", "c", "b")
        for name in "xabcab":
            await given.leave(name)
        assert "".join(given.order) == "xabcaba"
        await given.end()

    play(test)


def test_too_many_that_wait_and_too_long_a_wait_are_refused() -> None:
    async def test() -> None:
        places = SharePool(ShareBounds("shares.tests", total=1, each=1, waiting=1))
        await places.take("a")
        waits = asyncio.create_task(places.take("a"))
        await settle()
        with pytest.raises(OverLimit, match="1 of this session wait already"):
            await places.take("a")
        with pytest.raises(OverLimit, match="has 0 at work"):
            await places.take("b", 0.01)
        # Neither took a place away, nor is one lost by a wait that is given up.
        waits.cancel()
        await settle()
        places.leave("a")
        await places.take("b", 0.01)
        places.leave("b")

    play(test)


def test_a_place_that_is_left_as_others_give_up_goes_to_who_still_waits() -> None:
    async def test() -> None:
        places = SharePool(ShareBounds("shares.tests", total=1, each=1, waiting=4))
        await places.take("a")
        gone = [asyncio.create_task(places.take("b")) for _ in range(2)]
        waits = asyncio.create_task(places.take("c"))
        await settle()
        for task in gone:
            task.cancel()  # neither has been told yet
        places.leave("a")
        await asyncio.wait_for(waits, 1)
        places.leave("c")
        await asyncio.gather(*gone, return_exceptions=True)
        await places.take("b", 0.01)
        places.leave("b")

    play(test)


def test_a_place_that_comes_as_its_taker_leaves_is_not_lost() -> None:
    async def test() -> None:
        places = SharePool(ShareBounds("shares.tests", total=1, each=1, waiting=4))
        await places.take("a")
        gone, waits = asyncio.create_task(places.take("b")), asyncio.create_task(places.take("c"))
        await settle()
        places.leave("a")
        gone.cancel()  # it has its place, and does not know it yet
        await asyncio.wait_for(waits, 1)
        with pytest.raises(asyncio.CancelledError):
            await gone
        places.leave("c")

    play(test)
