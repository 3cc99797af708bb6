"""The requests of an agent's trial, from its audit log, and which of them no file names.

Called by `agent_trial.py`. A request is known if a rule of the service allows or denies it, or if
the profile lists it as one that is refused without a word. Any other has drifted: the agent asks
for more than when its profile was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.quiet_refusals import QuietRefusals
from keyhole.model.decision import Reason
from keyhole.model.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.audit.log_line import LogRecord

MAX_REQUESTS = 500
"""Different requests that are kept; an agent sends a dozen."""

_UNNAMED = frozenset(
    reason.value
    for reason in (
        Reason.NO_RULE,
        Reason.PORT_NOT_GRANTED,
        Reason.LITERAL_ADDRESS,
        Reason.WEBSOCKET_NOT_GRANTED,
        Reason.BODY_NOT_GRANTED,
        Reason.METHOD_REFUSED,
    )
)
"""Refusals for want of a rule; a rule that denies is one that names the request."""
_TRIED = (EventKind.DNS, EventKind.CONNECT, EventKind.REQUEST)


class AgentRequest(Struct, frozen=True):
    """A request, or a host that was only asked for by its name."""

    host: str
    method: str
    path: str
    allowed: bool
    known: bool
    """Whether the service or the profile names it."""

    @property
    def shown(self) -> str:
        """The request as a person writes it."""
        return f"{self.method} https://{self.host}{self.path}" if self.method else self.host


def find_requests(records: Iterable[LogRecord], quiet: Iterable[str]) -> tuple[AgentRequest, ...]:
    """The different requests of these events, in their order."""
    refusals = QuietRefusals(quiet)
    found: dict[AgentRequest, None] = {}
    for record in records:
        if len(found) < MAX_REQUESTS and (request := _request(record, refusals)) is not None:
            found[request] = None
    return tuple(found)


def _request(record: LogRecord, quiet: QuietRefusals) -> AgentRequest | None:
    method, path = record.text("method"), record.text("path").partition("?")[0]
    if record.kind == EventKind.REQUEST:
        known = record.reason not in _UNNAMED or quiet.covers_request(record.host, method, path)
        return AgentRequest(record.host, method, path, not record.denied, known)
    if record.kind not in _TRIED or not record.denied:
        return None
    known = record.reason not in _UNNAMED or quiet.covers_connection(record.host)
    return AgentRequest(record.host, "", "", allowed=False, known=known)
