"""Engines that map users: what each is asked for, and which are refused. Without an engine."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from keyhole.model.errors import Refused, SetupFailed
from keyhole.sandbox.containers import container_spec
from keyhole.sandbox.containers.container_target import ContainerTarget
from keyhole.sandbox.containers.engine import Engine
from keyhole.sandbox.containers.engine_traits import AS_ROOT, EngineTraits
from keyhole.sandbox.containers.engine_values import ContainerState, EngineInfo
from keyhole.sandbox.containers.entrypoint import EntrypointConfig, failures
from keyhole.sandbox.containers.registration import DoorRegistration, check_peer
from keyhole.sandbox.identity import Identity
from keyhole.sandbox.launch import Launch, ResourceLimits

KEEPS = EngineTraits(rootless=True, keeps_ids=True, owner=(7, 8), bounds=frozenset())
REMAPS = EngineTraits(remaps=True)
HOLDER = "a" * 64


def container_target(traits: EngineTraits) -> ContainerTarget:
    nothing: Any = None
    return ContainerTarget(nothing, nothing, nothing, Path("/nowhere"), traits)


def box(traits: EngineTraits, bounds: ResourceLimits) -> container_spec.ContainerSpec:
    launch = Launch(("true",), "/p", {}, (), bounds, 7, 8, "", "nft", "python")
    return container_spec.ContainerSpec(
        launch, "5e55", HOLDER, "sha256:1", (), "kit", "{}", "/at", traits=traits
    )


@pytest.mark.parametrize(
    ("traits", "holder", "sandbox"),
    [(AS_ROOT, "", ""), (REMAPS, "host", "host"), (KEEPS, "keep-id", f"container:{HOLDER}")],
)
def test_the_person_has_the_same_number_inside_and_outside(
    traits: EngineTraits, holder: str, sandbox: str
) -> None:
    """I11. The sandbox is in the user namespace that its network belongs to."""
    assert container_spec.container_ids(traits) == holder
    asked = container_spec.sandbox_spec(box(traits, ResourceLimits(9, 9)), {}, "/c")
    assert asked["HostConfig"]["UsernsMode"] == sandbox
    assert (asked["User"], asked["HostConfig"]["CapDrop"]) == ("7:8", ["ALL"])


def test_an_engine_is_asked_for_the_bounds_that_it_has_and_the_rest_is_said() -> None:
    """I9: some ignore what they cannot do. The kernel counts processes where users are mapped."""
    bounds = ResourceLimits(64, 1 << 30, cpus=1.5)
    words = {"PidsLimit": 64, "Memory": 1 << 30, "MemorySwap": 1 << 30, "NanoCpus": 1_500_000_000}
    for traits, found in ((AS_ROOT, words), (KEEPS, {})):
        asked = container_spec.sandbox_spec(box(traits, bounds), {}, "/c")["HostConfig"]
        assert {name: asked[name] for name in words if name in asked} == found
    one = container_spec.sandbox_spec(box(EngineTraits(cpus=1), bounds), {}, "/c")["HostConfig"]
    assert one["NanoCpus"] == 1_000_000_000, "Docker refuses more than there are"
    free = container_spec.sandbox_spec(box(AS_ROOT, ResourceLimits(64, 1 << 30)), {}, "/c")[
        "HostConfig"
    ]
    assert "NanoCpus" not in free
    assert container_spec.assertions(box(KEEPS, bounds), "", {}, b"").processes == 64
    assert container_spec.assertions(box(AS_ROOT, bounds), "", {}, b"").processes == 0
    assert container_target(AS_ROOT).notices(bounds) == ()
    (said,) = container_target(KEEPS).notices(bounds)
    assert "memory" in said
    assert "limits.cpus" in said
    assert "limits.processes" not in said
    (said,) = container_target(EngineTraits(bounds=frozenset())).notices(
        ResourceLimits(64, 1 << 30)
    )
    assert "limits.processes" in said
    assert "limits.cpus" not in said


def test_an_engine_by_which_files_would_be_somebody_elses_is_refused() -> None:
    """I11. Control: its owner, and engines that map nobody or can be told not to."""
    who = Identity(7, 8)
    for traits in (AS_ROOT, REMAPS, KEEPS):
        container_target(traits).refuse_unfit(who)
    with pytest.raises(Refused, match="use rootless Podman"):
        container_target(EngineTraits(rootless=True)).refuse_unfit(who)
    for other in (Identity(9, 8), Identity(7, 9)):
        with pytest.raises(Refused, match="runs as 7:8"):
            container_target(KEEPS).refuse_unfit(other)


def test_no_command_is_started_where_the_project_is_not_the_users() -> None:
    """I11, asserted inside, whatever an engine says of itself. Control: who owns it."""
    table: dict[str, Any] = {
        "namespace": "", "command": (), "directory": "/", "environment": {}, "gid": 0, "mounts": (),
        "linked": (), "read_only": (), "same": {}, "seeds": (), "program": b"", "open_files": 9,
        "memory": 9, "owned": ("/",),
    }  # fmt: skip
    owner = os.stat("/").st_uid
    assert "/ is not the user's: the engine maps users" in failures(
        EntrypointConfig(uid=owner + 1, **table)
    )
    assert "the engine maps users" not in "; ".join(failures(EntrypointConfig(uid=owner, **table)))


class FakeEngine:
    """Says of every container that its first process is this."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def state(self, container: str) -> ContainerState:
        return ContainerState(container, running=True, pid=self._pid, labels={})


