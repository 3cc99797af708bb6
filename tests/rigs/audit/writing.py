"""A log for tests: clocks that stand still, lines as they lie on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.audit.log import AuditLog, Clock, LogBounds
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.verify import VerifyReport, verify_log
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_780_000_000.0


@dataclass
class Hands:
    """A clock that moves when it is told to."""

    now: float = NOON

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, steady=lambda: self.now - NOON)


def denied(host: str = "evil.example", **details: str | int | float) -> Event:
    return Event(EventKind.CONNECT, Verdict.DENY, "no-rule", host=host, details=_pairs(details))


def allowed(host: str = "good.example", **details: str | int | float) -> Event:
    rule = "egress.allow[0]"
    return Event(EventKind.CONNECT, Verdict.ALLOW, "rule", rule, host, _pairs(details))


def pushed(ref: str, verdict: Verdict = Verdict.ALLOW, reason: str = "rule") -> Event:
    details = _pairs({"ref": ref, "old": "0" * 40, "new": "1" * 40})
    return Event(EventKind.REF, verdict, reason, "services.own.push[0]", "git.example", details)


def session_event(reason: str) -> Event:
    return Event(EventKind.SESSION, Verdict.ALLOW, reason)


def _pairs(details: dict[str, str | int | float]) -> tuple[tuple[str, str | int | float], ...]:
    return tuple(details.items())


def write(path: Path, count: int, bounds: LogBounds | None = None, session: str = "s1") -> str:
    """A closed log of that many events; its head."""
    with AuditLog(path, Hands().clock(), bounds) as log:
        for number in range(count):
            log.record(session, denied(f"h{number}.example", port=443))
    return log.head()


def files(path: Path) -> list[Path]:
    """The files, in the order of their chains."""
    found = {file.name: file for file in path.glob("*.jsonl")}
    after = {lines(file)[0]["details"]["after"]: file for file in found.values()}
    roots = sorted(name for name in after if name not in found)
    ordered, name = [], roots[0]
    while name in after:
        ordered.append(after[name])
        name = after[name].name
    return ordered


def only_file(path: Path) -> Path:
    (file,) = path.glob("*.jsonl")
    return file


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


def all_lines(path: Path) -> list[dict[str, Any]]:
    return [line for file in path.glob("*.jsonl") for line in lines(file)]


def checked(path: Path, head: str | None = None) -> VerifyReport:
    directory = LogDirectory.open(path)
    try:
        return verify_log(directory, head)
    finally:
        directory.close()
