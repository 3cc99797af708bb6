"""What is done to a sandbox from outside, without an engine: who is told of, and what is heard."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.app.run import Run, _outside
from keyhole.sandbox.containers.engine import (
    Arrivals,
    Engine,
    EngineFailed,
    Joined,
    Listed,
    NoSuchThing,
)
from keyhole.sandbox.containers.links import new_links
from keyhole.sandbox.containers.neighbours import Neighbours
from keyhole.sandbox.containers.orphans import prune
from keyhole.sandbox.interface import Notice, Running
from tests.control.rig import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLDER, SANDBOX = "h" * 64, "s" * 64


class FakeEngine:
    """Containers by id and by name, and the news of them."""

    def __init__(self, *running: Joined, news: tuple[tuple[str, Joined], ...] = ()) -> None:
        ours = (Joined(HOLDER, "holder", ()), Joined(SANDBOX, "box", (HOLDER, HOLDER)))
        self._running = [*ours, *running]
        self._known = {each.id: each for each in self._running}
        self._news = news
        self.over = threading.Event()

    def another(self) -> FakeEngine:
        return self

    def close(self) -> None:
        self.over.set()

    def running(self) -> list[str]:
        return [each.id for each in self._running]

    def joined(self, container: str) -> Joined:
        for each in self._known.values():
            if each.name == container or each.id.startswith(container):
                return each
        raise NoSuchThing(container)

    def arrivals(self, since: int) -> Arrivals:
        return Arrivals("", self._told())

    def _told(self) -> Iterator[dict[str, object]]:
        for action, who in self._news:
            if action == "gone":
                del self._known[who.id]
                yield {"Action": "start", "Actor": {"ID": who.id}}
            else:
                self._known[who.id] = who
                yield {"Action": action, "Actor": {"ID": who.id}}


def heard(engine: FakeEngine) -> list[Notice]:
    """Everything that is told, until the engine hangs up."""
    notices: list[Notice] = []
    Neighbours(cast("Engine", engine), (HOLDER, SANDBOX), notices.append)
    assert engine.over.wait(20)
    until(lambda: notices != [] and notices[-1].reason == "engine-silent")
    return notices


def names(notices: list[Notice]) -> list[str]:
    return [each.details["name"] for each in notices if each.reason == "foreign-container"]


def test_whoever_leads_to_a_sandbox_is_told_of_once() -> None:
    """I5: by id, by its beginning, by name, by way of another, in whichever order they are listed.
    The control: those that lead elsewhere, ours among them, are not."""
    engine = FakeEngine(
        Joined("4" * 64, "far", ("near",)),
        Joined("1" * 64, "near", (HOLDER[:12],)),
        Joined("2" * 64, "by-name", ("box",)),
        Joined("3" * 64, "in-circles", ("3" * 64,)),
        Joined("5" * 64, "of-one-gone", ("gone", HOLDER)),
        Joined("6" * 64, "elsewhere", ("gone",)),
        Joined("7" * 64, "alone", ()),
        news=(("start", Joined("1" * 64, "near", (HOLDER,))),),
    )
    assert names(heard(engine)) == ["far", "near", "by-name", "of-one-gone"]


def test_one_that_is_gone_when_it_is_looked_for_is_known_from_when_it_was_made() -> None:
    """Attack: `--rm` and a command that ends at once. One that is made and never started does
    nothing, and is not told of."""
    brief, idle = Joined("1" * 64, "brief", (HOLDER,)), Joined("2" * 64, "idle", (HOLDER,))
    engine = FakeEngine(news=(("create", brief), ("create", idle), ("gone", brief)))
    assert names(heard(engine)) == ["brief"]


def test_an_engine_that_is_not_heard_any_more_is_said_once() -> None:
    class Broken(FakeEngine):
        def arrivals(self, since: int) -> Arrivals:
            raise EngineFailed("no engine answers")

    for engine in (FakeEngine(), Broken()):
        assert [each.reason for each in heard(engine)] == ["engine-silent"]


def test_a_container_that_cannot_be_removed_keeps_no_other_from_it(tmp_path: Path) -> None:
    """Podman keeps one to which somebody's own is attached; that is said at the end."""
    gone = []

    class Keeps:
        def containers(self) -> list[Listed]:
            marks = {"keyhole": "sandbox", "keyhole.session": "5e55", "keyhole.at": str(tmp_path)}
            return [Listed("1" * 64, marks, 0), Listed("2" * 64, marks, 0)]

        def remove(self, container: str) -> None:
            if container[0] == "1":
                raise EngineFailed("it has dependent containers")
            gone.append(container[0])

        def volumes(self) -> list[str]:
            return []

        images = volumes

    found = prune(cast("Engine", Keeps()), tmp_path, sys.executable)
    assert next(found).id == "2" * 12
    with pytest.raises(EngineFailed):
        next(found)
    assert gone == ["2"]


