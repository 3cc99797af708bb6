"""What is done to a sandbox from outside, without an engine: who is told of, and what is heard."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.app.run.run import Run, _outside
from keyhole.sandbox.containers.attachment_watch import AttachmentWatch
from keyhole.sandbox.containers.engine import ContainerEvents, Engine
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.containers.engine_values import JoinedNamespaces, ListedContainer
from keyhole.sandbox.containers.interface_watch import new_interfaces
from keyhole.sandbox.containers.orphans import Orphan, make_session_directory, prune_orphans
from keyhole.sandbox.interface import RunningSandbox, SandboxNotice
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLDER, SANDBOX = "h" * 64, "s" * 64


class FakeEngine:
    """Containers by id and by name, and the news of them."""

    def __init__(
        self, *running: JoinedNamespaces, news: tuple[tuple[str, JoinedNamespaces], ...] = ()
    ) -> None:
        ours = (
            JoinedNamespaces(HOLDER, "holder", ()),
            JoinedNamespaces(SANDBOX, "box", (HOLDER, HOLDER)),
        )
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

    def joined(self, container: str) -> JoinedNamespaces:
        for each in self._known.values():
            if each.name == container or each.id.startswith(container):
                return each
        raise NotInEngine(container)

    def arrivals(self, since: int) -> ContainerEvents:
        return ContainerEvents("", self._told())

    def _told(self) -> Iterator[dict[str, object]]:
        for action, who in self._news:
            if action == "gone":
                del self._known[who.id]
                yield {"Action": "start", "Actor": {"ID": who.id}}
            else:
                self._known[who.id] = who
                yield {"Action": action, "Actor": {"ID": who.id}}


def heard(engine: FakeEngine) -> list[SandboxNotice]:
    """Everything that is told, until the engine hangs up."""
    notices: list[SandboxNotice] = []
    AttachmentWatch(cast("Engine", engine), (HOLDER, SANDBOX), notices.append)
    assert engine.over.wait(20)
    until(lambda: notices != [] and notices[-1].reason == "engine-silent")
    return notices


def names(notices: list[SandboxNotice]) -> list[str]:
    return [each.details["name"] for each in notices if each.reason == "foreign-container"]


def test_whoever_leads_to_a_sandbox_is_told_of_once() -> None:
    """I5: by id, by its beginning, by name, by way of another, in whichever order they are listed.
    The control: those that lead elsewhere, ours among them, are not."""
    engine = FakeEngine(
        JoinedNamespaces("4" * 64, "far", ("near",)),
        JoinedNamespaces("1" * 64, "near", (HOLDER[:12],)),
        JoinedNamespaces("2" * 64, "by-name", ("box",)),
        JoinedNamespaces("3" * 64, "in-circles", ("3" * 64,)),
        JoinedNamespaces("5" * 64, "of-one-gone", ("gone", HOLDER)),
        JoinedNamespaces("6" * 64, "elsewhere", ("gone",)),
        JoinedNamespaces("7" * 64, "alone", ()),
        news=(("start", JoinedNamespaces("1" * 64, "near", (HOLDER,))),),
    )
    assert names(heard(engine)) == ["far", "near", "by-name", "of-one-gone"]


def test_one_that_is_gone_when_it_is_looked_for_is_known_from_when_it_was_made() -> None:
    """Attack: `--rm` and a command that ends at once. One that is made and never started does
    nothing, and is not told of."""
    brief, idle = (
        JoinedNamespaces("1" * 64, "brief", (HOLDER,)),
        JoinedNamespaces("2" * 64, "idle", (HOLDER,)),
    )
    engine = FakeEngine(news=(("create", brief), ("create", idle), ("gone", brief)))
    assert names(heard(engine)) == ["brief"]


def test_an_engine_that_is_not_heard_any_more_is_said_once() -> None:
    class Broken(FakeEngine):
        def arrivals(self, since: int) -> ContainerEvents:
            raise EngineFailed("no engine answers")

    for engine in (FakeEngine(), Broken()):
        assert [each.reason for each in heard(engine)] == ["engine-silent"]


def test_a_container_that_cannot_be_removed_keeps_no_other_from_it(tmp_path: Path) -> None:
    """Podman keeps one to which somebody's own is attached; that is said at the end."""
    gone = []

    class Keeps:
        def containers(self) -> list[ListedContainer]:
            marks = {"keyhole": "sandbox", "keyhole.session": "5e55", "keyhole.at": str(tmp_path)}
            return [ListedContainer("1" * 64, marks, 0), ListedContainer("2" * 64, marks, 0)]

        def remove(self, container: str) -> None:
            if container[0] == "1":
                raise EngineFailed("it has dependent containers")
            gone.append(container[0])

        def volumes(self) -> list[str]:
            return []

        images = volumes

    found = prune_orphans(cast("Engine", Keeps()), tmp_path, sys.executable)
    assert next(found).id == "2" * 12
    with pytest.raises(EngineFailed):
        next(found)
    assert gone == ["2"]


