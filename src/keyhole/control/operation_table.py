"""Everything that can be asked of the gateway, in one table.

The server reads requests and writes answers by it, the client finds its paths in it, and
`openapi.py` publishes it. An operation that is not in it does not exist (I3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.control import values
from keyhole.control.shapes import (
    BooleanShape,
    ChoiceShape,
    FieldShape,
    IntegerShape,
    ListShape,
    OptionalShape,
    ParsedShape,
    RecordShape,
    TextShape,
)
from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from keyhole.model.host import HostPattern

AUTHORITY = "keyhole"
"""The one name that Host may have."""

DOOR = ("tcp", "udp", "tcp6", "line")
"""The sockets of a door, by the names that a request lists them with."""

MAX_GRANT_SECONDS = 24 * 3600
"""A grant that should last longer belongs into the policy."""

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

_COUNT = IntegerShape(0, 2**53 - 1)  # beyond it, readers of JSON disagree (RFC 8259 §6)
_SECONDS = IntegerShape(0, 2**40)
_PORT = IntegerShape(1, 65535)
_PID = IntegerShape(0, 2**22)  # PID_MAX_LIMIT
_ID = TextShape("[0-9a-f]{12}", 12, "twelve hexadecimal digits")
_NAME = TextShape("[A-Za-z0-9._-]+", 64, "up to 64 letters, digits, dots, dashes and underscores")
_PATH = TextShape(
    "/[^\\u0000-\\u001f\\u007f]*", 4096, "an absolute path in UTF-8, at most 4096 long"
)
_LINE = TextShape("[^\\u0000-\\u001f\\u007f]*", 1000, "one line of at most 1000 characters")
_LABEL = TextShape("[ -~]{1,64}", 64, "1 to 64 printable ASCII characters")
_BUDGET = TextShape("[ -~]{1,128}", 128, "1 to 128 printable ASCII characters")
_DIGEST = TextShape("sha256:[0-9a-f]{64}", 71, "sha256: and 64 hexadecimal digits")
_SEARCH_PATH = TextShape("[^\\u0000-\\u001f\\u007f]*", 16 * 1024, "directories with colons between")
_PEM = TextShape("[\\n -~]*", 16 * 1024, "certificates in PEM")
_STATE = ChoiceShape(tuple(values.SessionPhase), values.SessionPhase)
_OUTCOME = ChoiceShape(tuple(values.ReloadOutcome), values.ReloadOutcome)
_DOOR = ListShape(ChoiceShape(DOOR), len(DOOR), distinct=True)
_WHOLE_DOOR = ListShape(ChoiceShape(DOOR), len(DOOR), least=2, distinct=True)


def _exact_host(text: str) -> HostPattern:
    from keyhole.model.host import HostPattern

    pattern = HostPattern.parse(text)
    if pattern.subdomains:
        raise Unparsable("a grant is for one host, not for a pattern")
    return pattern


_HOST_TEXT = TextShape("[!-~]+", 260, "a host name, or name:port")
_HOST = ParsedShape(_HOST_TEXT, _exact_host)

_ASK_ID = TextShape("[0-9a-f]{6}", 6, "six hexadecimal digits")
_ANY_ID = TextShape("[0-9a-f]{0,12}", 12, "an id of a session, or nothing")
_TEXT = TextShape("[^\\u0000-\\u001f\\u007f]*", 1024, "one line of at most 1024 characters")
_VIA = TextShape("[a-z-]{0,16}", 16, "up to 16 small letters and dashes")
_WORD = TextShape("[A-Za-z+*-]{0,32}", 32, "a method, as rules name it, or nothing")
_BUDGET_OR_NONE = TextShape("[ -~]{0,128}", 128, "up to 128 printable ASCII characters")
_LABEL_OR_NONE = TextShape("[ -~]{0,64}", 64, "up to 64 printable ASCII characters")
_VIA_OR_REASON = TextShape("[a-z-]{0,64}", 64, "a code, or nothing")
_RULE_TEXT = TextShape("[^\\u0000-\\u001f\\u007f]*", 1100, "a rule")
_YES = ChoiceShape(("yes", "no"))
_ANSWER = ChoiceShape(tuple(values.AnswerWord), values.AnswerWord)
MAX_ASKS = 1000
"""Questions in one answer."""

PARAMETERS = {
    "id": FieldShape(_ID, "of a session"),
    "ask": FieldShape(_ASK_ID, "of a question"),
    "name": FieldShape(_NAME, "of a secret in the store"),
}
"""Parameters of paths, which stand there between braces."""

PAGING = RecordShape(
    values.SessionQuery,
    {
        "after": FieldShape(_ID, "the last session that was seen", optional=True),
        "limit": FieldShape(
            IntegerShape(1, MAX_SESSIONS_SHOWN), "sessions in the answer", optional=True
        ),
    },
)
_STAND_IN = RecordShape(
    values.ServicePlaceholder,
    {
        "service": FieldShape(_NAME, "whose"),
        "texts": FieldShape(
            ListShape(_LINE, MAX_LISTED), "placeholders, the usual one first; worthless elsewhere"
        ),
    },
)
OPENING = RecordShape(
    values.SessionRequest,
    {
        "policy": FieldShape(_PATH, "the policy file, which the gateway reads itself"),
        "trusted": FieldShape(_DIGEST, "of what a person accepted; another one is refused"),
        "label": FieldShape(_LABEL, "what to call it in a list: the program, never its arguments"),
        "granted": FieldShape(
            _DIGEST, "of what its opener read from the policy and this host's package managers"
        ),
        "stand_ins": FieldShape(
            ListShape(_STAND_IN, MAX_LISTED), "what the sandbox has for secrets", optional=True
        ),
        "search_path": FieldShape(
            _SEARCH_PATH, "where programs that the policy names were found", optional=True
        ),
        "writable": FieldShape(
            ListShape(_PATH, _MAX_WRITABLE), "trees that the sandbox can write (I11)", optional=True
        ),
        "quiet": FieldShape(
            ListShape(_LINE, MAX_LISTED),
            "refusals that the person is not told, as `HOST` or `HOST METHOD /path`",
            optional=True,
        ),
        "all_secrets": FieldShape(
            BooleanShape(),
            "refuse the session when a secret cannot be read, instead of closing its service",
            optional=True,
        ),
        "authority": FieldShape(
            _PEM,
            "the CA that was kept for a sandbox which outlives its gateway, with its key",
            optional=True,
        ),
        "door": FieldShape(_DOOR, "the descriptors that come beside the request", optional=True),
    },
)
DOOR_OPENING = RecordShape(
    values.DoorRequest,
    {"door": FieldShape(_WHOLE_DOOR, "the descriptors that come beside the request")},
)
GRANT = RecordShape(
    values.GrantRequest,
    {
        "host": FieldShape(_HOST, "one name, with `:port` unless it is 443"),
        "seconds": FieldShape(IntegerShape(1, MAX_GRANT_SECONDS), "how long it lasts"),
        "uses": FieldShape(
            IntegerShape(1, MAX_GRANT_USES), "how many connections or requests it covers"
        ),
    },
)

ANSWER = RecordShape(
    values.AnswerRequest,
    {
        "answer": FieldShape(_ANSWER, "what the person says"),
        "seconds": FieldShape(
            IntegerShape(0, MAX_GRANT_SECONDS), "how long the yes lasts, for `for`", optional=True
        ),
        "via": FieldShape(_VIA, "the program that was used, for the log", optional=True),
    },
)
EVENT_QUERY = RecordShape(
    values.EventQuery,
    {
        "answers": FieldShape(
            _YES, "`yes`: a person is there to answer, so that questions are asked", optional=True
        ),
    },
)

_PROTECTION = RecordShape(
    values.Protection,
    {
        "name": FieldShape(_NAME, "which"),
        "on": FieldShape(BooleanShape(), "whether it is in force"),
        "note": FieldShape(_LINE, "why not, or how far"),
    },
)
_WORKER = RecordShape(
    values.WorkerView,
    {
        "number": FieldShape(IntegerShape(0, 2**31), "which, from 1"),
        "pid": FieldShape(_PID, "its process"),
        "responds": FieldShape(BooleanShape(), "whether it answered now"),
        "sessions": FieldShape(_COUNT, "that it serves"),
        "connections": FieldShape(_COUNT, "of those"),
    },
)
STATUS = RecordShape(
    values.Status,
    {
        "version": FieldShape(_NAME, "of Keyhole"),
        "pid": FieldShape(_PID, "the gateway's control process, which `keyhole down` ends"),
        "since": FieldShape(_SECONDS, "when it started, in seconds since the epoch"),
        "sessions": FieldShape(_COUNT, "prepared, open or revoked"),
        "connections": FieldShape(_COUNT, "of all sessions"),
        "admitting": FieldShape(BooleanShape(), "false while the audit log cannot be written (I8)"),
        "protections": FieldShape(
            ListShape(_PROTECTION, MAX_LISTED), "the gateway's own hardening"
        ),
        "data_plane": FieldShape(_PID, "the first process that serves doors"),
        "frozen": FieldShape(_COUNT, "sessions that wait to be resumed, because a decoy was sent"),
        "workers": FieldShape(
            ListShape(_WORKER, MAX_LISTED), "the processes that serve the doors", optional=True
        ),
    },
)
_CHECK = RecordShape(
    values.HealthCheck,
    {
        "name": FieldShape(
            _BUDGET, "what: `audit-log`, `keeper`, `door`, `ca`, or a host and its port"
        ),
        "on": FieldShape(BooleanShape(), "whether it is there"),
        "note": FieldShape(_LINE, "what is lacking"),
    },
)
HEALTH = RecordShape(
    values.Health,
    {
        "healthy": FieldShape(BooleanShape(), "whether nothing is lacking"),
        "checks": FieldShape(ListShape(_CHECK, MAX_LISTED), "each thing that was looked at"),
    },
)
GRANT_VIEW = RecordShape(
    values.GrantView,
    {
        "host": FieldShape(_HOST_TEXT, "what was granted"),
        "expires": FieldShape(_SECONDS, "when it ends, in seconds since the epoch"),
        "uses": FieldShape(_COUNT, "what is left"),
    },
)
_BUDGET_VIEW = RecordShape(
    values.BudgetView,
    {
        "name": FieldShape(_BUDGET, "which limit"),
        "used": FieldShape(
            _COUNT, "so far; of `session`, `day` and `month` in billionths of a US dollar"
        ),
        "limit": FieldShape(_COUNT, "at which it ends"),
    },
)
_PORT_VIEW = RecordShape(
    values.PortView,
    {
        "direction": FieldShape(
            ChoiceShape(tuple(values.PortDirection), values.PortDirection),
            "`in`: published; `out`: a port of the host",
        ),
        "outer": FieldShape(_PORT, "the host's port"),
        "inner": FieldShape(_PORT, "the sandbox's port"),
    },
)
SESSION_VIEW = RecordShape(
    values.SessionView,
    {
        "id": FieldShape(_ID, "its name everywhere, the audit log included"),
        "state": FieldShape(_STATE, "where it stands"),
        "label": FieldShape(_LABEL, "what its opener called it"),
        "policy": FieldShape(_PATH, "the policy file"),
        "pid": FieldShape(_PID, "the process that opened it"),
        "opened": FieldShape(_SECONDS, "when, in seconds since the epoch"),
        "expires": FieldShape(OptionalShape(_SECONDS), "when it ends at the latest"),
        "connections": FieldShape(_COUNT, "open now"),
        "requests": FieldShape(_COUNT, "that were allowed"),
        "denied": FieldShape(_COUNT, "connections and requests that were refused"),
        "up": FieldShape(_COUNT, "bytes sent"),
        "down": FieldShape(_COUNT, "bytes received"),
        "stored": FieldShape(
            ListShape(_NAME, MAX_OF_SESSION), "secrets of the store that it has or had, by name"
        ),
        "secrets": FieldShape(
            ListShape(_NAME, MAX_OF_SESSION), "services whose secret it may use, by name"
        ),
        "grants": FieldShape(
            ListShape(GRANT_VIEW, MAX_OF_SESSION), "added by a person at run time"
        ),
        "budgets": FieldShape(ListShape(_BUDGET_VIEW, MAX_OF_SESSION), "use against limit"),
        "ports": FieldShape(
            ListShape(_PORT_VIEW, MAX_OF_SESSION), "joined to ports of the host", optional=True
        ),
        "worker": FieldShape(
            IntegerShape(0, 2**31), "the number of the process that serves it", optional=True
        ),
        "spent": FieldShape(
            _COUNT, "what its tokens cost, in billionths of a US dollar", optional=True
        ),
        "unpriced": FieldShape(_COUNT, "tokens of models whose price is not known", optional=True),
    },
)
SESSION_PAGE = RecordShape(
    values.SessionPage,
    {
        "sessions": FieldShape(
            ListShape(SESSION_VIEW, MAX_SESSIONS_SHOWN), "in the order of their ids"
        ),
        "next": FieldShape(OptionalShape(_ID), "what to give as `after` for more; null at the end"),
    },
)
OPENED = RecordShape(
    values.OpenedSession,
    {
        "id": FieldShape(_ID, "of the new session"),
        "state": FieldShape(_STATE, "`prepared` until it has a door"),
        "ca": FieldShape(
            _PEM, "the certificate of the session's CA; its key never leaves the gateway"
        ),
        "notes": FieldShape(
            ListShape(_LINE, MAX_LISTED), "what the person should know of the secrets"
        ),
    },
)
ASK_VIEW = RecordShape(
    values.AskView,
    {
        "id": FieldShape(_ASK_ID, "to answer it by, with the session's"),
        "session": FieldShape(_ID, "of the sandbox that asks"),
        "kind": FieldShape(
            ChoiceShape(("hosts", "requests", "pushes", "budgets")),
            "as in `approvals.ask`; or `budgets`, for a share of one that is used up",
        ),
        "state": FieldShape(
            ChoiceShape(tuple(values.AskStanding), values.AskStanding),
            "`pending`: something waits; `lapsed`: it was refused, and a yes serves the next try",
        ),
        "host": FieldShape(_HOST_TEXT, "where it would go"),
        "port": FieldShape(_PORT, "of that host"),
        "service": FieldShape(_BUDGET_OR_NONE, "whose credential it would get, if any"),
        "method": FieldShape(_WORD, "of a request; of a push `create`, `update` or `delete`"),
        "path": FieldShape(_TEXT, "of a request; of a push its repository"),
        "ref": FieldShape(_TEXT, "of a push"),
        "rule": FieldShape(_RULE_TEXT, "what a yes allows, as the policy would write it"),
        "marks": FieldShape(ListShape(_LINE, 8), "what to look at twice"),
        "asked": FieldShape(_SECONDS, "when, in seconds since the epoch"),
        "expires": FieldShape(_SECONDS, "when it is refused, if nobody answers"),
        "waiting": FieldShape(_COUNT, "connections or requests that wait for the answer"),
    },
)
ASK_LIST = RecordShape(
    values.AskList,
    {
        "asks": FieldShape(
            ListShape(ASK_VIEW, MAX_ASKS), "those that wait first; of each session the oldest"
        ),
        "more": FieldShape(_COUNT, "how many there are beside these"),
    },
)
WATCH_EVENT = RecordShape(
    values.WatchEvent,
    {
        "event": FieldShape(
            ChoiceShape(tuple(values.WatchKind), values.WatchKind),
            "`ask`: a question is new or asked again; `settled`: it was answered or lapsed; "
            "`session`: one opened or closed",
        ),
        "at": FieldShape(IntegerShape(0, 2**53 - 1), "when, in milliseconds since the epoch"),
        "session": FieldShape(_ANY_ID, "whose, if it is of one"),
        "ask": FieldShape(OptionalShape(ASK_VIEW), "the question"),
        "reason": FieldShape(_VIA_OR_REASON, "of `settled`: how, as in docs/reasons.md"),
        "answer": FieldShape(_VIA, "of `settled`: the answer; empty if there was none"),
        "by": FieldShape(_PID, "of `settled`: the process that answered"),
        "via": FieldShape(_VIA, "of `settled`: the program that was used"),
        "state": FieldShape(_VIA, "of `session`: `opened` or `closed`"),
        "label": FieldShape(_LABEL_OR_NONE, "of `session`: what its opener called it"),
    },
)
REVOKED = RecordShape(values.Revoked, {"revoked": FieldShape(_COUNT, "sessions that were closed")})
_POLICY_RELOAD = RecordShape(
    values.PolicyReload,
    {
        "path": FieldShape(_PATH, "the file"),
        "outcome": FieldShape(_OUTCOME, "what became of it"),
        "why": FieldShape(_LINE, "why the old one was kept"),
    },
)
RELOADED = RecordShape(
    values.Reloaded, {"policies": FieldShape(ListShape(_POLICY_RELOAD, MAX_LISTED), "all in use")}
)
INVITED = RecordShape(
    values.Invited,
    {
        "code": FieldShape(_LINE, "for `keyhole door`; it works once"),
        "gateway": FieldShape(_LINE, "the address at which the gateway listens"),
        "seconds": FieldShape(_COUNT, "how long it can be used"),
    },
)
FAULT = RecordShape(
    values.ErrorBody,
    {
        "error": FieldShape(_NAME, "a stable code"),
        "why": FieldShape(_LINE, "what happened, for a person"),
    },
)


class Operation(Struct, frozen=True):
    """One thing that can be asked. `name` is the method of `Operations` that does it."""

    name: str
    method: str
    path: str
    does: str
    body: RecordShape[Any] | None = None
    query: RecordShape[Any] | None = None
    answer: RecordShape[Any] | None = None
    descriptors: bool = False
    """Whether sockets may come beside the request."""
    metrics: bool = False
    """Whether the answer is Prometheus's text."""
    stream: bool = False
    """Whether the answer is a stream of lines, each of the shape `answer`."""
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
        """The path for a request; Unparsable for a parameter that no path can have."""
        checked = {n: PARAMETERS[n].shape.read(v, n) for n, v in parameters.items()}
        return self.path.format(**checked)

    @property
    def status(self) -> int:
        """The status of the answer after success."""
        return 200 if self.answer or self.metrics else 204


