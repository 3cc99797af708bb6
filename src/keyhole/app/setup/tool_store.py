"""Tools of MCP servers that were seen and accepted: a small file for each policy's path.

In the state directory, which no sandbox can write or see. Written by the process that holds a run,
or by the keeper, when a gateway has seen a list; read with the policy of the next session.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.policy.seen_tools import ServiceTools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from keyhole.policy.mcp_grant import SeenTool

MAX_BYTES = 4 << 20
"""Bytes of one file: a thousand tools of a few servers."""


class ToolStore:
    """The tools of all policies, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, policy: Path) -> dict[str, ServiceTools]:
        """The tools of each service of a policy; empty if none was seen."""
        try:
            data = self._file(policy).read_bytes()[:MAX_BYTES]
            return {
                str(service): ServiceTools(_texts(tools["accepted"]), _texts(tools["waiting"]))
                for service, tools in json.loads(data).items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def note(self, policy: Path, service: str, seen: Iterable[SeenTool]) -> None:
        """Remember a list of a server. Raises OSError."""
        self._change(policy, service, lambda tools: tools.with_seen(seen))

    def accept(self, policy: Path, service: str, names: Iterable[str]) -> tuple[str, ...]:
        """Accept tools as they are now; all that wait if none is named. Raises Refused, OSError."""
        waiting = self.read(policy).get(service, ServiceTools()).waiting
        chosen = tuple(names) or tuple(waiting)
        if not chosen:
            raise Refused(f"no tool of {service} waits to be accepted")
        for name in chosen:
            if name not in waiting:
                raise Refused(f"no tool '{name}' of {service} waits to be accepted")
        self._change(policy, service, lambda tools: tools.with_accepted(chosen))
        return chosen

    def _change(
        self, policy: Path, service: str, change: Callable[[ServiceTools], ServiceTools]
    ) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self._directory / "lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.read(policy)
            before = known.get(service, ServiceTools())
            known[service] = change(before)
            if known[service] != before:
                self._write(policy, known)
        finally:
            os.close(lock)

    def _write(self, policy: Path, known: dict[str, ServiceTools]) -> None:
        table = {
            service: {"accepted": dict(tools.accepted), "waiting": dict(tools.waiting)}
            for service, tools in known.items()
        }
        # One name is enough, because the lock is held; what a killed process left is overwritten.
        temporary = self._directory / "new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(table, file)
        temporary.replace(self._file(policy))

    def _file(self, policy: Path) -> Path:
        return self._directory / (hashlib.sha256(os.fsencode(policy)).hexdigest()[:32] + ".json")


def _texts(table: object) -> dict[str, str]:
    if not isinstance(table, dict):
        raise TypeError("not a table")
    return {str(name): str(digest) for name, digest in table.items()}
