"""Detects whether this process runs in a container, for the source that must not be used there.

Used by `unsafe-env:`. Files alone do not prove it: virtual machines are made from images of
containers and have their files. So there must be such a mark and, as a fact of the kernel, a
namespace that is not the host's first. Neither alone is a container.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD, "cgroup": 0xEFFFFFFB}
"""Inode numbers of the host's first namespaces (linux/nsfs.h: `enum init_ns_ino`)."""

MARKS = (".dockerenv", "run/.containerenv", "run/host/container-manager")
"""Files that Docker, Podman and systemd-nspawn leave."""

MAX_READ = 64 * 1024
"""Bytes of a file in /proc that are looked at."""

_GROUP = re.compile(
    rb"/(docker|kubepods|libpod|lxc|containerd|machine\.slice)\b|[-:/](docker|crio)-"
)
_ROOT = re.compile(rb"^\S+ \S+ \S+ \S+ / .* - overlay ", re.MULTILINE)


class ContainerSigns(Struct, frozen=True):
    """The first mark of a container, in words, and whether a namespace is not the host's first."""

    mark: str = ""
    apart: bool = True

    @property
    def container(self) -> str:
        """The mark that shows that this is a container; empty if it is none."""
        return self.mark if self.apart else ""


def detect_container(env: Mapping[str, str], root: Path = Path("/")) -> ContainerSigns:
    """Look for marks of a container; tests give another `root`."""
    return ContainerSigns(_mark(env, root), _is_apart(root))


def _mark(env: Mapping[str, str], root: Path) -> str:
    for name in MARKS:
        if (root / name).exists():
            return f"there is /{name}"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "KUBERNETES_SERVICE_HOST is set"
    # The environment of the first process; another user's cannot be read.
    if re.search(rb"(^|\0)container=[^\0]", _read(root / "proc/1/environ")):
        return "the first process has container= in its environment"
    if _GROUP.search(_read(root / "proc/self/cgroup")):
        return "the control group is a container's"
    if _ROOT.search(_read(root / "proc/self/mountinfo")):
        return "the root is an overlay"
    return ""


def _is_apart(root: Path) -> bool:
    for name, first in FIRST.items():
        try:
            if os.stat(root / "proc/self/ns" / name).st_ino != first:
                return True
        except OSError:
            return True  # in doubt the mark decides
    return False


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_READ)
    except OSError:
        return b""
