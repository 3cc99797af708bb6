"""Which set-ups were tried since this boot, so that a run need not try them again.

What is tried and how is `selftest.py`; this is the memory of it. It is read on every run, before
much else is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import keyhole.sandbox
from keyhole.sandbox.emptynet import RULESET

if TYPE_CHECKING:
    from keyhole.sandbox.launch import Launch


class Remembered:
    """Which set-ups were tried since this boot; a file that cannot be read remembers nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def holds(self, key: str) -> bool:
        """Whether this set-up was tried and held."""
        try:
            return key in json.loads(self._file.read_text("ascii"))
        except (OSError, ValueError, TypeError):
            return False

    def keep(self, key: str) -> None:
        """Remember it, beside the most recent others."""
        try:
            known = [k for k in json.loads(self._file.read_text("ascii")) if k != key]
        except (OSError, ValueError, TypeError):
            known = []
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        temporary.write_text(json.dumps([*known[-63:], key]), "ascii")
        temporary.replace(self._file)


def key_of_box(launch: Launch, engine: str, kit: str) -> str:
    """The same for a container: boot, engine, image, and our own programs with all of our code.

    The bind plan is not in it: an engine mounts each plan in one way, which `entry.py` asserts.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    who = (os.getuid(), launch.uid, launch.maps_root)
    told = json.dumps([boot, engine, launch.image, kit, who])
    return hashlib.sha256(told.encode()).hexdigest()


def key_of(launch: Launch, program: bytes, *, borrows: bool) -> str:
    """What a set-up is: boot, programs, our own code, ruleset, filter, identity and bind plan, and
    whether the namespaces are borrowed from bubblewrap."""
    digest = hashlib.sha256()
    code = sorted(Path(keyhole.sandbox.__path__[0]).rglob("*.py"))
    for path in (
        Path("/proc/sys/kernel/random/boot_id"),
        Path(launch.bwrap),
        Path(launch.nft),
        *code,
    ):
        digest.update(path.read_bytes())
    plan = [
        (type(entry).__name__, entry.target, getattr(entry, "writable", False))
        for entry in launch.files
    ]
    who = (os.getuid(), launch.uid, launch.maps_root, launch.python, borrows)
    digest.update(json.dumps([RULESET, plan, who]).encode())
    digest.update(program)
    return digest.hexdigest()
