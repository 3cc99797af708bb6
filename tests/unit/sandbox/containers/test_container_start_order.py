"""What is begun ahead keeps the order and leaves nothing, wherever it stops; without an engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.errors import SetupFailed
from keyhole.sandbox.containers import container_start as module
from keyhole.sandbox.containers.container_start import ContainerStarter
from keyhole.sandbox.containers.engine_client import EngineFailed
from keyhole.sandbox.containers.engine_traits import EngineTraits
from keyhole.sandbox.containers.engine_values import ContainerState, EngineImage
from keyhole.sandbox.containers.holder_setup import HolderSetup
from keyhole.sandbox.containers.registration import RegisteredDoor
from tests.rigs.waiting import until
from tests.unit.sandbox.containers.test_container_start_pieces import box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NFT = "/bin/sh"


class Engine:
    """Remembers what it was asked; `fails` names what it refuses, `stuck` what it waits in."""

    def __init__(self, *fails: str, stuck: str = "", podman: bool = False) -> None:
        self.said: list[str] = []
        self.going_on = threading.Event()
        self._fails, self._stuck, self._podman = fails, stuck, podman
        self._peers: list[socket.socket] = []
        self.open_wall = False

    def _asked(self, what: str) -> None:
        self.said.append(what)
        if what == self._stuck:
            self.going_on.wait(30)
        if what in self._fails:
            raise EngineFailed(f"no: {what}")

    def another(self) -> Engine:
        return self

    def is_podman(self) -> bool:
        return self._podman

    def create(self, config: dict[str, Any], name: str) -> str:
        what = str(config["Labels"]["keyhole"])
        if what == "holder":
            self._path = config["HostConfig"]["Mounts"][0]["Source"]
        self._asked(f"create {what}")
        return what

    def start(self, name: str) -> None:
        what = "holder" if name.endswith("holder") else "sandbox"
        self._asked(f"start {what}")
        if what == "holder":
            peer = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                peer.connect(self._path)
            self._peers.append(peer)

    def attach(self, _: str) -> socket.socket:
        self._asked("attach")
        return socket.socket(socket.AF_UNIX)

    def state(self, container: str) -> ContainerState:
        return ContainerState(container, True, 0, {})

    def wait(self, _: str) -> int:
        return 0

    def remove(self, name: str) -> None:
        self._asked(f"remove {'holder' if name.endswith('holder') else 'sandbox'}")

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


class Unused:
    """A console that nobody looks at."""

    interactive = raw = False

    def connect(self, stream: socket.socket, *_: object) -> None:
        stream.close()


def started(
    engine: Engine,
    at: Path,
    admit: Callable[[list[socket.socket]], None],
    patch: pytest.MonkeyPatch,
) -> None:
    """Start a sandbox by this engine, to whatever end, and close it."""

    async def door(_: socket.socket) -> RegisteredDoor:
        engine.said.append("door")
        return RegisteredDoor([], links, "net:[1]")

    patch.setattr(module, "receive_door", door)
    patch.setattr(module, "check_peer", lambda *_, **__: engine.said.append("check"))
    launch, image, console = box().launch, EngineImage("sha256:1", {}, (), ""), Unused()
    given: Any = engine
    traits = EngineTraits()
    holding = HolderSetup(given, "5e55", at, NFT, traits)

    async def try_walls(_: object, kit: str) -> None:
        assert kit == holding.kit
        if engine.open_wall:
            raise SetupFailed("the walls do not stand")
        engine.said.append("tried")

    runtime = ContainerStarter(
        given,
        launch,
        image,
        console,  # type: ignore[arg-type]
        "5e55",
        at,
        traits,
        holding,
        try_walls,
    )

    links = socket.socket(socket.AF_UNIX)

    async def run() -> None:
        await runtime.ready()
        (await runtime.start(admit)).kill()

    try:
        asyncio.run(run())
    finally:
        runtime.close()
        links.close()


@pytest.mark.parametrize("podman", [False, True])
def test_no_sandbox_is_started_before_its_door_is_the_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, podman: bool
) -> None:
    """I2: its container may exist by then, but nothing runs in it."""
    engine = Engine(podman=podman)
    started(engine, tmp_path, lambda _: engine.said.append("admit"), monkeypatch)
    steps = ("tried", "check", "door", "admit", "start sandbox")
    order = [engine.said.index(what) for what in steps]
    assert order == sorted(order)
    assert order[0] < engine.said.index("create sandbox") < order[1]
    if podman:  # it attaches to nothing whose holder does not run
        assert engine.said.index("start holder") < engine.said.index("attach")


def test_where_a_wall_does_not_stand_no_sandbox_is_even_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Control: the test above."""
    engine = Engine()
    engine.open_wall = True
    with pytest.raises(SetupFailed, match="do not stand"):
        started(engine, tmp_path, lambda _: None, monkeypatch)
    assert {"create sandbox", "start sandbox"}.isdisjoint(engine.said)
    assert "remove holder" in engine.said


def test_where_the_gateway_takes_no_door_nothing_is_started_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Control: the test above."""

    def refuse(_: list[socket.socket]) -> None:
        raise SetupFailed("the gateway did not take the door")

    engine = Engine()
    with pytest.raises(SetupFailed):
        started(engine, tmp_path, refuse, monkeypatch)
    assert "start sandbox" not in engine.said
    assert {"remove holder", "remove sandbox"} <= set(engine.said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "steps",
    [("create holder",), ("start holder", "create sandbox"), ("create sandbox",), ("attach",)],
)
def test_what_an_engine_refuses_first_is_said_and_nothing_is_left(
    steps: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that does not start takes the sandbox's container with it."""
    engine = Engine(*steps)
    with pytest.raises(SetupFailed, match=f"no: {steps[0]}"):
        started(engine, tmp_path, lambda _: None, monkeypatch)
    assert "start sandbox" not in engine.said
    assert "remove holder" in engine.said
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_gives_up_waits_for_what_the_engine_is_doing_and_removes_it(
    tmp_path: Path,
) -> None:
    """A secret that cannot be read, Ctrl-C: the holder may be half started by then."""
    engine = Engine(stuck="start holder")
    given: Any = engine
    holding = HolderSetup(given, "5e55", tmp_path, NFT, EngineTraits())
    until(lambda: "start holder" in engine.said)
    closing = threading.Thread(target=holding.close)
    closing.start()
    until(lambda: not (holding.directory / "registration.sock").exists())
    assert "remove holder" not in engine.said  # nothing to remove yet: it could come back
    engine.going_on.set()
    closing.join()
    engine.close()
    assert engine.said[-1] == "remove holder"
    assert list(tmp_path.iterdir()) == []
    holding.close()  # a second time does nothing
    assert engine.said.count("remove holder") == 1
