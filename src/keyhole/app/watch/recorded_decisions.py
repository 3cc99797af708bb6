"""Follows the decisions of all sandboxes of this user in the audit log.

Every decision is written there anyway (I8), so a watcher costs the data plane nothing, however many
events there are. Lines about the log itself are left out, and so are questions, which gateways
announce sooner.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogReader
from keyhole.model.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keyhole.audit.log_line import LogRecord


class RecordedDecisions:
    """The decisions that are written from now on; the log may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = self._open()
        if self._reader is not None:
            self._reader.skip()

    def look(self) -> list[LogRecord]:
        """The decisions that were written since the last look, or the first part of them. Raises
        ResourceUnusable."""
        self._reader = self._reader or self._open()
        if self._reader is None:
            return []
        found = (entry.record for entry in self._reader.fresh())
        return [each for each in found if each is not None and _is_decision(each)]

    def _open(self) -> LogReader | None:
        try:
            return LogReader(LogDirectory.open(self._path))
        except FileNotFoundError:
            return None


def _is_decision(record: LogRecord) -> bool:
    return bool(record.session) and record.kind != EventKind.ASK


def take_by_turns(records: Sequence[LogRecord], most: int) -> list[LogRecord]:
    """The first `most` decisions, taken in turns: the first of each session, then the second.

    Attack: a sandbox causes so many decisions that another's are not shown (I12).
    """
    if len(records) <= most:
        return list(records)
    turns: Counter[str] = Counter()
    ranked = []
    for place, record in enumerate(records):
        ranked.append((turns[record.session], place))
        turns[record.session] += 1
    return [records[place] for place in sorted(place for _, place in sorted(ranked)[:most])]