def test_without_control_groups_the_engines_word_for_the_first_process_is_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: a rootless engine may make no groups. Another container's is refused all the same."""
    module = "keyhole.sandbox.containers.registration._groups_of"
    clients: list[socket.socket] = []

    async def connected() -> socket.socket:
        registration = DoorRegistration(tmp_path)
        clients.append(socket.socket(socket.AF_UNIX))
        clients[0].connect(str(registration.path))
        return await registration.accept()

    control = asyncio.run(connected())
    own: Any = FakeEngine(os.getpid())
    stranger: Any = FakeEngine(os.getppid())
    with control, clients[0]:
        monkeypatch.setattr(module, lambda _: frozenset({"b" * 64}))  # we, and so the peer
        check_peer(control, own, HOLDER, grouped=False)
        for engine, grouped in ((own, True), (stranger, False)):
            with pytest.raises(SetupFailed):
                check_peer(control, engine, HOLDER, grouped=grouped)
        answers = iter((frozenset({"c" * 64}), frozenset[str]()))
        monkeypatch.setattr(module, lambda _: next(answers))  # the peer, and then we
        with pytest.raises(SetupFailed):
            check_peer(control, own, HOLDER, grouped=False)


ROOTLESS_DOCKER = {"SecurityOptions": ["name=seccomp", "name=rootless"], "NCPU": 2}
REMAPPED = {"SecurityOptions": ["name=userns"], "MemoryLimit": True, "PidsLimit": True, "NCPU": 2}
PODMAN = {"SecurityOptions": [], "Rootless": True, "BuildahVersion": "1", "MemoryLimit": True}
OF_LIBPOD: dict[str, dict[str, Any]] = {
    "host": {
        "cgroupManager": "systemd",
        "cgroupControllers": ["cpuset", "memory", "pids"],
        "idMappings": {
            "uidmap": [{"container_id": 0, "host_id": 7}, {"container_id": 1, "host_id": 100000}],
            "gidmap": [{"container_id": 0, "host_id": 8}],
        },
    },
    "store": {"graphRoot": "/g", "runRoot": "/r"},
}


class FakeClient:
    """Answers as an engine does."""

    base_url = "http+unix://x"

    def __init__(self, told: dict[str, Any], libpod: dict[str, Any]) -> None:
        self._told, self._libpod = told, libpod

    def info(self) -> dict[str, Any]:
        return self._told

    def get(self, url: str, timeout: float) -> FakeClient:
        assert url.endswith("/libpod/info")
        assert timeout
        return self

    def raise_for_status(self) -> None:
        return

    def json(self) -> dict[str, Any]:
        return self._libpod


def nature_of(told: dict[str, Any], libpod: dict[str, Any] | None = None) -> EngineTraits:
    engine = Engine.__new__(Engine)
    engine.path = "/x"
    engine._greeting = EngineInfo("1.41", podman="BuildahVersion" in told)
    engine._client = FakeClient(told, libpod or {})
    return engine.traits()


def test_engines_are_known_by_what_they_say() -> None:
    """As Docker 20.10 and Podman 4.3 said it. A Podman without systemd bounds nothing, though what
    it says as Docker does, and of the host, reads otherwise."""
    rootless = nature_of(ROOTLESS_DOCKER)
    assert (rootless.rootless, rootless.keeps_ids, rootless.bounds) == (True, False, frozenset())
    remapped = nature_of(REMAPPED)
    assert (remapped.rootless, remapped.remaps) == (False, True)
    assert (sorted(remapped.bounds), remapped.cpus) == (["memory", "pids"], 2)
    found = nature_of(PODMAN, OF_LIBPOD)
    assert (found.rootless, found.keeps_ids, found.owner) == (True, True, (7, 8))
    assert found.bounds == {"memory", "pids"}
    assert found.trees == ("/g", "/r")
    by_itself = OF_LIBPOD | {"host": {**OF_LIBPOD["host"], "cgroupManager": "cgroupfs"}}
    assert nature_of(PODMAN, by_itself).bounds == frozenset()
    assert nature_of(PODMAN).owner == (-1, -1), "and so it is refused"
