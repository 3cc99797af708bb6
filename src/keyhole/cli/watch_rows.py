"""Events of gateways, as lines for a person and for `--json`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.ask_rows import ask_json, ask_line
from keyhole.control.ask_words import ask_summary, shorten
from keyhole.control.values import WatchKind
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.control.values import DecisionView, WatchEvent

_SHOWN = ("method", "path", "ref", "port", "status", "why", "command")


def event_line(event: WatchEvent) -> str:
    """An event on one line. The time is first, never what a sandbox chose (I8)."""
    at = datetime.fromtimestamp(event.at / 1000).strftime("%H:%M:%S")
    return f"{at}  {_words(event)}"


def _words(event: WatchEvent) -> str:
    ask = event.ask
    match event.event:
        case WatchKind.ASK if ask is not None:
            return f"ASK {ask_line(ask)}"
        case WatchKind.SETTLED if ask is not None:
            by = f", by {event.via}" if event.via else ""
            return f"{event.answer or event.reason} {ask.id}  {ask_summary(ask)}{by}"
        case WatchKind.DECISION if event.decision is not None:
            return f"{event.session}  {_decision(event.decision)}"
        case WatchKind.SESSION:
            return f"session {event.session} {event.state}  {visible(event.label)}"
        case _:
            return f"{event.left_out} decisions are not shown; `keyhole log` has them"


def _decision(decision: DecisionView) -> str:
    named = {each.name: each.text for each in decision.details}
    details = "  ".join(shorten(visible(named[name])) for name in _SHOWN if name in named)
    where = f"  {visible(decision.host)}" if decision.host else ""
    said = f"{decision.verdict}  {decision.kind}{where}"
    rule = f"  {visible(decision.rule)}" if decision.rule else ""
    return f"{said}  {details}  ({decision.reason}{rule})"


def event_json(event: WatchEvent) -> dict[str, object]:
    """The event for `--json`: the members that it has, as in docs/control-api.md."""
    found: dict[str, object] = {"event": event.event, "at": event.at}
    if event.session:
        found["session"] = event.session
    if event.ask is not None:
        found["ask"] = ask_json(event.ask)
    if event.decision is not None:
        decision = event.decision
        found["decision"] = {
            "kind": decision.kind,
            "verdict": decision.verdict,
            "reason": decision.reason,
            "rule": decision.rule,
            "host": decision.host,
            "details": {each.name: each.text for each in decision.details},
        }
    for name in ("reason", "answer", "by", "via", "state", "label", "left_out"):
        if value := getattr(event, name):
            found[name] = value
    return found
