"""The set-ups that were tested since this boot, so that a run need not test them again.

`selftest.py` tests them; this is the record of it. Every run reads it, before much else is
imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.sandbox.empty_network import RULESET
from keyhole.sandbox.programs import own_code

if TYPE_CHECKING:
    from keyhole.sandbox.launch import Launch


class SelftestCache:
    """The set-ups that were tried since this boot; a file that cannot be read counts as empty."""

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


def container_key(launch: Launch, engine: str, kit: str) -> str:
    """The identity of a container's set-up: boot, engine, image, and our own programs with all of
    our code.

    The bind plan is not part of it: `entrypoint.py` asserts at each start that the engine mounted
    the plan.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    who = (os.getuid(), launch.uid, launch.maps_root)
    told = json.dumps([boot, engine, launch.image, kit, who])
    return hashlib.sha256(told.encode()).hexdigest()


def bubblewrap_key(launch: Launch, program: bytes, *, borrows: bool) -> str:
    """The identity of a set-up: boot, programs, our own code, ruleset, filter, identity and bind
    plan, and whether the namespaces are borrowed from bubblewrap."""
    digest = hashlib.sha256()
    for path in (
        Path("/proc/sys/kernel/random/boot_id"),
        Path(launch.bwrap),
        Path(launch.nft),
        *own_code(),
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
