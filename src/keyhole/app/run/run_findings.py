"""The findings of one run (I11): compared, stored, and reported.

Used by `keyhole run` and by the supervisor of a named sandbox.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.run.finding_store import INTERRUPTED, FindingStore
from keyhole.app.setup.policy_file import read_bounded
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files.comparison import MAX_LINES, Comparison, Finding, finding_lines

if TYPE_CHECKING:
    from keyhole.app.run.finding_store import ProjectFindings
    from keyhole.app.setup.launch_preparation import PreparedLaunch
    from keyhole.app.setup.policy_acceptance import AcceptanceStore
    from keyhole.sandbox.files.comparison import Snapshot
    from keyhole.sandbox.launch import Launch

UNCOMPARED, UNSEEN = "not-compared", "it could not be looked through"
SHOWS = "`keyhole findings` shows them"


class RunFindings:
    """Compares one run's files, and stores the result for its project."""

    def __init__(
        self,
        directory: Path,
        project: Path,
        prepared: PreparedLaunch,
        session: str,
        accepted: AcceptanceStore,
    ) -> None:
        self._accepted = accepted
        self._store = FindingStore(directory)
        self._project = project
        self._prepared = prepared
        self._session = session
        self._direct = not prepared.plan.reviewed
        """Whether the run changes the person's files; otherwise there is nothing to compare."""
        self._held: int | None = None
        self._comparison = Comparison()
        self._failure = ""

    def begin(self) -> str:
        """Called before the command starts. Returns a line about files that earlier runs left, or
        an empty text."""
        line = ""
        try:
            if self._store.known(self._project):
                line = summarise_open_findings(
                    refresh_findings(self._store, self._project, self._prepared.before)
                )
            before = self._prepared.before
            if self._direct:
                self._held = self._store.begin(self._project, self._session, before)
        except OSError as error:
            self._failed(error)
        return line

    def fit(self, launch: Launch) -> Launch:
        """The launch, whose first process is recorded if this run is to be compared."""
        if self._held is None:
            return launch
        return replace(launch, record=self._store.sandbox_record(self._project, self._session))

    def look(self) -> tuple[Finding, ...]:
        """Called after it has ended. Returns its new findings, bounded, for the audit log."""
        if not self._direct:
            return ()
        after, comparison = self._prepared.changes()
        self._comparison = comparison
        try:
            with self._store.changing(self._project) as held:
                book = replace(held[0].renewed(after), scope=self._prepared.plan.scope)
                told = filter(book.tells, comparison.findings)
                news = tuple(each for each in told if not self._is_accepted(each))
                held[0] = book.with_findings(news, self._session)
            self._comparison = replace(comparison, findings=news)
        except OSError as error:
            self._failed(error)
        unsure = [Finding(path, UNCOMPARED, UNSEEN) for path in comparison.uncompared]
        return (*self._comparison.findings[:MAX_LINES], *unsure[:MAX_LINES])

    def _is_accepted(self, finding: Finding) -> bool:
        """Whether it is a policy whose present text the person accepted: "always", `allow --save`
        or the page wrote it meanwhile, and no program of the sandbox can accept a text."""
        known = self._accepted.find(Path(finding.path))
        if known is None:
            return False
        try:
            return read_bounded(Path(finding.path)) == known.text.encode()
        except (Refused, OSError):
            return False

    @property
    def lines(self) -> tuple[str, ...]:
        """The findings as lines for the person."""
        return (*finding_lines(self._comparison), *([self._failure] if self._failure else []))

    @property
    def found(self) -> bool:
        """Whether there is something to dismiss."""
        return bool(self._comparison.findings)

    def done(self) -> None:
        """The run ended normally, with no process left inside: the comparison is final."""
        if self._held is not None:
            self._store.end(self._project, self._session, self._held)
            self._held = None

    def close(self) -> None:
        """Release the snapshot. If the run broke off, the next one compares with the start of this
        one again."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _failed(self, error: OSError) -> None:
        self._failure = f"not kept for `keyhole findings`: {visible(str(error))}"


def refresh_findings(store: FindingStore, project: Path | str, now: Snapshot) -> ProjectFindings:
    """Update a project's findings: with those of killed runs, and with the present content."""
    left = store.interrupted(project)
    with store.changing(project) as held:
        held[0] = held[0].renewed(now)
        for session, comparison in left:
            book = replace(held[0], scope=now.scope)
            news = tuple(filter(book.tells, comparison.findings))
            held[0] = book.with_findings(news, session)
            if INTERRUPTED in comparison.uncompared:
                held[0] = replace(held[0], uncounted=held[0].uncounted + 1)
    # Only after it was written: Ctrl-C here must not lose it.
    store.forget(project, (session for session, _ in left))
    return held[0]


def summarise_open_findings(book: ProjectFindings) -> str:
    """One line about what is not dismissed."""
    count = len(book.open) + book.uncounted
    if not count:
        return ""
    what = "finding is" if count == 1 else "findings are"
    return f"{count} {what} open from earlier runs (files your host may execute): {SHOWS}"
