"""The lines about refusals that a person reads, each once, and how often each was repeated.

Used by `SessionState`. The log has every refusal; a terminal has a line for each host and reason,
and for the first few paths of an inspected host: a client's telemetry is refused all the time, and
must not hide the one request that the person misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import refusal_messages
from keyhole.inject.quiet_refusals import QuietRefusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_REPORTS = 200
"""Lines that a session may show to a person; the others are in the log alone (I9)."""

MAX_PATHS = 5
"""Requests of one host, refused for one reason, that are named each."""

_Key = tuple[str, str, str]
"""Host, reason, and the request if it is one."""


class RefusalReports:
    """The lines of one session so far. `report` shows a line."""

    def __init__(self, report: Callable[[str], None], quiet: QuietRefusals | None = None) -> None:
        """`quiet` are refusals that are not shown."""
        self._report = report
        self._quiet = quiet or QuietRefusals()
        self._lines: dict[_Key, str] = {}
        self._times: dict[_Key, int] = {}
        self._full = False

    def connection(self, host: str, port: int, reason: str, why: str = "") -> None:
        """A refused or failed connection: one line for each host and reason."""
        key = (host, reason, "")
        if not self._repeats(key) and not self._quiet.covers_connection(host):
            self._add(key, refusal_messages.line(host, port, reason, why))

    def request(self, method: str, host: str, path: str, reason: str, why: str = "") -> None:
        """A refused request: one line for each method and path, then one for all others."""
        key = (host, reason, f"{method} {path.partition('?')[0]}")
        if self._repeats(key) or self._quiet.covers_request(host, method, path):
            return
        named = sum(1 for each in self._lines if each[:2] == key[:2] and each[2])
        if named < MAX_PATHS:
            self._add(key, refusal_messages.request_line(method, host, path, reason, why))
        elif not self._repeats((host, reason, "*")):
            self._add((host, reason, "*"), refusal_messages.more_requests_line(host, reason))

    def unpriced(self, service: str, model: str) -> None:
        """A model without a price counts against a budget of money: one line for each service."""
        key = (service, "price-unknown", "")
        if not self._repeats(key):
            self._add(key, refusal_messages.unpriced_line(service, model))

    def is_quiet_host(self, host: str) -> bool:
        """Whether nobody needs to hear of connections to this host."""
        return self._quiet.covers_connection(host)

    def is_quiet_request(self, method: str, host: str, path: str) -> bool:
        """The same of a request."""
        return self._quiet.covers_request(host, method, path)

    def forget(self, host: str) -> None:
        """The host is granted from now on: its next refusal is news."""
        for key in [each for each in self._lines if each[0] == host]:
            del self._lines[key], self._times[key]

    def repeated(self) -> Iterator[tuple[str, int]]:
        """Every line that stands for more than one refusal, and for how many."""
        for key, times in self._times.items():
            if times > 1:
                yield self._lines[key], times

    def _repeats(self, key: _Key) -> bool:
        if key in self._lines:
            self._times[key] += 1
        return key in self._lines

    def _add(self, key: _Key, line: str) -> None:
        if len(self._lines) < MAX_REPORTS:
            self._lines[key], self._times[key] = line, 1
            self._report(line)
        elif not self._full:
            self._full = True
            self._report("further refusals are in the log alone")
