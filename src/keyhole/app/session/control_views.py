"""Grants, budgets and questions of a session as a person sees them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.app.session.ask_board import ASK_REPORT, AskReport
from keyhole.control.ask_words import shorten
from keyhole.control.operation_table import MAX_OF_SESSION
from keyhole.control.values import (
    AskStanding,
    AskView,
    BudgetView,
    GrantView,
)
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.text import in_order, visible
from keyhole.policy.schema import AskKind
from keyhole.system import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.asking import AskNotice
    from keyhole.policy.asks import Ask, AskSubject
    from keyhole.policy.budget import BudgetUse
    from keyhole.policy.grants import Grant as Granted


def grant_view(grant: Granted) -> GrantView:
    """A grant as a person sees it, with wall-clock times."""
    left = grant.expires - clock.now()
    port = "" if grant.port == DEFAULT_PORT else f":{grant.port}"
    return GrantView(f"{grant.host.name}{port}", int(time.time() + left), grant.uses)


def budget_views(uses: Iterable[BudgetUse]) -> tuple[BudgetView, ...]:
    """As many budgets as an answer has room for; `keyhole check` names all."""
    found = [BudgetView(use.name, use.used, use.limit) for use in uses]
    return tuple(found[:MAX_OF_SESSION])


MAX_SHOWN = 1000
"""Characters of a text of the sandbox's in a view; the log has it whole."""


def ask_view(session: str, notice: AskNotice) -> AskView:
    """A question as a person sees it: with wall-clock times, and every text of the sandbox's
    escaped."""
    ask, subject = notice.ask, notice.ask.subject
    ahead = time.time() - clock.now()
    return AskView(
        id=ask.id,
        session=session,
        kind=subject.kind,
        state=AskStanding(ask.state),
        host=subject.host,
        port=subject.port,
        service=_shown(subject.service)[:128],
        method=subject.word,
        path=_shown(subject.path),
        ref=_shown(subject.ref),
        rule=_shown(subject.rule),
        marks=notice.marks,
        asked=int(ask.asked + ahead),
        expires=int(ask.expires + ahead),
        waiting=notice.waiting,
    )


def ask_report(session: str, notice: AskNotice) -> object:
    """A data plane's message about a question, as a value of JSON."""
    report = AskReport(
        ask_view(session, notice), notice.reason, notice.answer, notice.by, notice.via
    )
    return ASK_REPORT.write(report, "asked")


def waiting_line(ask: Ask) -> str:
    """The line of a run's own terminal about a question, with the commands that answer it.

    Attack: a path whose first part is harmless, and whose end is not shown.
    """
    subject, id_ = ask.subject, ask.id
    texts = (subject.rule, subject.path, subject.ref)
    whole = all(shorten(in_order(text)) == in_order(text) for text in texts)
    look = "" if whole else "`keyhole asks` shows it whole; "
    return (
        f"{subject_words(subject)} waits for you: {look}`keyhole approve {id_}` or"
        f" `keyhole deny {id_}`, typed elsewhere; `keyhole watch` shows all"
    )


def subject_words(subject: AskSubject) -> str:
    """What is asked about, in a line for a person; what the sandbox chose is never first (I8)."""
    where, rule = in_order(subject.host), shorten(in_order(subject.rule))
    match subject.kind:
        case AskKind.HOSTS:
            return f"a connection to {where}:{subject.port}"
        case AskKind.REQUESTS:
            return f"a request to {where}, {rule},"
        case AskKind.BUDGETS:
            return f"the budget {subject.rule}, of which {subject.path} are used,"
        case AskKind.PUSHES:
            path, ref = (shorten(in_order(text)) for text in (subject.path, subject.ref))
            return f"a push to {where}, {path}, {ref},"


def _shown(text: str) -> str:
    return visible(text)[:MAX_SHOWN]
