"""Events of gateways and decisions of the log, as lines for a person and for `--json`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.ask_rows import ask_json, ask_line
from keyhole.control.ask_words import ask_summary, shorten
from keyhole.control.values import WatchKind
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.audit.log_line import LogRecord
    from keyhole.control.values import WatchEvent

_SHOWN = ("method", "path", "ref", "port", "status", "why", "command")


def event_line(event: WatchEvent) -> str:
    """An event on one line. The time is first, never what a sandbox chose (I8)."""
    return f"{_time(event.at / 1000)}  {_words(event)}"


def decision_line(record: LogRecord) -> str:
    """A decision on one line; the time is first."""
    details = "  ".join(
        shorten(visible(record.text(name))) for name in _SHOWN if name in record.details
    )
    where = f"  {visible(record.host)}" if record.host else ""
    said = f"{visible(record.verdict)}  {visible(record.kind)}{where}"
    rule = f"  {visible(record.rule)}" if record.rule else ""
    times = f"  {record.folded} times" if record.folded else ""
    session = visible(record.session)
    return (
        f"{_time(record.at)}  {session}  {said}  {details}  ({visible(record.reason)}{rule}){times}"
    )


def left_out_line(count: int) -> str:
    """Instead of decisions that came faster than anybody reads."""
    return f"{_time(time.time())}  {count} decisions are not shown; `keyhole log` has them"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _words(event: WatchEvent) -> str:
    ask = event.ask
    match event.event:
        case WatchKind.ASK if ask is not None:
            return f"ASK {ask_line(ask)}"
        case WatchKind.SETTLED if ask is not None:
            by = f", by {event.via}" if event.via else ""
            return f"{event.answer or event.reason} {ask.id}  {ask_summary(ask)}{by}"
        case _:
            return f"session {event.session} {event.state}  {visible(event.label)}"


def event_json(event: WatchEvent) -> dict[str, object]:
    """The event for `--json`: the members that it has, as in docs/control-api.md."""
    found: dict[str, object] = {"event": event.event, "at": event.at}
    if event.session:
        found["session"] = event.session
    if event.ask is not None:
        found["ask"] = ask_json(event.ask)
    for name in ("reason", "answer", "by", "via", "state", "label"):
        if value := getattr(event, name):
            found[name] = value
    return found


def decision_json(record: LogRecord) -> dict[str, object]:
    """The decision for `--json`, as an event of its own kind."""
    return {
        "event": "decision",
        "at": int(record.at * 1000),
        "session": record.session,
        "decision": {
            "kind": record.kind,
            "verdict": record.verdict,
            "reason": record.reason,
            "rule": record.rule,
            "host": record.host,
            "times": record.folded or 1,
            "details": record.details,
        },
    }
