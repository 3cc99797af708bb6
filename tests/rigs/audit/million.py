"""Lines of a log as they lie on disk, any number of them, without a writer's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.audit.log_line import chain_line, draft_line, line_digest
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SESSION = "5e55104d0123"


def request(path: str = "/v1/items", host: str = "api.example", service: str = "api") -> Event:
    """A request that was allowed."""
    details = (("method", "GET"), ("path", path), ("service", service), ("status", 200))
    rule = f"services.{service}.allow[0]"
    return Event(EventKind.REQUEST, Verdict.ALLOW, "rule", rule, host, details)


def refusal(host: str = "evil.example", port: int = 443) -> Event:
    """A connection that was denied."""
    return Event(EventKind.CONNECT, Verdict.DENY, "no-rule", host=host, details=(("port", port),))


def closed(up: int, down: int) -> Event:
    """The end of a connection, with its bytes."""
    details = (("port", 443), ("up", up), ("down", down))
    rule = "services.api.allow[0]"
    return Event(EventKind.CONNECT, Verdict.ALLOW, "closed", rule, "api.example", details)


def write_lines(
    file: Path, events: Iterable[tuple[float, Event]], session: str = SESSION, mode: str = "wb"
) -> None:
    """Write events with their times as one file of a log."""
    file.parent.mkdir(parents=True, exist_ok=True)
    prev = "0" * 64
    with file.open(mode) as out:
        for seq, (at, event) in enumerate(events):
            line = chain_line(draft_line(at, session, event), seq, prev)
            prev = line_digest(line)
            out.write(line + b"\n")


def used(tokens: int, nano_usd: int, *, known: bool = True) -> Event:
    """The tokens of a response."""
    details: tuple[tuple[str, str | int], ...] = (("service", "api"), ("tokens", tokens))
    details += (("nano_usd", nano_usd),) if nano_usd else ()
    details += () if known else (("price", "unknown"),)
    return Event(EventKind.USAGE, Verdict.ALLOW, "used", "services.api", "api.example", details)
