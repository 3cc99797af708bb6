"""Sessions and events as rows of text. No text of another is ever markup: each cell is a `Text`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from keyhole.control.ask_words import ask_summary, ask_words
from keyhole.control.budget_words import budget_words, spent_words
from keyhole.control.values import AskStanding, SessionPhase
from keyhole.model.quantity import show_size
from keyhole.model.text import in_order, visible

if TYPE_CHECKING:
    from keyhole.app.monitor.session_list import WatchedSession
    from keyhole.control.values import AskView, BudgetView

SESSION_COLUMNS = ("ID", "STATE", "PROGRAM", "AGE", "ALLOWED", "DENIED", "BUDGET")
ASK_COLUMNS = ("ID", "SESSION", "LEFT", "WANTS TO")
EVENT_COLUMNS = ("TIME", "VERDICT", "KIND", "HOST", "WHAT")

BAR = 10
"""Cells of a budget's bar."""
PROGRAM = 24
"""Characters of a command that are shown; the details have all."""

PLACE = 28
"""Characters of a host that are shown in a row. A longer one would push what was decided off the
screen, in the rows of all sessions."""
TITLE = 100
"""Characters of a question that are shown in a title."""

_SKIPPED = frozenset({"port", "method", "path", "service"})
_NEARLY = 0.8


def session_row(session: WatchedSession, now: float) -> tuple[Text, ...]:
    """A session as cells of SESSION_COLUMNS."""
    view = session.view
    good = view.state is SessionPhase.OPEN
    state = Text(view.state, "green" if good else "bold red")
    label = visible(view.label)
    return (
        Text(session.name or view.id),
        state,
        Text(label if len(label) <= PROGRAM else f"{label[: PROGRAM - 1]}…"),
        Text(age(now - view.opened), justify="right"),
        Text(str(view.requests), justify="right"),
        Text(str(view.denied), "red" if view.denied else "", justify="right"),
        fullest(view.budgets),
    )


def ask_row(ask: AskView, now: float) -> tuple[Text, ...]:
    """A question as cells of ASK_COLUMNS."""
    mark = "! " if ask.marks else ""
    pending = ask.state is AskStanding.PENDING
    left = f"{max(0, int(ask.expires - now))}s" if pending else "lapsed"
    return Text(ask.id), Text(ask.session), Text(left), Text(mark + ask_summary(ask), "yellow")


def ask_title(ask: AskView) -> str:
    """The beginning of a question; `ask_details` has all of it."""
    words = ask_summary(ask)
    return f"May it {words if len(words) <= TITLE else f'{words[:TITLE]}…'}?"


def ask_details(ask: AskView, label: str) -> Text:
    """Everything about a question. A sandbox chooses how long the last two are, so nothing that a
    person must see stands below them."""
    rows: list[tuple[str, object]] = [("look", visible(mark)) for mark in ask.marks]
    rows += [
        ("session", f"{ask.session} ({visible(label)})"),
        ("waiting", ask.waiting),
        ("wants to", ask_words(ask)),
        ("rule", in_order(ask.rule)),
    ]
    return _table(rows)


def fullest(budgets: tuple[BudgetView, ...]) -> Text:
    """The budget that is used most, as a bar that is read without colour too."""
    if not budgets:
        return Text("–")
    most = max(budgets, key=lambda each: each.used / max(each.limit, 1))
    return bar(most)


def bar(budget: BudgetView) -> Text:
    """`███░░░░░░░ 31% requests`."""
    share = min(budget.used / max(budget.limit, 1), 1.0)
    full = int(share * BAR)
    style = "red" if share >= 1 else "yellow" if share >= _NEARLY else "green"
    made = Text("█" * full + "░" * (BAR - full), style)
    return made.append(f" {int(share * 100)}% ", "").append(visible(budget.name), "dim")


def event_row(event: dict[str, Any]) -> tuple[Text, ...]:
    """An event as cells of EVENT_COLUMNS. Its texts are made visible by the log's store."""
    if event.get("gone"):
        return (Text("–"), Text(""), Text(""), Text(""), Text("its file was removed"))
    at = datetime.fromtimestamp(event["at"]).strftime("%H:%M:%S")
    verdict = event["verdict"]
    return (
        Text(at, "dim"),
        Text(verdict, "green" if verdict == "allow" else "bold red"),
        Text(event["kind"]),
        Text(host if len(host := place(event)) <= PLACE else f"…{host[1 - PLACE :]}"),
        Text(what(event)),
    )


def place(event: dict[str, Any]) -> str:
    """The host, with its port unless that is the usual one."""
    port = event["details"].get("port", 443)
    return f"{event['host']}:{port}" if event["host"] and port != 443 else event["host"] or "–"


def what(event: dict[str, Any]) -> str:
    """What was asked for, and why it was decided so."""
    details = event["details"]
    words = [details.get("method", ""), details.get("path", ""), event["reason"]]
    words += [f"({event['times']} times)"] if event["times"] > 1 else []
    words += [f"{name}={value}" for name, value in details.items() if name not in _SKIPPED]
    return " ".join(str(each) for each in words if each)


def event_details(event: dict[str, Any], line: str) -> Text:
    """Everything about one event. `line` is where its rule stands, if that is known."""
    rows = [
        ("time", event["ts"]),
        ("session", event["session"]),
        ("verdict", event["verdict"]),
        ("because", f"{event['says']} ({event['reason']})"),
        ("rule", event["rule"]),
        ("line", line),
        ("host", event["host"]),
        ("times", event["times"] if event["times"] > 1 else ""),
        *event["details"].items(),
        ("hint", event["hint"] if event["verdict"] == "deny" else ""),
        ("why", event["why"]),
    ]
    return _table(rows)


def session_details(session: WatchedSession, now: float) -> Text:
    """Everything about one session."""
    view = session.view
    rows: list[tuple[str, object]] = [
        ("session", view.id),
        ("name", session.name),
        ("state", str(view.state)),
        ("command", visible(view.label)),
        ("policy", visible(view.policy)),
        ("gateway", "own" if session.own else "shared"),
        ("age", age(now - view.opened)),
        ("ends in", age(view.expires - now) if view.expires else ""),
        ("allowed", view.requests),
        ("denied", view.denied),
        ("bytes", f"{show_size(view.up)} up, {show_size(view.down)} down"),
        ("spent", "" if (spent := spent_words(view)) == "–" else spent),
        ("secrets", ", ".join(map(visible, view.secrets))),
    ]
    rows += [("granted", f"{visible(each.host)}, {each.uses} uses") for each in view.grants]
    made = _table(rows)
    for each in view.budgets:
        used, limit = budget_words(each)
        made.append("\n").append_text(bar(each)).append(f" {used} of {limit}", "dim")
    return made


def _table(rows: list[tuple[str, object]]) -> Text:
    shown = [(name, str(value)) for name, value in rows if value != ""]
    width = max(len(name) for name, _ in shown)
    made = Text()
    for number, (name, value) in enumerate(shown):
        made.append("\n" if number else "").append(f"{name.ljust(width)}  ", "dim").append(value)
    return made


def age(seconds: float) -> str:
    """`42s`, `12m`, `3h`, `5d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"
