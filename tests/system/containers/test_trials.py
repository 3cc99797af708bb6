"""The walls of a container are tried from inside: before a first run, by doctor and by demo."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.selftest.selftest import WallResult
from keyhole.app.selftest.selftest_cache import container_key
from keyhole.app.selftest.wall_trial import WallTrial
from keyhole.model.errors import SetupFailed
from keyhole.sandbox import probe
from tests.unit.sandbox.containers.test_container_start_pieces import box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rigs.containers.engines import OwnEngine
    from tests.system.containers.conftest import Boxed


class FakeTarget:
    """An engine of some version."""

    def __init__(self, version: str = "Engine 1") -> None:
        self.build = f"/engine.sock {version}"


def test_a_wall_that_does_not_stand_refuses_every_run_and_one_that_does_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: and again for another engine, and for who asks for it."""
    tried: list[object] = []
    rows = [WallResult("vsock", False, "done")]

    async def probing(*words: object) -> list[WallResult]:
        tried.append(words)
        return rows

    monkeypatch.setattr("keyhole.app.selftest.container_selftest.probe_container", probing)
    policy: Any = None

    def ready(version: str = "Engine 1", *, force: bool = False) -> int:
        target: Any = FakeTarget(version)
        trial = WallTrial(policy, tmp_path / "selftest.json", force=force)
        asyncio.run(trial.in_container(target)(box().launch, "keyhole-holder-1"))
        return len(tried)

    for _ in range(2):
        with pytest.raises(SetupFailed, match="vsock"):
            ready()
    rows[:] = []
    with pytest.raises(SetupFailed, match="nothing was tried"):
        ready()
    rows[:] = [WallResult("vsock", True, "EAFNOSUPPORT")]
    tried.clear()
    assert (ready(), ready()) == (1, 1)
    assert ready(force=True) == 2
    assert ready("Engine 2") == 3


def test_what_is_remembered_is_of_one_engine_image_and_kit(tmp_path: Path) -> None:
    from msgspec.structs import replace

    launch = box().launch
    known = container_key(launch, "Engine 1", "kit-1")
    assert known == container_key(launch, "Engine 1", "kit-1")
    others = {
        container_key(launch, "Engine 2", "kit-1"),
        container_key(launch, "Engine 1", "kit-2"),
        container_key(replace(launch, image="sha256:other"), "Engine 1", "kit-1"),
        container_key(replace(launch, maps_root=True), "Engine 1", "kit-1"),
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
    fields = {"id", "held", "seen", "control", "advice", "fix"}
    assert all(row.keys() == fields for row in rows.values())
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
