"""What containers are made from, without an engine: mounts, assertions, accounts, who registers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from keyhole.confine.seccomp import profile, rules
from keyhole.model.errors import Refused, SetupFailed
from keyhole.sandbox.containers import container_spec, engine_client
from keyhole.sandbox.containers.engine_client import EngineFailed, address_of
from keyhole.sandbox.containers.engine_values import ContainerState
from keyhole.sandbox.containers.entrypoint import EntrypointConfig, failures
from keyhole.sandbox.containers.mount_sources import write_mount_sources
from keyhole.sandbox.containers.registration import DoorRegistration, check_peer
from keyhole.sandbox.files.generated_files import Account, ImageAccounts, image_files
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Entry,
    Mask,
    MountKind,
    SeedFile,
    Symlink,
    TextFile,
    Tmpfs,
    Volume,
)
from keyhole.sandbox.launch import Launch, ResourceLimits
from keyhole.sandbox.sandbox_init import mount_failures, mount_table
from keyhole.system.walk import LinkInPath


def box(*files: Entry, **environment: str) -> container_spec.ContainerSpec:
    launch = Launch(
        ("true",),
        "/p",
        environment,
        files,
        ResourceLimits(64, 1 << 30),
        1000,
        1000,
        "",
        "nft",
        "python",
    )
    return container_spec.ContainerSpec(
        launch, "5e55", "h" * 64, "sha256:1", ("/data", "/p/x/"), "kit", "{}", "/at"
    )


def test_without_the_package_an_engine_is_asked_by_what_to_type_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an extra: `keyhole[containers]`."""
    assert engine_client.import_docker().__name__ == "docker"  # the control
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(EngineFailed, match=r"pip install 'keyhole\[containers\]'"):
        engine_client.import_docker()


def test_what_a_later_entry_covers_is_not_mounted_at_all() -> None:
    """An engine mounts by depth: what was covered would come out on top (I1)."""
    covered = Bind("/p/a/secret", "/p/a/secret", MountKind.FILE)
    kept, mask = Bind("/p", "/p", MountKind.DIR, writable=True), Mask("/p/a", MountKind.DIR)
    assert container_spec.visible_entries([kept, covered, mask]) == [(0, kept), (2, mask)]
    assert container_spec.visible_entries([mask, covered]) == [(0, mask), (1, covered)]  # control
    with pytest.raises(Refused):
        container_spec.visible_entries([Symlink("/p/a", "/b")])
    with pytest.raises(Refused, match=r"not UTF-8, .*; rename it"):
        container_spec.visible_entries([kept, Mask("/p/\udcff/keyhole.toml", MountKind.FILE)])
    named = Mask("/p/\u00e9/keyhole.toml", MountKind.FILE)
    assert container_spec.visible_entries([named]) == [(0, named)]  # control


def test_a_sandbox_is_asked_for_with_every_wall() -> None:
    """I2: what the engine is told; that it does it, `entrypoint.py` asserts inside."""
    files = (
        Bind("/p", "/p", MountKind.DIR, writable=True), Mask("/p/.env", MountKind.FILE),
        Tmpfs("/home/a", 9), SeedFile("/home/a/s", "x"), BinaryFile("/etc/store", b"y"),
    )  # fmt: skip
    asked = container_spec.sandbox_spec(
        box(*files, LD_PRELOAD="/p/evil.so", A="b"), {0: "/p", 1: "/1", 4: "/4"}, "/c"
    )
    host = asked["HostConfig"]
    assert host["NetworkMode"] == host["PidMode"] == f"container:{'h' * 64}"
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["PidsLimit"]) == (["ALL"], True, 64)
    assert host["SecurityOpt"] == ["no-new-privileges:true", "seccomp={}"]
    assert asked["User"] == "1000:1000"
    assert asked["Labels"] == {"keyhole": "sandbox", "keyhole.session": "5e55", "keyhole.at": "/at"}
    writable = [m["Target"] for m in host["Mounts"] if m["Type"] == "bind" and not m["ReadOnly"]]
    assert writable == ["/p"]
    assert not any("sock" in str(m.get("Source", "")) for m in host["Mounts"])
    assert "uid=1000" in host["Tmpfs"]["/home/a"]
    # The process that asserts is not moved by what the policy or the image says to a loader.
    assert set(asked["Env"]) == {"LD_PRELOAD=", "A=b", "LC_ALL=C"}
    said = container_spec.assertions(box(*files, LD_PRELOAD="/p/evil.so"), "net:[1]", {}, b"")
    assert said.environment["LD_PRELOAD"] == "/p/evil.so"
    assert {"/", "/p/.env"} <= set(said.read_only)
    assert "/p" not in said.read_only


