"""Which ioctl commands pass the filter: every family and number, and a real btrfs (I1, I2)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.confine import ioctls
from keyhole.confine.seccomp import build_filter
from tests.rigs.sandbox.projects import Project
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rigs.sandbox.people import Person

pytestmark = pytest.mark.outside

EVERY_COMMAND = """
import ctypes, errno, json, sys
from keyhole.system import syscalls
libc = ctypes.CDLL(None, use_errno=True)
upper = int(sys.argv[1])
if sys.argv[2]:
    syscalls.no_new_privileges()
    syscalls.load_filter(bytes.fromhex(sys.argv[2]))
met = {}
for number in range(1 << 16):
    libc.ioctl(-1, ctypes.c_ulong(upper | number), None)
    met.setdefault(errno.errorcode[ctypes.get_errno()], []).append(number)
json.dump(met, sys.stdout)
"""

SNAPSHOT = """
import ctypes, errno, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
upper, name = int(sys.argv[1]), sys.argv[2]
here = os.open(".", os.O_RDONLY)
wanted = ctypes.create_string_buffer(
    struct.pack("=qQQ32x", here, 0, 0) + name.encode().ljust(4040, b"\\0"), 4096)
done = libc.ioctl(here, ctypes.c_ulong(0x50009417 | upper), wanted)
seen = errno.errorcode[ctypes.get_errno()] if done else "done"
reflink = open("copy", "wb")
cloned = libc.ioctl(reflink.fileno(), ctypes.c_ulong(0x40049409), os.open("plain", os.O_RDONLY))
try:
    masked = open(".env").read()
except OSError:
    masked = ""
json.dump([seen, masked, cloned, open("copy").read()], sys.stdout)
"""


def _met(upper: int, program: bytes) -> dict[str, list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_COMMAND, str(upper), program.hex()],
        capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("upper", [0, 0x5000 << 16, 0xFFFFFFFF << 32, 1 << 63 | 0xC018 << 16])
def test_a_command_passes_if_its_family_and_number_are_named(upper: int) -> None:
    """I1, I2: of all of them, whatever is in the bits that the filter does not compare.

    The descriptor is not open: EBADF is the kernel's answer, all others are the filter's.
    """
    named = {n for first, last in ioctls.ALLOWED for n in range(first, last + 1)}
    refused = set(ioctls.REFUSED.values())
    met = _met(upper, build_filter())
    assert set(met) == {"EBADF", "EPERM", "ENOTTY"}
    assert set(met["EBADF"]) == named - refused
    assert set(met["EPERM"]) == refused


def test_without_the_filter_the_kernel_looks_at_the_descriptor() -> None:
    """The control: otherwise the errors above would not be the filter's."""
    assert set(_met(0, b"")) == {"EBADF"}


def test_the_ranges_are_in_order_and_the_refused_are_inside_them() -> None:
    """Blocks are counted upwards; and a refusal outside of every range would have two errors."""
    ends = [end for pair in ioctls.ALLOWED for end in pair]
    assert ends == sorted(ends)
    for command in ioctls.REFUSED.values():
        assert any(first <= command <= last for first, last in ioctls.ALLOWED)


@pytest.fixture
def on_btrfs(person: Person) -> Iterator[Project]:
    """A project that is a subvolume of the person's own, on a file system made for it."""
    mkfs = shutil.which("mkfs.btrfs", path="/usr/sbin:/sbin:/usr/bin")
    if os.geteuid() != 0 or mkfs is None:
        pytest.skip("a btrfs is made by root, with btrfs-progs")
    base = person.directory / f"btrfs-{secrets.token_hex(4)}"
    base.mkdir()
    image, top, home = base / "image", base / "top", base / "home"
    for path in (top, home):
        path.mkdir()
        person.own(path)
    with image.open("wb") as file:
        file.truncate(160 << 20)
    _do(mkfs, "-q", str(image))
    mounted = subprocess.run(
        ["/bin/mount", "-o", "loop", str(image), str(top)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if mounted.returncode:
        shutil.rmtree(base)
        pytest.skip(f"this kernel mounts no btrfs: {mounted.stderr.strip()}")
    try:
        project = Project(person, top / "project", home)
        _do("btrfs", "-q", "subvolume", "create", str(project.directory))
        person.own(project.directory)
        project.policy("")
        yield project
    finally:
        _do("umount", "--lazy", str(top))
        shutil.rmtree(base)


def _do(*words: str) -> None:
    subprocess.run(words, capture_output=True, timeout=PATIENCE, check=True)


def _snapshot_outside(project: Project, name: str) -> list[object]:
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", SNAPSHOT, "0", name], cwd=project.directory,
        capture_output=True, timeout=PATIENCE, check=True, **project.person.become(),
    )  # fmt: skip
    found: list[object] = json.loads(done.stdout)
    return found


def test_no_snapshot_shows_a_file_that_is_masked(on_btrfs: Project) -> None:
    """I1: on a real btrfs. Control: the same person makes one outside, and it shows the file; and
    inside, a copy that shares its blocks with the original can still be made."""
    secret = secrets.token_hex(8)
    on_btrfs.write(".env", f"API_TOKEN={secret}\n")
    on_btrfs.write("plain", "shared")
    assert _snapshot_outside(on_btrfs, "outside")[0] == "done"
    assert secret in _text(on_btrfs.directory / "outside" / ".env")
    for number, upper in enumerate((0, 1 << 32)):
        seen = on_btrfs.python(SNAPSHOT, str(upper), f"inside-{number}")
        assert seen == ["ENOTTY", "", 0, "shared"]
        assert not (on_btrfs.directory / f"inside-{number}").exists()


def _text(path: Path) -> str:
    return path.read_text("utf-8")
