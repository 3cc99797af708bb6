"""Everything that can be asked of the gateway, in one table.

The server reads requests and writes answers by it, the client finds its paths in it, and
`openapi.py` publishes it. What is not in it does not exist (I3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.control import values
from keyhole.control.shape import (
    Choice,
    Field,
    Flag,
    ListOf,
    Maybe,
    Parsed,
    Record,
    Text,
    Whole,
)
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.host import HostPattern

AUTHORITY = "keyhole"
"""The one name that Host may have."""

DOOR = ("tcp", "udp", "tcp6", "line")
"""The sockets of a door, by the names that a request lists them with."""

MAX_GRANT_SECONDS = 24 * 3600
"""What should last longer belongs into the policy."""

MAX_GRANT_USES = 10_000
"""The same in requests: a day's work of an agent."""

MAX_SESSIONS_SHOWN = values.PAGE
MAX_LISTED = 256
"""Entries of a list within an answer."""

MAX_OF_SESSION = 64
"""Of a list within a session: names, grants, budgets. One session is written in one turn of the
loop, within a millisecond."""

_MAX_WRITABLE = 64
"""Trees that a sandbox can write; a policy names a handful."""

_COUNT = Whole(0, 2**53 - 1)  # beyond it, readers of JSON disagree (RFC 8259 §6)
_SECONDS = Whole(0, 2**40)
_PID = Whole(0, 2**22)  # PID_MAX_LIMIT
_ID = Text("[0-9a-f]{12}", 12, "twelve hexadecimal digits")
_NAME = Text("[A-Za-z0-9._-]+", 64, "up to 64 letters, digits, dots, dashes and underscores")
_PATH = Text("/[^\\u0000-\\u001f\\u007f]*", 4096, "an absolute path in UTF-8, at most 4096 long")
_LINE = Text("[^\\u0000-\\u001f\\u007f]*", 1000, "one line of at most 1000 characters")
_LABEL = Text("[ -~]{1,64}", 64, "1 to 64 printable ASCII characters")
_BUDGET = Text("[ -~]{1,128}", 128, "1 to 128 printable ASCII characters")
_DIGEST = Text("sha256:[0-9a-f]{64}", 71, "sha256: and 64 hexadecimal digits")
_SEARCH_PATH = Text("[^\\u0000-\\u001f\\u007f]*", 16 * 1024, "directories with colons between")
_PEM = Text("[\\n -~]*", 16 * 1024, "certificates in PEM")
_STATE = Choice(tuple(values.State), values.State)
_OUTCOME = Choice(tuple(values.Outcome), values.Outcome)
_DOOR = ListOf(Choice(DOOR), len(DOOR), distinct=True)
_WHOLE_DOOR = ListOf(Choice(DOOR), len(DOOR), least=2, distinct=True)


def _exact_host(text: str) -> HostPattern:
    from keyhole.model.errors import Unparsable
    from keyhole.model.host import HostPattern

    pattern = HostPattern.parse(text)
    if pattern.subdomains:
        raise Unparsable("a grant is for one host, not for a pattern")
    return pattern


_HOST_TEXT = Text("[!-~]+", 260, "a host name, or name:port")
_HOST = Parsed(_HOST_TEXT, _exact_host)

PARAMETERS = {"id": Field(_ID, "of a session"), "name": Field(_NAME, "of a secret in the store")}
"""What stands in a path between braces."""

PAGING = Record(
    values.Paging,
    {
        "after": Field(_ID, "the last session that was seen", optional=True),
        "limit": Field(Whole(1, MAX_SESSIONS_SHOWN), "sessions in the answer", optional=True),
    },
)
_STAND_IN = Record(
    values.StandIn,
    {
        "service": Field(_NAME, "whose"),
        "texts": Field(
            ListOf(_LINE, MAX_LISTED), "placeholders, the usual one first; worthless elsewhere"
        ),
    },
)
OPENING = Record(
    values.Opening,
    {
        "policy": Field(_PATH, "the policy file, which the gateway reads itself"),
        "trusted": Field(_DIGEST, "of what a person accepted; another one is refused"),
        "label": Field(_LABEL, "what to call it in a list: the program, never its arguments"),
        "granted": Field(
            _DIGEST, "of what its opener read from the policy and this host's package managers"
        ),
        "stand_ins": Field(
            ListOf(_STAND_IN, MAX_LISTED), "what the sandbox has for secrets", optional=True
        ),
        "search_path": Field(
            _SEARCH_PATH, "where programs that the policy names were found", optional=True
        ),
        "writable": Field(
            ListOf(_PATH, _MAX_WRITABLE), "trees that the sandbox can write (I11)", optional=True
        ),
        "door": Field(_DOOR, "the descriptors that come beside the request", optional=True),
    },
)
DOOR_OPENING = Record(
    values.DoorOpening, {"door": Field(_WHOLE_DOOR, "the descriptors that come beside the request")}
)
GRANT = Record(
    values.Grant,
    {
        "host": Field(_HOST, "one name, with `:port` unless it is 443"),
        "seconds": Field(Whole(1, MAX_GRANT_SECONDS), "how long it lasts"),
        "uses": Field(Whole(1, MAX_GRANT_USES), "how many connections or requests it covers"),
    },
)