OPERATIONS = (
    Operation("status", "GET", "/v1/status", "The gateway as a whole.", answer=STATUS, urgent=True),
    Operation(
        "health", "GET", "/v1/health",
        "Check whether sandboxes can work now: the audit log, the keeper, an expected door and its"
        " CA, and the first host of each service of open sessions, to which it connects.",
        answer=HEALTH,
    ),
    Operation(
        "metrics", "GET", "/v1/metrics",
        "Counters for Prometheus, in its text format 0.0.4.", metrics=True,
    ),
    Operation(
        "list_sessions", "GET", "/v1/sessions",
        "List the open sessions, a page at a time.", query=PAGING, answer=SESSION_PAGE,
        urgent=True,
    ),
    Operation("show_session", "GET", "/v1/sessions/{id}", "One session.", answer=SESSION_VIEW,
        urgent=True,
    ),
    Operation(
        "open_session", "POST", "/v1/sessions",
        "Prepare a session for the calling process. If the request carries its door, open it, too."
        " The session ends with that process.",
        body=OPENING, answer=OPENED, descriptors=True,
    ),
    Operation(
        "open_door", "POST", "/v1/sessions/{id}/door",
        "Open the door of a session that the same process prepared. The request carries the door."
        " The sandbox may start after the answer.",
        body=DOOR_OPENING, descriptors=True,
    ),
    Operation(
        "stop_session", "DELETE", "/v1/sessions/{id}",
        "End a session: its door closes, open connections are cut, its sandbox is ended.",
        urgent=True,
    ),
    Operation(
        "resume_session", "POST", "/v1/sessions/{id}/resume",
        "Let the connections of a frozen session pass again.",
    ),
    Operation(
        "revoke_session", "POST", "/v1/sessions/{id}/revoke",
        "Close a session's door for good and cut its connections; the sandbox stays.",
        urgent=True,
    ),
    Operation(
        "revoke_all", "POST", "/v1/revoke-all", "Revoke every session.", answer=REVOKED,
        urgent=True,
    ),
    Operation(
        "grant", "POST", "/v1/sessions/{id}/grants",
        "Allow a session one more host, for a time and a number of uses.",
        body=GRANT, answer=GRANT_VIEW,
    ),
    Operation(
        "list_asks", "GET", "/v1/asks",
        "The questions of all sessions that a person can answer.", answer=ASK_LIST, urgent=True,
    ),
    Operation(
        "answer_ask", "POST", "/v1/sessions/{id}/asks/{ask}",
        "Answer a question. The waiting requests continue, or are refused, at once.",
        body=ANSWER, answer=ASK_VIEW, urgent=True,
    ),
    Operation(
        "watch", "GET", "/v1/events",
        "A stream of events, one JSON object on each line, until the reader closes it: first the"
        " open sessions and the questions that wait, then what happens.",
        query=EVENT_QUERY, answer=WATCH_EVENT, stream=True, urgent=True,
    ),
    Operation(
        "reload", "POST", "/v1/reload",
        "Read all policies again. If one is not valid or not accepted, the old one stays in force.",
        answer=RELOADED,
    ),
    Operation(
        "invite", "POST", "/v1/invitations",
        "Let one sandbox of another machine enrol, under a policy that was accepted on this host.",
        body=OPENING, answer=INVITED,
    ),
    Operation(
        "secret_changed", "POST", "/v1/secrets/{name}/changed",
        "Read a secret again for the sessions that use it. The answer is the same if none does.",
    ),
    Operation("stop_gateway", "POST", "/v1/stop", "End every session, then the gateway.",
        urgent=True,
    ),
)  # fmt: skip

BY_NAME = {each.name: each for each in OPERATIONS}
