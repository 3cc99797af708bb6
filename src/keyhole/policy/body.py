"""The interface of judged bodies: the facts of a request, the judgement, and the judge.

The gateway collects a body if the service's `BodyJudge` wants to see it, and asks the judge. It
then sends the body unchanged or as the judge rewrote it, answers the request itself, or refuses it.
The gateway does not re-serialise a body, because that could change its meaning (precise numbers,
escapes, order); the strict reader has already refused whatever two parsers could read differently.

`judges.py` makes the judge of a service.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed
from keyhole.wire.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from keyhole.model.path import RequestPath
    from keyhole.policy.mcp_grant import SeenTool
    from keyhole.policy.policy import ServiceHost
    from keyhole.wire.strict_json import JsonValue

MAX_JUDGED = 32 << 20
"""Bytes of a body that is judged: the most that any known service accepts."""

BODY_IN_MEMORY = 1 << 20
"""Bytes of a body that is kept in memory; a longer one waits in a file."""

NOT_JSON = "its type is not application/json"
ENCODED = "it is encoded; only a body that is sent as it is can be read"
EMPTY = "it is empty"
NOT_TEXT = "it is a message of bytes, not of text"

_NONE: Mapping[str, str] = MappingProxyType({})

_is_json = re.compile(
    r"application/(?:json|[a-z0-9.-]+\+json)(?:[ \t]*;[ \t]*charset=\"?utf-8\"?)?", re.IGNORECASE
).fullmatch


class BodyFacts(Struct, frozen=True):
    """A request with its body. For a WebSocket, the handshake, and then each message as a body."""

    host: ServiceHost
    """The part of the service that has the host of the request."""
    word: str
    """The method as rules spell it: a method, `GET+body`, `WEBSOCKET`, `GRPC`."""
    path: RequestPath
    decision: RequestDecision
    """The decision by method and path, which allows the request."""
    query: str = ""
    fields: Mapping[str, str] = _NONE
    """Fields that the judge asks for, by names in lower case; several are joined by commas."""
    body: bytes = b""
    """The body, of any type; empty where it waits on disk (`BODY_IN_MEMORY`)."""
    size: int = 0
    """Bytes of the body."""
    json: JsonValue = None
    """The body's value, where `flaw` is empty."""
    flaw: str = NOT_JSON
    """Why the body could not be read as JSON: its type, its encoding, or a fault in it."""


class AnswerRewriter(ABC):
    """Reads the origin's response before it is scrubbed and passed on. What it keeps is bounded."""

    whole = False
    """Whether the whole response is read before any of it is passed on."""

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """Read the head, with names in lower case. Returns whether to read the body, too. Raises
        Malformed or ResponseUnfit."""
        return True

    @abstractmethod
    def feed(self, piece: bytes) -> bytes:
        """The bytes that may be passed on now. Raises Malformed or ResponseUnfit."""

    @abstractmethod
    def end(self) -> bytes:
        """The remaining bytes. Raises as `feed`."""


class BodyJudgement(Struct, frozen=True):
    """A decision on a request with its body. The zero refuses (I3)."""

    decision: RequestDecision = RequestDecision()
    why: str = ""
    """A text for people: the denied feature, and the word that would allow it."""
    body: bytes | None = None
    """The bytes to send instead of the body; None: the body unchanged."""
    answer: bytes | None = None
    """The answer of the gateway itself, with `status` and `media`; the request is not sent. For a
    message of a WebSocket this is a refusal: the WebSocket is closed with the reason `why`."""
    status: int = 200
    media: str = "application/json"
    reader: AnswerRewriter | None = None

    @property
    def allowed(self) -> bool:
        """Whether the request is sent."""
        return self.decision.allowed and self.answer is None


class BodyNote(Struct, frozen=True):
    """Another finding of a judge or its reader, for the audit log."""

    decision: RequestDecision
    what: str
    seen: SeenTool | None = None
    """A tool of an MCP server that is remembered for later sessions."""


class BodyJudge(ABC):
    """The judge of one service in one session. Its memory is bounded, and no other session shares
    it.

    The gateway keeps the judge when the session's secrets change, and makes a new one when the
    service changes. The new judge then judges bodies that are being collected; streams that the old
    one still reads (WebSockets, responses with a reader) are cut.
    """

    fields: frozenset[str] = frozenset()
    """Header fields of a request that it reads, in lower case. A name that ends with `*` is a
    prefix."""

    most = MAX_JUDGED
    """Bytes of a body that it judges; a longer one is refused."""

    kept_text = MAX_JUDGED
    """Bytes to which texts of a long body may be cut, because the judge needs no more."""

    needs_type = False
    """Whether a body must say that it is JSON. Attack: Rack, on which GitLab runs, reads a POST
    without a type as a form. A text with `&target_project_id=2&` in it is fields to it, and one
    text to the judge."""

    judges_heads = False
    """Whether the gateway calls `judge_head`."""

    reads_answers = False
    """Whether it may set a reader. The gateway then asks the origin for uncompressed responses."""

    def __init__(self) -> None:
        self.notes: list[BodyNote] = []
        """Written to the log after each call of the judge or of its reader, and then emptied."""

    @abstractmethod
    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """Whether it judges requests like this one, with or without a body. `decision` is the one
        by method and path, which allows it. The answer depends on nothing else, and is kept."""

    def judge_head(self, facts: BodyFacts) -> BodyJudgement | None:
        """Judge a request by its head, before any of its body is read. The body is then passed on
        as it arrives. None: the body must be read."""
        return None

    @abstractmethod
    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """Judge a request, or the handshake of a WebSocket. Takes at most a few milliseconds."""

    def judge_message(self, facts: BodyFacts) -> BodyJudgement:
        """Judge a message of a WebSocket: `facts` are the handshake's, with this body."""
        return refuse_unjudged(facts, "no WebSocket of this service is open")

    def judge_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """Do the same as `judge` for a long body: yields about every millisecond."""
        yield
        return self.judge(facts)

    def judge_message_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """Do the same as `judge_message` for a long message."""
        yield
        return self.judge_message(facts)


def find_flaw(fields: Mapping[str, str], *, empty: bool, typed: bool = False) -> str:
    """Why the head says that a body is not JSON; empty if it may be. `typed` is the judge's
    `needs_type`."""
    if empty:
        return EMPTY
    if fields.get("content-encoding", "identity").lower() != "identity":
        return ENCODED
    # Models' servers read a body without a type as JSON (boto3's invoke_model sends none).
    given = fields.get("content-type")
    if given is None:
        return NOT_JSON if typed else ""
    return "" if _is_json(given) else NOT_JSON


def read_facts(facts: BodyFacts, body: bytes) -> BodyFacts:
    """The facts with a short body, and its value."""
    try:
        return replace(facts, body=body, size=len(body), json=read_json(body), flaw="")
    except Malformed as error:
        return replace(facts, body=body, size=len(body), flaw=error.why)


def refuse_unjudged(facts: BodyFacts, hint: str = "") -> BodyJudgement:
    """The refusal of a body that cannot be judged."""
    by, why = facts.decision, f"its body cannot be judged: {facts.flaw}"
    return BodyJudgement(
        RequestDecision(Verdict.DENY, Reason.BODY_UNJUDGED, by.rule, by.service),
        f"{why}; {hint}" if hint else why,
    )
