"""`unsafe-env:` is refused in a container, and only there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.vault.container_detection import FIRST, ContainerSigns, detect_container
from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.variable_source import VariableSource
from tests.rigs.vault.rig import VALUE, ref

if TYPE_CHECKING:
    from pathlib import Path

POD = b"0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-0a1b.scope\n"
DOCKER = b"12:pids:/docker/0123456789abcdef\n0::/\n"
SCOPE = b"0::/system.slice/docker-0123456789abcdef.scope\n"
OVERLAY = b"481 450 0:52 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/x\n"
DESKTOP = b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-docker.slice\n"
DISK = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n30 27 0:9 / /mnt rw - overlay overlay rw\n"


def put(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.mark.parametrize(
    ("files", "env", "mark"),
    [
        ({".dockerenv": b""}, {}, "/.dockerenv"),
        ({"run/.containerenv": b""}, {}, "/run/.containerenv"),
        ({"run/host/container-manager": b"systemd-nspawn"}, {}, "container-manager"),
        ({"proc/1/environ": b"PATH=/bin\0container=lxc\0"}, {}, "container="),
        ({"proc/self/cgroup": POD}, {}, "control group"),
        ({"proc/self/cgroup": DOCKER}, {}, "control group"),
        ({"proc/self/cgroup": SCOPE}, {}, "control group"),
        ({"proc/self/mountinfo": OVERLAY}, {}, "overlay"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "KUBERNETES_SERVICE_HOST"),
    ],
)
def test_a_mark_in_a_namespace_of_its_own_is_a_container(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str], mark: str
) -> None:
    """A root without /proc/self/ns: in doubt the mark decides (I3)."""
    signs = detect_container(env, put(tmp_path, files))
    assert signs.apart
    assert mark in signs.container


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/1/environ": b"PATH=/bin\0xcontainer=no\0container=\0"},
        {"proc/self/cgroup": DESKTOP},
        {"proc/self/cgroup": b"0::/\n"},
        {"proc/self/mountinfo": DISK},
    ],
)
def test_a_namespace_without_a_mark_is_none(tmp_path: Path, files: dict[str, bytes]) -> None:
    """A desktop's sandbox, or WSL, has namespaces of its own as well."""
    assert detect_container({}, put(tmp_path, files)) == ContainerSigns("", apart=True)


def test_a_machine_made_from_an_image_is_none() -> None:
    """It has the marks, and the host's first namespaces."""
    assert ContainerSigns("there is /.dockerenv", apart=False).container == ""
    assert ContainerSigns("there is /.dockerenv", apart=True).container


def test_the_first_namespaces_are_known_by_their_numbers() -> None:
    """In a new process namespace the same look says so; the control is this host as it is."""
    program = (
        "from keyhole.vault.container_detection import detect_container\n"
        "print(detect_container({}).apart)"
    )
    unshare = shutil.which("unshare")
    assert unshare
    fresh = [unshare, "--map-root-user", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*fresh, sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip("this host allows no user namespace")
    assert done.stdout == "True\n", done.stderr
    own = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in FIRST}
    assert detect_container({}).apart is (own != FIRST)


def test_a_variable_is_refused_in_a_container_and_not_quoted() -> None:
    """I8; the control is the same source elsewhere."""
    inside = VariableSource({"TOKEN": VALUE}, lambda _: ContainerSigns("there is /.dockerenv"))
    with pytest.raises(SecretUnavailable, match="this is a container") as error:
        inside.read(ref("unsafe-env:TOKEN"))
    assert "file:/run/secrets/NAME" in str(error.value)
    assert VALUE not in str(error.value)
    outside = VariableSource({"TOKEN": VALUE}, lambda _: ContainerSigns("", apart=True))
    assert outside.read(ref("unsafe-env:TOKEN")).secret