def test_a_session_that_begins_is_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keyhole prune` comes between the directory of a new session and its lock. Control: it
    removes the directory of a session that has ended, in the same moment."""
    ended, begun = tmp_path / "e4ded", tmp_path / "be64n"
    os.close(make_session_directory(ended))
    asked, found, flock = threading.Event(), list[Orphan](), fcntl.flock

    class Empty:
        def containers(self) -> list[ListedContainer]:
            return []

        volumes = images = containers

    pruning = threading.Thread(
        target=lambda: found.extend(
            prune_orphans(cast("Engine", Empty()), tmp_path, sys.executable)
        )
    )

    def prune_first(descriptor: int, kind: int) -> None:
        if threading.current_thread() is pruning:
            asked.set()  # for the lock of all directories, or of one
        elif begun.exists():  # the new session's own lock
            pruning.start()
            assert asked.wait(PATIENCE)
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", prune_first)
    alive = make_session_directory(begun)
    pruning.join(PATIENCE)
    assert [each.id for each in found] == [str(ended)]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [begun.name]
    os.close(alive)


def test_what_an_image_is_labelled_as_makes_nothing_of_it_ours(tmp_path: Path) -> None:
    """I11: engines give an image's labels to every container of it; a person's that runs, and the
    image itself, stay. Control: what was forgotten goes."""
    gone: list[str] = []

    class Labelled:
        def containers(self) -> list[ListedContainer]:
            mark = {"keyhole": "look"}
            return [
                ListedContainer("1" * 64, mark, 0, running=True),
                ListedContainer("2" * 64, mark, 0),
            ]

        def volumes(self) -> list[str]:
            return []

        def images(self) -> list[str]:
            return ["theirs:1", "registry.example/keyhole-holder:1", "localhost/keyhole-holder:1"]

        def remove(self, name: str) -> bool:
            gone.append(name)
            return True

        forget_image = remove

    list(prune_orphans(cast("Engine", Labelled()), tmp_path, sys.executable))
    assert gone == ["2" * 64, "localhost/keyhole-holder:1"]


def link(index: int, name: bytes, kind: int = 16) -> bytes:
    """A message of rtnetlink's about an interface."""
    attribute = struct.pack("=HH", 5 + len(name), 3) + name + b"\0"
    attribute += bytes(-len(attribute) % 4)
    body = struct.pack("=BxHiII", 0, 1, index, 0, 0) + struct.pack("=HHI", 8, 4, 1500) + attribute
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_every_interface_but_lo_is_seen_in_what_the_kernel_says() -> None:
    """I2."""
    assert list(new_interfaces(link(1, b"lo") + link(2, b"eth0") + link(3, b"x"))) == ["eth0", "x"]
    assert list(new_interfaces(link(1, b"lo"))) == []
    assert list(new_interfaces(link(2, b"eth0", kind=17))) == []  # one that goes
    assert list(new_interfaces(link(7, b"eth0")[:32])) == ["number 7"]


@given(st.binary(max_size=200))
def test_whatever_is_said_is_read_to_its_end(data: bytes) -> None:
    for name in new_interfaces(data):
        assert isinstance(name, str)


def test_what_is_done_to_a_sandbox_is_told_and_written_down_while_its_log_is_open() -> None:
    """I8: by a quiet person's own channel, from a thread, and never after the run."""
    said: list[str] = []
    written: list[tuple[str, dict[str, str]]] = []
    tell: list[Callable[[SandboxNotice], None]] = []

    class Watched:
        @contextlib.contextmanager
        def watch(self, told: Callable[[SandboxNotice], None]) -> Iterator[None]:
            tell.append(told)
            yield

    class Post:
        def note(self, what: str, **details: str) -> None:
            written.append((what, details))

    run = Run(None, "", None, Post(), said.append, lambda line: said.append(f"loud: {line}"))  # type: ignore[arg-type]

    async def live() -> list[SandboxNotice]:
        loop = asyncio.get_running_loop()
        with _outside(run, cast("RunningSandbox", Watched()), loop) as notices:
            await asyncio.to_thread(tell[0], SandboxNotice("one", "first", {"a": "b"}))
            await asyncio.sleep(0)
            assert said == ["loud: first"]
            tell[0](SandboxNotice("two", "second", ends=True))
        tell[0](SandboxNotice("three", "late"))
        await asyncio.sleep(0)
        return notices

    notices = asyncio.run(live())
    assert written == [("one", {"a": "b"}), ("two", {})]
    assert [each.ends for each in notices] == [False, True]