@pytest.mark.parametrize(
    ("links", "volumes"),
    [
        ({"/data": "/.keyhole/lib"}, ()),
        ({"/run": "/"}, ()),
        ({"/home": "/etc/keyhole"}, ()),
        ({"/var": "/proc/1"}, ()),
        ({"/run": "/home/a/p/link"}, ()),
        ({"/home": "/elsewhere", "/run": "/elsewhere/a/p/link"}, ()),
        ({"/run": "/cache/link"}, ()),
        ({}, ("/.keyhole/lib",)),
        ({}, ("//data/../.keyhole/own/",)),
        ({}, ("/cache/data",)),
        ({}, ("/home/a/p/data",)),
    ],
)
def test_an_image_has_nothing_mounted_over_the_process_that_asserts(
    links: dict[str, str], volumes: tuple[str, ...]
) -> None:
    """I2: nor where a link in a tree that hostile code can write leads on. Control: other links."""
    files = (
        Tmpfs("/home/a", 9), Bind("/home/a/p", "/home/a/p", MountKind.DIR, writable=True),
        Mask("/home/a/p/.env", MountKind.FILE), Volume("/cache", "keyhole-1-cache", shared=True),
    )  # fmt: skip
    with pytest.raises(Refused):
        container_spec.refuse_covered_programs(files, volumes, links)
    container_spec.refuse_covered_programs(
        files,
        ("/data", "/", "/cache/", "/home/a/data", "/home"),
        {"/home": "/var/home", "/run": "/var/run"},
    )
    asked = ["/.keyhole", "/cache", "/data", "/etc/keyhole/entry", "/home/a", "/run"]
    assert [
        p for p in container_spec.mount_points(files, ("/data/", "/cache/x")) if "tmp" not in p
    ] == asked


def test_no_command_is_started_where_a_wall_does_not_stand() -> None:
    """I2, I11: this very process stands behind none of them, and says so of each."""
    config = EntrypointConfig(
        namespace="net:[1]", command=("true",), directory="/", environment={}, uid=1, gid=1,
        mounts=("/nowhere",), linked=(), read_only=(), same={"/": (0, 0)}, seeds=(), program=b"",
        open_files=9, memory=9,
    )  # fmt: skip
    said = "; ".join(failures(config))
    for words in (
        "the network namespace is", "new privileges", "no system-call filter", "the user is",
        "/nowhere is not mounted", "should not be", "/ is not what was judged",
    ):  # fmt: skip
        assert words in said
    # What an engine mounts of its own accord is told also in what was asked for, but for trees.
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = next(p for p in points if p.startswith("/sys/"))
    assert f"{below} is mounted and should not be" in mount_failures(("/sys",), (), ())
    assert not any("/sys" in line for line in mount_failures((), (), ("/sys",)))  # control
    status = os.stat("/")
    right = EntrypointConfig(**(vars(config) | {"same": {"/": (status.st_dev, status.st_ino)}}))
    assert "what was judged" not in "; ".join(failures(right))  # control


