"""The walls of a container are tried from inside: before a first run, by doctor and by demo."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.boxed import Boxed as Trying
from keyhole.app.selftest import Wall
from keyhole.app.tried import Remembered, key_of_box
from keyhole.sandbox import probe
from keyhole.sandbox.containers.nature import Nature
from keyhole.sandbox.helper import SetupFailed
from tests.containers.test_pieces import box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.containers.conftest import Boxed
    from tests.containers.engines import OwnEngine


class FakeRuntime:
    """Is always ready."""

    terminal = None
    kit = "keyhole-holder-1"

    def __init__(self) -> None:
        self.launch = box().launch

    async def ready(self) -> None:
        return


class FakeBerth:
    """An engine of some version."""

    path = "/engine.sock"

    def __init__(self, version: str = "Engine 1") -> None:
        self.engine = self
        self.nature = Nature(build=version)


def test_a_wall_that_does_not_stand_refuses_every_run_and_one_that_does_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: and again for another engine, and for who asks for it."""
    tried: list[object] = []
    rows = [Wall("vsock", False, "done")]

    async def probing(*words: object) -> list[Wall]:
        tried.append(words)
        return rows

    monkeypatch.setattr("keyhole.app.boxtest.probe_box", probing)
    runtime: Any = FakeRuntime()
    policy: Any = None

    def ready(version: str = "Engine 1", *, force: bool = False) -> int:
        berth: Any = FakeBerth(version)
        memory = Remembered(tmp_path / "selftest.json")
        asyncio.run(Trying(runtime, berth, policy, memory, force_test=force).ready())
        return len(tried)

    for _ in range(2):
        with pytest.raises(SetupFailed, match="vsock"):
            ready()
    rows[:] = []
    with pytest.raises(SetupFailed, match="nothing was tried"):
        ready()
    rows[:] = [Wall("vsock", True, "EAFNOSUPPORT")]
    tried.clear()
    assert (ready(), ready()) == (1, 1)
    assert ready(force=True) == 2
    assert ready("Engine 2") == 3


def test_what_is_remembered_is_of_one_engine_image_and_kit(tmp_path: Path) -> None:
    from dataclasses import replace

    launch = box().launch
    known = key_of_box(launch, "Engine 1", "kit-1")
    assert known == key_of_box(launch, "Engine 1", "kit-1")
    others = {
        key_of_box(launch, "Engine 2", "kit-1"),
        key_of_box(launch, "Engine 1", "kit-2"),
        key_of_box(replace(launch, image="sha256:other"), "Engine 1", "kit-1"),
        key_of_box(replace(launch, maps_root=True), "Engine 1", "kit-1"),
    }
    assert len(others - {known}) == 4


def test_an_engines_socket_that_is_there_is_a_wall_that_does_not_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: a socket cannot be opened, so that it is not opened shows nothing."""
    path = str(tmp_path / "docker.sock")
    monkeypatch.setattr(probe, "_ENGINES", (path,))
    targets: dict[str, object] = {"pid": 1}

    def held() -> bool:
        rows = {name: held for name, held, _ in probe.file_rows(targets)}
        return rows[f"path {path}"]

    assert held()  # control
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert not held()


@pytest.mark.outside
def test_the_doctor_tries_an_engine_and_an_image(plain: Boxed, image: str) -> None:
    """Every row holds, clients of the image trust the CA, and it looks as for bubblewrap."""
    told = plain("doctor", "--runtime", "docker", "--image", image, "--json")
    rows = {row["id"]: row for row in json.loads(told.out)}
    assert {name: row["seen"] for name, row in rows.items() if not row["held"]} == {}
    assert told.code == 0
    assert all(row.keys() == {"id", "held", "seen", "control", "advice"} for row in rows.values())
    assert rows["io-uring"]["control"].startswith("outside: ")
    assert {
        "kernel", "engine", "image", "identity", "only-lo", "limit-together", "first-process end",
        "write /proc/sys/kernel/core_pattern", "client.curl", "client.git", "client.python",
    } <= rows.keys()  # fmt: skip
    for words in (("--image", "nobody/has:this"), ("--runtime", "podman")):
        done = plain("doctor", "--runtime", "docker", *words, env={"CONTAINER_HOST": "unix:///no"})
        assert done.code == 1
        assert "FAILS  engine" in done.out


@pytest.mark.outside
def test_the_demo_runs_in_a_container_without_a_registry_and_leaves_nothing(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    """I10: a clone and three pushes by git among it."""
    done = plain("demo", "--runtime", "docker")
    assert done.code == 0, done
    assert 'runtime = "docker"' in done.out
    assert "pushed agent/demo, which the service has now" in done.out
    assert "FAILS" not in done.out
    assert [name for name in dockerd.engine.images() if "keyhole-own" in name] == []


@pytest.mark.outside
def test_the_demo_says_what_an_image_lacks(new_project: Callable[..., Boxed]) -> None:
    project = new_project()
    done = project("demo", "--runtime", "docker", "--image", "nobody/has:this")
    assert done.code == 2
    assert "no sandbox can be made here" in done.err
    assert "--image is for containers" in project("demo", "--image", "x").err
