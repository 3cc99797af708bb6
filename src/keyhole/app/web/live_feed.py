"""What an open page is told without asking: sessions when they change, events as they are written.

One loop looks for all pages, and only while one is open. A page that reads slowly gets the newest
state when it reads again: nothing is queued for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LOOK_SECONDS = 0.5
"""Between two looks: a person sees it as at once, and ten thousand events a second are read in a
few milliseconds."""

BEAT_SECONDS = 15.0
"""A line is sent at least so often, so that the end of a page is noticed."""

MAX_FEEDS = 16
"""Pages that are told at a time."""


class LiveFeed:
    """The newest state by name, and the pages that wait for it."""

    def __init__(
        self,
        look: Callable[[], dict[str, Any]],
        attended: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`look` is called in a thread, and returns the whole state by name. `attended` is told
        when the first page comes, and when the last has gone."""
        self._look = look
        self._attended = attended
        self._hurry = asyncio.Event()
        self._state: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._pages = 0
        self._wanted = asyncio.Event()
        self._stopped = False

    @property
    def full(self) -> bool:
        """Whether no further page is told."""
        return self._pages >= MAX_FEEDS

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._wanted.wait()
            self._hurry.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), LOOK_SECONDS)

    def hurry(self) -> None:
        """Look again now: something waits for an answer."""
        self._hurry.set()

    async def look(self) -> None:
        """Look once, and tell what has changed."""
        found = await asyncio.to_thread(self._look)
        async with self._changed:
            for name, value in found.items():
                text = json.dumps(value)
                if self._state.get(name) != text:
                    self._state[name] = text
                    self._versions[name] = self._versions.get(name, 0) + 1
                    self._changed.notify_all()

    async def stop(self) -> None:
        """End the stream of each page."""
        async with self._changed:
            self._stopped = True
            self._changed.notify_all()

    async def follow(self) -> AsyncIterator[bytes]:
        """Server-sent events for one page."""
        self._pages += 1
        if self._pages == 1:
            self._wanted.set()
            self._attended(True)
        sent: dict[str, int] = {}
        try:
            yield b": keyhole\n\n"
            while not self._stopped:
                text = "".join(self._news(sent))
                yield text.encode() or b": beat\n\n"
                await self._wait(sent)
        finally:
            self._pages -= 1
            if not self._pages:
                self._wanted.clear()
                self._attended(False)

    def _news(self, sent: dict[str, int]) -> list[str]:
        """The parts that this page does not have yet."""
        found = []
        for name, version in self._versions.items():
            if sent.get(name) != version:
                sent[name] = version
                # JSON of `json.dumps` is one line of ASCII, so no text can begin another event.
                found.append(f"event: {name}\ndata: {self._state[name]}\n\n")
        return found

    async def _wait(self, sent: dict[str, int]) -> None:
        try:
            async with asyncio.timeout(BEAT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._stopped or sent != self._versions)
        except TimeoutError:
            return