_PROTECTION = Record(
    values.Protection,
    {
        "name": Field(_NAME, "which"),
        "on": Field(Flag(), "whether it is in force"),
        "note": Field(_LINE, "why not, or how far"),
    },
)
STATUS = Record(
    values.Status,
    {
        "version": Field(_NAME, "of Keyhole"),
        "pid": Field(_PID, "the gateway's control process, which `keyhole down` ends"),
        "since": Field(_SECONDS, "when it started, in seconds since the epoch"),
        "sessions": Field(_COUNT, "prepared, open or revoked"),
        "connections": Field(_COUNT, "of all sessions"),
        "admitting": Field(Flag(), "false while the audit log cannot be written (I8)"),
        "protections": Field(ListOf(_PROTECTION, MAX_LISTED), "the gateway's own hardening"),
        "data_plane": Field(_PID, "the process that serves the doors"),
    },
)
_CHECK = Record(
    values.Check,
    {
        "name": Field(_BUDGET, "what: `audit-log`, `keeper`, `door`, `ca`, or a host and its port"),
        "on": Field(Flag(), "whether it is there"),
        "note": Field(_LINE, "what is lacking"),
    },
)
HEALTH = Record(
    values.Health,
    {
        "healthy": Field(Flag(), "whether nothing is lacking"),
        "checks": Field(ListOf(_CHECK, MAX_LISTED), "each thing that was looked at"),
    },
)
GRANT_VIEW = Record(
    values.GrantView,
    {
        "host": Field(_HOST_TEXT, "what was granted"),
        "expires": Field(_SECONDS, "when it ends, in seconds since the epoch"),
        "uses": Field(_COUNT, "what is left"),
    },
)
_BUDGET_VIEW = Record(
    values.BudgetView,
    {
        "name": Field(_BUDGET, "which limit"),
        "used": Field(_COUNT, "so far"),
        "limit": Field(_COUNT, "at which it ends"),
    },
)
SESSION_VIEW = Record(
    values.SessionView,
    {
        "id": Field(_ID, "its name everywhere, the audit log included"),
        "state": Field(_STATE, "where it stands"),
        "label": Field(_LABEL, "what its opener called it"),
        "policy": Field(_PATH, "the policy file"),
        "pid": Field(_PID, "the process that opened it"),
        "opened": Field(_SECONDS, "when, in seconds since the epoch"),
        "expires": Field(Maybe(_SECONDS), "when it ends at the latest"),
        "connections": Field(_COUNT, "open now"),
        "requests": Field(_COUNT, "that were allowed"),
        "denied": Field(_COUNT, "connections and requests that were refused"),
        "up": Field(_COUNT, "bytes sent"),
        "down": Field(_COUNT, "bytes received"),
        "stored": Field(
            ListOf(_NAME, MAX_OF_SESSION), "secrets of the store that it has or had, by name"
        ),
        "secrets": Field(
            ListOf(_NAME, MAX_OF_SESSION), "services whose secret it may use, by name"
        ),
        "grants": Field(ListOf(GRANT_VIEW, MAX_OF_SESSION), "added by a person at run time"),
        "budgets": Field(ListOf(_BUDGET_VIEW, MAX_OF_SESSION), "use against limit"),
    },
)
SESSION_PAGE = Record(
    values.SessionPage,
    {
        "sessions": Field(ListOf(SESSION_VIEW, MAX_SESSIONS_SHOWN), "in the order of their ids"),
        "next": Field(Maybe(_ID), "what to give as `after` for more; null at the end"),
    },
)
OPENED = Record(
    values.Opened,
    {
        "id": Field(_ID, "of the new session"),
        "state": Field(_STATE, "`prepared` until it has a door"),
        "ca": Field(_PEM, "the certificate of the session's CA; its key never leaves the gateway"),
        "notes": Field(ListOf(_LINE, MAX_LISTED), "what the person should know of the secrets"),
    },
)
REVOKED = Record(values.Revoked, {"revoked": Field(_COUNT, "sessions that were closed")})
_POLICY_RELOAD = Record(
    values.PolicyReload,
    {
        "path": Field(_PATH, "the file"),
        "outcome": Field(_OUTCOME, "what became of it"),
        "why": Field(_LINE, "why the old one was kept"),
    },
)
RELOADED = Record(
    values.Reloaded, {"policies": Field(ListOf(_POLICY_RELOAD, MAX_LISTED), "all in use")}
)
FAULT = Record(
    values.Fault,
    {
        "error": Field(_NAME, "a stable code"),
        "why": Field(_LINE, "what happened, for a person"),
    },
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked. `name` is the method of `Operations` that does it."""

    name: str
    method: str
    path: str
    does: str
    body: Record | None = None
    query: Record | None = None
    answer: Record | None = None
    descriptors: bool = False
    """Whether sockets may come beside the request."""
    metrics: bool = False
    """Whether the answer is Prometheus's text."""
    urgent: bool = False
    """Whether it is done at once, however many others wait: what cuts off, ends or shows (I12)."""

    def matches(self, path: str) -> dict[str, str] | None:
        """The parameters in a path of this operation. Nothing is decoded: one spelling each."""
        ours, theirs = self.path.split("/"), path.split("/")
        if len(ours) != len(theirs):
            return None
        found = {}
        for own, sent in zip(ours, theirs, strict=True):
            if own.startswith("{"):
                # Anything: a bad one and an unknown one get the same answer.
                found[own[1:-1]] = sent
            elif own != sent:
                return None
        return found

    def target(self, **parameters: str) -> str:
        """The path for a request; Misshapen for a parameter that no path can have."""
        checked = {n: PARAMETERS[n].shape.read(v, n) for n, v in parameters.items()}
        return self.path.format(**checked)

    @property
    def status(self) -> int:
        """Of the answer when it was done."""
        return 200 if self.answer or self.metrics else 204


OPERATIONS = (
    Operation("status", "GET", "/v1/status", "The gateway as a whole.", answer=STATUS, urgent=True),
    Operation(
        "health", "GET", "/v1/health",
        "Whether sandboxes can work now: the audit log, the keeper, the door that is expected, its"
        " CA, and the first host of each service of open sessions, which are dialled for it.",
        answer=HEALTH,
    ),
    Operation(
        "metrics", "GET", "/v1/metrics",
        "Counters for Prometheus, in its text format 0.0.4.", metrics=True,
    ),
    Operation(
        "list_sessions", "GET", "/v1/sessions",
        "The sessions that are not ended, a page at a time.", query=PAGING, answer=SESSION_PAGE,
        urgent=True,
    ),
    Operation("show_session", "GET", "/v1/sessions/{id}", "One session.", answer=SESSION_VIEW,
        urgent=True,
    ),
    Operation(
        "open_session", "POST", "/v1/sessions",
        "Prepare a session for the process that asks, or, when its door comes beside the request,"
        " open it. It ends when that process does.",
        body=OPENING, answer=OPENED, descriptors=True,
    ),
    Operation(
        "open_door", "POST", "/v1/sessions/{id}/door",
        "Open the door of a session that the same process prepared; the door comes beside the"
        " request. The sandbox may start when this was answered.",
        body=DOOR_OPENING, descriptors=True,
    ),
    Operation(
        "stop_session", "DELETE", "/v1/sessions/{id}",
        "End a session: its door closes, open connections are cut, its sandbox is ended.",
        urgent=True,
    ),
    Operation(
        "revoke_session", "POST", "/v1/sessions/{id}/revoke",
        "Close a session's door for good and cut its connections; the sandbox stays.",
        urgent=True,
    ),
    Operation(
        "revoke_all", "POST", "/v1/revoke-all", "The same for every session.", answer=REVOKED,
        urgent=True,
    ),
    Operation(
        "grant", "POST", "/v1/sessions/{id}/grants",
        "Allow a session one host more, for a time and a number of uses.",
        body=GRANT, answer=GRANT_VIEW,
    ),
    Operation(
        "reload", "POST", "/v1/reload",
        "Read all policies again. One that is not valid, or not accepted, leaves the old in force.",
        answer=RELOADED,
    ),
    Operation(
        "secret_changed", "POST", "/v1/secrets/{name}/changed",
        "Read a secret again where sessions use it. The answer is the same when none does.",
    ),
    Operation("stop_gateway", "POST", "/v1/stop", "End every session, then the gateway.",
        urgent=True,
    ),
)  # fmt: skip

BY_NAME = {each.name: each for each in OPERATIONS}