def test_what_an_image_is_labelled_as_makes_nothing_of_it_ours(tmp_path: Path) -> None:
    """I11: engines give an image's labels to every container of it; a person's that runs, and the
    image itself, stay. Control: what was forgotten goes."""
    gone: list[str] = []

    class Labelled:
        def containers(self) -> list[Listed]:
            mark = {"keyhole": "look"}
            return [Listed("1" * 64, mark, 0, running=True), Listed("2" * 64, mark, 0)]

        def volumes(self) -> list[str]:
            return []

        def images(self) -> list[str]:
            return ["theirs:1", "registry.example/keyhole-holder:1", "localhost/keyhole-holder:1"]

        def remove(self, name: str) -> bool:
            gone.append(name)
            return True

        forget_image = remove

    list(prune(cast("Engine", Labelled()), tmp_path, sys.executable))
    assert gone == ["2" * 64, "localhost/keyhole-holder:1"]


def link(index: int, name: bytes, kind: int = 16) -> bytes:
    """A message of rtnetlink's about an interface."""
    attribute = struct.pack("=HH", 5 + len(name), 3) + name + b"\0"
    attribute += bytes(-len(attribute) % 4)
    body = struct.pack("=BxHiII", 0, 1, index, 0, 0) + struct.pack("=HHI", 8, 4, 1500) + attribute
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_every_interface_but_lo_is_seen_in_what_the_kernel_says() -> None:
    """I2."""
    assert list(new_links(link(1, b"lo") + link(2, b"eth0") + link(3, b"x"))) == ["eth0", "x"]
    assert list(new_links(link(1, b"lo"))) == []
    assert list(new_links(link(2, b"eth0", kind=17))) == []  # one that goes
    assert list(new_links(link(7, b"eth0")[:32])) == ["number 7"]


@given(st.binary(max_size=200))
def test_whatever_is_said_is_read_to_its_end(data: bytes) -> None:
    for name in new_links(data):
        assert isinstance(name, str)


def test_what_is_done_to_a_sandbox_is_told_and_written_down_while_its_log_is_open() -> None:
    """I8: by a quiet person's own channel, from a thread, and never after the run."""
    said: list[str] = []
    written: list[tuple[str, dict[str, str]]] = []
    tell: list[Callable[[Notice], None]] = []

    class Watched:
        @contextlib.contextmanager
        def watch(self, told: Callable[[Notice], None]) -> Iterator[None]:
            tell.append(told)
            yield

    class Post:
        def note(self, what: str, **details: str) -> None:
            written.append((what, details))

    run = Run(None, "", None, Post(), said.append, lambda line: said.append(f"loud: {line}"))  # type: ignore[arg-type]

    async def live() -> list[Notice]:
        loop = asyncio.get_running_loop()
        with _outside(run, cast("Running", Watched()), loop) as notices:
            await asyncio.to_thread(tell[0], Notice("one", "first", {"a": "b"}))
            await asyncio.sleep(0)
            assert said == ["loud: first"]
            tell[0](Notice("two", "second", ends=True))
        tell[0](Notice("three", "late"))
        await asyncio.sleep(0)
        return notices

    notices = asyncio.run(live())
    assert written == [("one", {"a": "b"}), ("two", {})]
    assert [each.ends for each in notices] == [False, True]
