"""What a sandbox did or tried, as the audit log has it, judged by any policy.

`keyhole replay` judges every use again by another policy; `keyhole learn` proposes rules for uses
that the present one denies. Texts of the log come from the sandbox, and a log may be anything: what
is no use is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Decision, Reason, Route
from keyhole.model.errors import Unparsable
from keyhole.model.event import EventKind
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.reasons import info_of
from keyhole.model.rule import WORDS
from keyhole.policy.asks import ASK_RULE
from keyhole.policy.egress import decide_egress
from keyhole.policy.explain import explain
from keyhole.policy.push import RefChange
from keyhole.policy.request import RequestFacts, decide_request
from keyhole.policy.target import HostTarget, PushTarget, RequestTarget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.rulebook import Rulebook
    from keyhole.policy.target import Target

MAX_PATH = 1000
"""Characters of a path: the log cuts longer ones, and a rule for the rest would be another's."""

_MAX_PORT = 65535
_SERVICES = ("", "service=git-upload-pack", "service=git-receive-pack")
"""Queries of git's first request. The log has no query, and no rule but git's reads one."""
_CHANGES = {change.name.lower().replace("_", "-"): change for change in RefChange}

_BY_RULES = frozenset(
    {
        Reason.NO_RULE,
        Reason.PORT_NOT_GRANTED,
        Reason.DENIED_BY_RULE,
        Reason.GUARDED_ENDPOINT,
        Reason.MERGE_BY_REST,
        Reason.BODY_NOT_GRANTED,
        Reason.WEBSOCKET_NOT_GRANTED,
        Reason.REPOSITORY_NOT_GRANTED,
        Reason.READ_ONLY,
        Reason.REF_NOT_GRANTED,
        Reason.REF_PROTECTED,
        Reason.CREATE_NOT_GRANTED,
        Reason.FORCE_NOT_GRANTED,
        Reason.DELETE_NOT_GRANTED,
        Reason.TAG_NOT_GRANTED,
    }
)
"""Denials that rules made; others (limits, malformed bytes) another policy may not change."""

_UNDECIDED = frozenset({Reason.UNANSWERED, Reason.TOO_MANY_ASKED})
"""Denials because no rule named it, and nobody answered a question about it. A person's no is none
of them: nothing is proposed against it."""

_ADMITTING = frozenset(
    {Reason.RULE, Reason.PASSTHROUGH, Reason.GRANTED, Reason.APPROVED, Reason.LEARNING}
)
"""Allowing decisions; other allowed events tell of one that was recorded before."""


class RecordedUse(Struct, frozen=True):
    """A connection, a request or the push of one ref."""

    host: Host
    port: int = DEFAULT_PORT
    word: str = ""
    """How rules name the request; empty: a connection, or a push."""
    path: str = ""
    """The request's path, or the repository's."""
    ref: str = ""
    """The pushed ref."""
    change: RefChange = RefChange.FAST_FORWARD

    @property
    def target(self) -> Target:
        """The same as `keyhole why` takes it."""
        if self.ref:
            return PushTarget(self.host, self.port, self.path, self.ref, self.change)
        if self.word:
            return RequestTarget(self.host, self.port, RequestFacts(self.word, self.path))
        return HostTarget(self.host, self.port)

    def __str__(self) -> str:
        place = str(self.host) if self.port == DEFAULT_PORT else f"{self.host}:{self.port}"
        if self.ref:
            return f"git push https://{place}{self.path} {self.ref}"
        return f"{self.word} https://{place}{self.path}" if self.word else place


def is_decision(kind: str, verdict: str, reason: str, rule: str) -> bool:
    """Whether an event is a decision of rules, which another policy may make in another way."""
    if verdict != "allow":
        # Questions about budgets have the rule of the budget.
        return reason in _BY_RULES or (reason in _UNDECIDED and rule == ASK_RULE)
    if kind == EventKind.DNS:
        return False  # the connection that follows tells more
    return reason in _ADMITTING or info_of(reason).failed


def read_use(
    kind: str, host: str, details: Mapping[str, object], port: int = DEFAULT_PORT
) -> RecordedUse | None:
    """The use that an event tells of; `port` is the host's, where the event has none."""
    try:
        name = Host.parse(host)
    except Unparsable:
        return None
    if kind == EventKind.DNS:
        return RecordedUse(name, port)
    if kind == EventKind.CONNECT:
        return _connection(name, details.get("port"))
    path = details.get("path")
    if kind == EventKind.REQUEST and isinstance(path, str) and path.startswith("/"):
        word = details.get("method")
        if len(path) <= MAX_PATH and isinstance(word, str) and word in WORDS:
            return RecordedUse(name, port, word, path)
    if kind == EventKind.REF:
        return _push(name, port, details)
    return None


def judge_use(book: Rulebook, use: RecordedUse) -> Decision:
    """What the policy says of it."""
    connection = decide_egress(book, use.host, use.port)
    if connection.route is not Route.INSPECT or not (use.word or use.ref):
        return connection
    if use.ref:
        return explain(book, use.target).decision
    decision: Decision = Decision()
    for query in _SERVICES if use.path.endswith("/info/refs") else ("",):
        decision = decide_request(book, use.host, use.port, RequestFacts(use.word, use.path, query))
        if decision.allowed:
            break
    return decision


def _connection(host: Host, port: object) -> RecordedUse | None:
    if not isinstance(port, int) or not 0 < port <= _MAX_PORT:
        return None
    return RecordedUse(host, port)


def _push(host: Host, port: int, details: Mapping[str, object]) -> RecordedUse | None:
    repository, ref = details.get("repository"), details.get("ref")
    if not isinstance(repository, str) or not isinstance(ref, str) or not ref:
        return None
    try:
        RequestPath.parse(f"/{repository}")
    except Unparsable:
        return None
    change = _CHANGES.get(str(details.get("change")), RefChange.FAST_FORWARD)
    return RecordedUse(host, port, path=f"/{repository}", ref=ref, change=change)
