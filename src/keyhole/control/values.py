"""The values of requests and answers. Their shapes are in `operation_table.py`.

None has a field for a secret: an answer holds names, numbers, states and placeholders (I1). A
request may hold the key of a CA that one sandbox trusts.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from keyhole.model.host import HostPattern

PAGE = 50
"""Sessions in one answer: at the very most 4 MiB, and some 40 KiB in practice."""


class SessionPhase(enum.StrEnum):
    """State of a session."""

    ENDED = "ended"
    PREPARED = "prepared"
    """It waits for its door."""
    OPEN = "open"
    FROZEN = "frozen"
    """Nothing passes until a person resumes it: a decoy was sent."""
    REVOKED = "revoked"
    """The door is closed and stays so; the sandbox still runs."""
    SILENT = "silent"
    """The process that serves its door does not answer: it is stuck or stopped (Ctrl-Z)."""


class ReloadOutcome(enum.StrEnum):
    """Outcome of reading a policy again."""

    KEPT = "kept"
    """It is not valid or not accepted: the old one stays in force."""
    UNCHANGED = "unchanged"
    CHANGED = "changed"


# ── asked ─────────────────────────────────────────────────────────────────────────────────────────


class SessionQuery(Struct, frozen=True):
    """The sessions to list."""

    after: str = ""
    limit: int = PAGE


class ServicePlaceholder(Struct, frozen=True):
    """The placeholders that the sandbox has for a service's secret."""

    service: str
    texts: tuple[str, ...]


class SessionRequest(Struct, frozen=True):
    """A request to prepare or open a session."""

    policy: str
    trusted: str
    label: str
    granted: str
    stand_ins: tuple[ServicePlaceholder, ...] = ()
    search_path: str = ""
    writable: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    all_secrets: bool = False
    authority: str = ""
    """The CA that was kept for a sandbox which outlives its gateway, with its key."""
    door: tuple[str, ...] = ()

    __repr__ = redacted_repr("authority")


class DoorRequest(Struct, frozen=True):
    """The door of a session that was prepared."""

    door: tuple[str, ...]


class GrantRequest(Struct, frozen=True):
    """A grant that a person adds at run time, for a time and a number of uses."""

    host: HostPattern
    seconds: int
    uses: int


class AnswerWord(enum.StrEnum):
    """An answer to a question."""

    NO = "no"
    NEVER = "never"
    """No, for the rest of the session."""
    NO_TO_ALL = "no-to-all"
    """No, and no further question of this session."""
    ONCE = "once"
    FOR = "for"
    """Yes, for `seconds`."""
    SESSION = "session"
    ALWAYS = "always"
    """Yes, for this session; whoever answers has written the rule into the policy."""


class AnswerRequest(Struct, frozen=True):
    """A person's answer to a question."""

    answer: AnswerWord
    seconds: int = 0
    via: str = "api"


class EventQuery(Struct, frozen=True):
    """What a stream of events is for."""

    answers: str = "yes"


# ── answered ──────────────────────────────────────────────────────────────────────────────────────


class Protection(Struct, frozen=True):
    """One part of the gateway's own hardening."""

    name: str
    on: bool
    note: str = ""


class WorkerView(Struct, frozen=True):
    """One of the processes over which a gateway spreads its sessions."""

    number: int
    pid: int
    responds: bool
    sessions: int
    connections: int


class Status(Struct, frozen=True):
    """The gateway as a whole."""

    version: str
    pid: int
    since: int
    sessions: int
    connections: int
    admitting: bool
    protections: tuple[Protection, ...] = ()
    data_plane: int = 0
    frozen: int = 0
    workers: tuple[WorkerView, ...] = ()


class HealthCheck(Struct, frozen=True):
    """The check of one thing that a gateway needs."""

    name: str
    on: bool
    note: str = ""


class Health(Struct, frozen=True):
    """Whether sandboxes of the gateway can work now, and each check."""

    healthy: bool
    checks: tuple[HealthCheck, ...]


class GrantView(Struct, frozen=True):
    """A grant while it lasts."""

    host: str
    expires: int
    uses: int


class BudgetView(Struct, frozen=True):
    """Use of a budget."""

    name: str
    used: int
    limit: int


class PortDirection(enum.StrEnum):
    """The side that opens the connections of a port."""

    IN = "in"
    """A browser of the host, to the sandbox."""
    OUT = "out"
    """The sandbox, to the host."""


class PortView(Struct, frozen=True):
    """A port of the sandbox that is joined to one of the host."""

    direction: PortDirection
    outer: int
    inner: int


class SessionView(Struct, frozen=True):
    """A session as a person sees it."""

    id: str
    state: SessionPhase
    label: str
    policy: str
    pid: int
    opened: int
    expires: int | None
    connections: int
    requests: int
    denied: int
    up: int
    down: int
    stored: tuple[str, ...]
    """No default: `keyhole secret rotate --end-sessions` chooses sessions by it, and a gateway that
    forgot it would end none."""
    secrets: tuple[str, ...] = ()
    grants: tuple[GrantView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()
    ports: tuple[PortView, ...] = ()
    worker: int = 0
    """The number of the gateway's worker that serves it; 0: a gateway of its own."""
    spent: int = 0
    unpriced: int = 0


class SessionPage(Struct, frozen=True):
    """One page of sessions, and where the next begins."""

    sessions: tuple[SessionView, ...]
    next: str | None = None


class OpenedSession(Struct, frozen=True):
    """A session that was prepared, and the CA that its sandbox needs."""

    id: str
    state: SessionPhase
    ca: str
    notes: tuple[str, ...] = ()


class AskStanding(enum.StrEnum):
    """Where a question stands."""

    LAPSED = "lapsed"
    """Nobody answered in time; a yes serves the next try."""
    PENDING = "pending"


class AskView(Struct, frozen=True):
    """A question as a person sees it."""

    id: str
    session: str
    kind: str
    state: AskStanding
    host: str
    port: int
    service: str
    method: str
    path: str
    ref: str
    rule: str
    marks: tuple[str, ...]
    asked: int
    expires: int
    waiting: int


class AskList(Struct, frozen=True):
    """The questions that can be answered."""

    asks: tuple[AskView, ...]
    more: int = 0


class WatchKind(enum.StrEnum):
    """What a line of the stream is about."""

    ASK = "ask"
    SETTLED = "settled"
    SESSION = "session"


class WatchEvent(Struct, frozen=True):
    """One line of the stream of events."""

    event: WatchKind
    at: int
    session: str = ""
    ask: AskView | None = None
    reason: str = ""
    answer: str = ""
    by: int = 0
    via: str = ""
    state: str = ""
    label: str = ""


class Invited(Struct, frozen=True):
    """An invitation for one remote sandbox. Its code works once; it is no service's secret."""

    code: str
    gateway: str
    seconds: int


class Revoked(Struct, frozen=True):
    """How many sessions were closed."""

    revoked: int


class PolicyReload(Struct, frozen=True):
    """One policy file that was read again."""

    path: str
    outcome: ReloadOutcome
    why: str = ""


class Reloaded(Struct, frozen=True):
    """All policy files in use."""

    policies: tuple[PolicyReload, ...]


class ErrorBody(Struct, frozen=True):
    """Every answer that is not a success."""

    error: str
    why: str
