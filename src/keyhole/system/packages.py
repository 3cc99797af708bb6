"""The system packages that a sandbox needs, and the line that installs those that are missing.

A wheel cannot bring them. Used where one turns out to be missing, and by the doctor.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from keyhole.system.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRAMS = ("bwrap", "nft")
LIBRARIES = {"libseccomp": "libseccomp.so.2", "libstdc++": "libstdc++.so.6"}
"""Libraries that packages of Python load, by the name of their file."""

MANAGERS = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "pacman": "pacman -S --needed",
    "zypper": "zypper install",
    "apk": "apk add",
}
"""Each package manager, and how it is asked."""

_USUAL = {"bwrap": "bubblewrap", "nft": "nftables"}
_PACKAGES: dict[str, dict[str, str]] = {
    "apt-get": {"libseccomp": "libseccomp2", "libstdc++": "libstdc++6"},
    "pacman": {"libstdc++": "gcc-libs"},
    "zypper": {"libseccomp": "libseccomp2", "libstdc++": "libstdc++6"},
}
"""Names of packages that differ from the need's own or usual name."""


def find_missing(*, contained: bool = False) -> list[str]:
    """Which programs and libraries this host lacks. `contained`: an engine makes the sandbox."""
    programs = [name for name in PROGRAMS if not (contained and name == "bwrap")]
    missing = [name for name in programs if find_program(name) is None]
    return missing + [name for name, file in LIBRARIES.items() if not _loads(file)]


def _loads(file: str) -> bool:
    try:
        ctypes.CDLL(file)
    except OSError:
        return False
    return True


def install_line(needs: Sequence[str], manager: str | None = None, *, root: bool = False) -> str:
    """The command that installs them; empty where no package manager is known."""
    manager = manager or next((name for name in MANAGERS if find_program(name)), None)
    if manager is None:
        return ""
    sudo = "" if root or os.geteuid() == 0 else "sudo "
    return f"{sudo}{MANAGERS[manager]} {' '.join(_packages(needs, manager))}"


def how_to_install(needs: Sequence[str]) -> str:
    """A clause for an error: what to type, or what to look for where no manager is known."""
    line = install_line(needs)
    if line:
        return f"type `{line}`"
    return f"install {', '.join(_packages(needs, ''))} with this system's package manager"


def _packages(needs: Iterable[str], manager: str) -> list[str]:
    own = _PACKAGES.get(manager, {})
    return [own.get(need) or _USUAL.get(need, need) for need in needs]
