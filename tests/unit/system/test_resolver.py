"""One session's names that never resolve do not keep another's from being looked up (I12)."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import OverLimit, UpstreamFailed
from keyhole.model.host import Host
from keyhole.system import resolver as resolver_module
from keyhole.system.resolver import PLACES, SystemResolver
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUND = ip_address("93.184.216.34")


class Dns:
    """Name servers that answer at once, and some that do not until they are let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def getaddrinfo(self, name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked.append(name)
        if "stuck" in name:
            self.go.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no server answered")
        return [(2, 1, 6, "", (str(FOUND), 0))]

    @property
    def stuck(self) -> int:
        return sum("stuck" in name for name in self.asked)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    made = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.go.set()


def stick(system: SystemResolver, who: str, count: int) -> list[asyncio.Task[object]]:
    return [
        asyncio.ensure_future(system.resolve(Host(f"{who}{number}.stuck.example"), who))
        for number in range(count)
    ]


async def give_up(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_session_occupies_its_share_of_threads_and_no_more(dns: Dns) -> None:
    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        tasks = stick(system, "h", PLACES.each + 20)
        assert list(await system.resolve(Host("ok.example"), "ordinary")) == [FOUND]
        await until_in_loop(lambda: dns.stuck >= PLACES.each)
        await asyncio.sleep(0.05)  # in which no other is asked for
        assert dns.stuck == PLACES.each
        await give_up(tasks)

    asyncio.run(test())


def test_clients_that_leave_do_not_free_the_threads_that_they_occupy(dns: Dns) -> None:
    """Attack: a dial is given up after some seconds, getaddrinfo is not; by asking again and again
    a session had more threads than dials."""

    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        for turn in range(4):
            tasks = stick(system, f"h{turn}", 0) + stick(system, "h", PLACES.each)
            await until_in_loop(lambda: dns.stuck >= PLACES.each)
            await asyncio.sleep(0.02)  # in which no other is asked for
            await give_up(tasks)
        assert dns.stuck == PLACES.each
        # And what it asked for is still asked for: whoever comes back waits for the same answer.
        again = stick(system, "h", 1)
        dns.go.set()
        with pytest.raises(UpstreamFailed, match="no server answered"):
            await again[0]
        assert list(await system.resolve(Host("ok.example"), "h")) == [FOUND]

    asyncio.run(test())


def test_however_many_sessions_are_hostile_another_has_a_thread(dns: Dns) -> None:
    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        sessions = PLACES.total // PLACES.each + 2
        tasks = [task for n in range(sessions) for task in stick(system, f"h{n}x", PLACES.each)]
        await until_in_loop(lambda: dns.stuck >= PLACES.total)
        assert list(await system.resolve(Host("ok.example"), "ordinary")) == [FOUND]
        await give_up(tasks)

    asyncio.run(test())


def test_what_waits_too_long_or_too_many_is_refused_as_over_its_share(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver_module, "PLACE_WAIT", 0.05)

    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        tasks = stick(system, "h", PLACES.each + PLACES.waiting)
        await asyncio.sleep(0)
        with pytest.raises(OverLimit, match="wait already"):
            await system.resolve(Host("one.more.example"), "h")
        with pytest.raises(OverLimit, match="4 at work"):
            await tasks[-1]
        # Control: there is room again once its servers answer.
        dns.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert list(await system.resolve(Host("ok.example"), "h")) == [FOUND]

    asyncio.run(test())


def test_a_name_that_a_hostile_session_waits_for_is_looked_up_in_another_s_turn(dns: Dns) -> None:
    """Attack: ask for a neighbour's name behind names that never resolve."""

    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        tasks = stick(system, "h", PLACES.each)
        await until_in_loop(lambda: dns.stuck == PLACES.each)
        tasks.append(asyncio.ensure_future(system.resolve(Host("ok.example"), "h")))
        await asyncio.sleep(0.02)
        assert "ok.example." not in dns.asked
        assert list(await system.resolve(Host("ok.example"), "ordinary")) == [FOUND]
        await give_up(tasks)

    asyncio.run(test())


def test_a_host_without_threads_says_so(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            for _ in range(PLACES.each + 1):
                with pytest.raises(UpstreamFailed, match="no thread left"):
                    await system.resolve(Host("ok.example"), "s1")
        assert list(await system.resolve(Host("ok.example"), "s1")) == [FOUND]

    asyncio.run(test())


def test_a_lookup_that_breaks_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12. Control: the same name resolves when the lookup works again."""
    dns = Dns()

    def broken(*_: object, **__: object) -> None:
        raise ValueError("words that may quote a name")

    async def test() -> None:
        system = SystemResolver(asyncio.get_running_loop())
        monkeypatch.setattr(socket, "getaddrinfo", broken)
        for number in range(2 * PLACES.total):
            with pytest.raises(UpstreamFailed, match="ValueError at "):
                await system.resolve(Host(f"n{number}.example"), "one")
        monkeypatch.setattr(socket, "getaddrinfo", dns.getaddrinfo)
        assert await system.resolve(Host("n0.example"), "one") == (FOUND,)

    asyncio.run(test())
