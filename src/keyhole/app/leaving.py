"""What one run leaves behind for the host to execute (I11): compared, kept, and told.

Used by `keyhole run` and by the supervisor of a sandbox that has a name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.findings import INTERRUPTED, FindingStore
from keyhole.model.text import visible
from keyhole.model.value import replace
from keyhole.sandbox.files.comparison import MAX_LINES, Comparison, Finding, lines

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.findings import Book
    from keyhole.app.prepare import Prepared
    from keyhole.sandbox.files.comparison import Snapshot

UNCOMPARED, UNSEEN = "not-compared", "it could not be looked through"
SHOWS = "`keyhole findings` shows them"


class Leaving:
    """The comparison of one run, and the book of its project."""

    def __init__(self, directory: Path, project: Path, prepared: Prepared, session: str) -> None:
        self._store = FindingStore(directory)
        self._project = project
        self._prepared = prepared
        self._session = session
        self._held: int | None = None
        self._comparison = Comparison()
        self._failure = ""

    def begin(self) -> str:
        """Before the command starts: a line about what earlier runs left; empty if nothing."""
        line = ""
        try:
            if self._store.known(self._project):
                line = remind(renew(self._store, self._project, self._prepared.before))
            before = self._prepared.before
            self._held = self._store.begin(self._project, self._session, before)
        except OSError as error:
            self._failed(error)
        return line

    def look(self) -> tuple[Finding, ...]:
        """After it has ended: what it left that is news, bounded, for the audit log."""
        after, comparison = self._prepared.changes()
        self._comparison = comparison
        try:
            with self._store.changing(self._project) as held:
                book = replace(held[0].renewed(after), scope=self._prepared.plan.scope)
                news = tuple(filter(book.tells, comparison.findings))
                held[0] = book.with_findings(news, self._session)
            self._comparison = replace(comparison, findings=news)
        except OSError as error:
            self._failed(error)
        unsure = [Finding(path, UNCOMPARED, UNSEEN) for path in comparison.uncompared]
        return (*self._comparison.findings[:MAX_LINES], *unsure[:MAX_LINES])

    @property
    def lines(self) -> tuple[str, ...]:
        """For the person."""
        return (*lines(self._comparison), *([self._failure] if self._failure else []))

    @property
    def found(self) -> bool:
        """Whether there is something to dismiss."""
        return bool(self._comparison.findings)

    def done(self) -> None:
        """The run ended in order, with no process left inside: what was compared is final."""
        if self._held is not None:
            self._store.end(self._project, self._session, self._held)
            self._held = None

    def close(self) -> None:
        """Let go. If the run broke off, the next one compares with the start of this one again."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _failed(self, error: OSError) -> None:
        self._failure = f"not kept for `keyhole findings`: {visible(str(error))}"


def renew(store: FindingStore, project: Path | str, now: Snapshot) -> Book:
    """Bring a project's book up to date: with runs that were killed, and what is there now."""
    left = store.interrupted(project)
    with store.changing(project) as held:
        held[0] = held[0].renewed(now)
        for session, comparison in left:
            book = replace(held[0], scope=now.scope)
            news = tuple(filter(book.tells, comparison.findings))
            held[0] = book.with_findings(news, session)
            if INTERRUPTED in comparison.uncompared:
                held[0] = replace(held[0], uncounted=held[0].uncounted + 1)
    # Not before it is written: who is interrupted here (Ctrl-C) must not lose it.
    store.forget(project, (session for session, _ in left))
    return held[0]


def remind(book: Book) -> str:
    """One line about what is not dismissed."""
    count = len(book.open) + book.uncounted
    if not count:
        return ""
    what = "finding is" if count == 1 else "findings are"
    return f"{count} {what} open from earlier runs (files your host may execute): {SHOWS}"