def test_a_mount_point_may_have_any_name() -> None:
    """Attack: a project whose directories are named so that the table of mounts is misread."""
    name = "/p/\udcff \u00e9\r\t\n\\040"
    written = "/p/\udcff\\040\u00e9\r\\011\\012\\134040"
    line = f"23 27 0:22 / {written} ro,nosuid shared:1 - ext4 /dev/x rw\n"
    assert mount_table(line) == {name: ["ro", "nosuid"]}
    assert mount_table("") == {}  # a namespace that has ended


def test_a_source_that_became_a_link_is_not_mounted(tmp_path: Path) -> None:
    """I11. Control: the same where it is a directory."""
    here = tmp_path.resolve()
    (here / "files").mkdir()
    (here / "tree").mkdir()
    bind = Bind(str(here / "tree"), "/p", MountKind.DIR)
    status = (here / "tree").stat()
    entries: list[tuple[int, Entry]] = [
        (0, bind),
        (1, TextFile("/t", "x", 0o555)),
        (2, Mask("/m", MountKind.DIR)),
    ]
    filled = write_mount_sources(here / "files", entries)
    assert filled.same == {"/p": (status.st_dev, status.st_ino)}
    assert Path(filled.sources[1]).stat().st_mode & 0o777 == 0o555
    (here / "tree").rmdir()
    (here / "tree").symlink_to("/etc")
    (here / "more").mkdir()
    with pytest.raises(LinkInPath):
        write_mount_sources(here / "more", entries)


class FakeEngine:
    """Says of one container that its first process is this."""

    def __init__(self, pid: int, *, running: bool = True) -> None:
        self._pid, self._running = pid, running

    def state(self, container: str) -> ContainerState:
        return ContainerState(container, self._running, self._pid, {})


def test_a_stranger_registers_no_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: who connects must be in the container's group, and be its first process."""
    holder = "a" * 64
    module = "keyhole.sandbox.containers.registration._groups_of"

    async def connected() -> socket.socket:
        registration = DoorRegistration(tmp_path)
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(registration.path))
        accepted = await registration.accept()
        assert not registration.path.exists()  # it answers once
        clients.append(client)
        return accepted

    clients: list[socket.socket] = []
    control = asyncio.run(connected())
    own: Any = FakeEngine(os.getpid())
    with control, clients[0]:
        with pytest.raises(SetupFailed):
            check_peer(control, own, holder)  # in no such group
        monkeypatch.setattr(module, lambda _: frozenset({holder}))
        check_peer(control, own, holder)  # control
        for engine in (FakeEngine(1), FakeEngine(os.getpid(), running=False)):
            with pytest.raises(SetupFailed):
                check_peer(control, engine, holder)  # type: ignore[arg-type]


def test_an_images_accounts_stay_but_for_one_of_the_same_number() -> None:
    known = ImageAccounts(
        "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n", "root:x:0:\n"
    )
    files = {
        f.target: f.content
        for f in image_files(Account("ada", 1000, 1000, "/home/ada"), "k", known)
    }
    assert files["/etc/passwd"].splitlines() == [
        "ada:x:1000:1000::/home/ada:/bin/sh", "root:x:0:0::/root:/bin/sh",
    ]  # fmt: skip
    assert files["/etc/group"].splitlines() == ["root:x:0:", "ada:x:1000:"]
    with pytest.raises(Refused):
        image_files(Account("a:b", 1, 1, "/h"), "k", known)


def test_the_engine_is_told_every_rule_of_the_filter() -> None:
    told = json.loads(profile())
    assert told["defaultAction"] == "SCMP_ACT_ALLOW"
    assert len(told["architectures"]) == 1
    assert [call["names"][0] for call in told["syscalls"]] == [rule.call for rule in rules()]
    assert {call["action"] for call in told["syscalls"]} == {"SCMP_ACT_ERRNO"}


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:1", "ssh://a@b", "unix://relative", "/path"])
def test_an_engine_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(EngineFailed):
        address_of("docker", {"DOCKER_HOST": address})
    assert address_of("docker", {"DOCKER_HOST": "unix:///a/b"}) == "/a/b"
