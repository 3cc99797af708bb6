"""What is asked and what is answered, as values. Their shapes are in `table.py`.

None has a field for a secret: an answer holds names, numbers, states and what the sandbox is given
in place of a secret (I1).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.host import HostPattern

PAGE = 50
"""Sessions in one answer: at the very most 4 MiB, and some 40 KiB in practice."""


class State(enum.StrEnum):
    """Where a session stands."""

    ENDED = "ended"
    PREPARED = "prepared"
    """It waits for its door."""
    OPEN = "open"
    REVOKED = "revoked"
    """The door is closed and stays so; the sandbox still runs."""
    SILENT = "silent"
    """What serves its door does not answer: it is stuck, or the whole run is stopped (Ctrl-Z)."""


class Outcome(enum.StrEnum):
    """What became of a policy that was read again."""

    KEPT = "kept"
    """It is not valid or not accepted: the old one stays in force."""
    UNCHANGED = "unchanged"
    CHANGED = "changed"


# ── asked ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Paging:
    """Which sessions are listed."""

    after: str = ""
    limit: int = PAGE


@dataclass(frozen=True, slots=True)
class StandIn:
    """What the sandbox has in place of a service's secret."""

    service: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """A session that is to be."""

    policy: str
    trusted: str
    label: str
    granted: str
    stand_ins: tuple[StandIn, ...] = ()
    search_path: str = ""
    writable: tuple[str, ...] = ()
    door: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DoorOpening:
    """The door of a session that was prepared."""

    door: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a person adds at run time: timed and counted."""

    host: HostPattern
    seconds: int
    uses: int


# ── answered ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Protection:
    """One part of the gateway's own hardening."""

    name: str
    on: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The gateway as a whole."""

    version: str
    pid: int
    since: int
    sessions: int
    connections: int
    admitting: bool
    protections: tuple[Protection, ...] = ()
    data_plane: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a gateway needs to be of use."""

    name: str
    on: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether sandboxes of the gateway can work now, and what they lack."""

    healthy: bool
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class GrantView:
    """A grant while it lasts."""

    host: str
    expires: int
    uses: int


@dataclass(frozen=True, slots=True)
class BudgetView:
    """What was used of a budget."""

    name: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as a person sees it."""

    id: str
    state: State
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
    """No default: `keyhole secret rotate --end-sessions` ends by it, and a gateway that forgot it
    would end none."""
    secrets: tuple[str, ...] = ()
    grants: tuple[GrantView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some sessions, and where to go on."""

    sessions: tuple[SessionView, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that was made, and what its sandbox needs."""

    id: str
    state: State
    ca: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Revoked:
    """How many sessions were closed."""

    revoked: int


@dataclass(frozen=True, slots=True)
class PolicyReload:
    """One policy file that was read again."""

    path: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """All policy files in use."""

    policies: tuple[PolicyReload, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Every answer that is not a success."""

    error: str
    why: str
