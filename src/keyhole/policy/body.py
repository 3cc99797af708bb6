"""Bodies that are judged before they are sent: the facts, the decision, and who makes it.

The gateway collects a body that a `BodyJudge` wants, asks the judge, and obeys: it sends the body
as it was read, byte for byte, or as the judge rewrote it; it answers itself; or it refuses. Not
re-serialised: that could change what a body means (precise numbers, escapes, order), and strict
reading has already removed what two parsers could read in two ways.

`judges.py` makes the judge of a service.
"""

from __future__ import annotations

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
"""Bytes of a body that is judged: what the largest of the known services accepts."""

BODY_IN_MEMORY = 1 << 20
"""Bytes of a body that is kept in memory; a longer one waits in a file."""

NOT_JSON = "its type is not application/json"
ENCODED = "it is encoded; only a body that is sent as it is can be read"
EMPTY = "it is empty"
NOT_TEXT = "it is a message of bytes, not of text"

_NONE: Mapping[str, str] = MappingProxyType({})


class BodyFacts(Struct, frozen=True):
    """A request with its body. For a WebSocket, the handshake, and then each message as a body."""

    host: ServiceHost
    """The hosts of the service that it is for."""
    word: str
    """As rules name it: a method, `GET+body`, `WEBSOCKET`, `GRPC`."""
    path: RequestPath
    decision: RequestDecision
    """The decision by method and path, which allows it."""
    query: str = ""
    fields: Mapping[str, str] = _NONE
    """Fields that the judge asks for, by names in lower case; several are joined by commas."""
    body: bytes = b""
    """The body; empty where it waits on disk (`BODY_IN_MEMORY`)."""
    size: int = 0
    """Bytes of the body."""
    json: JsonValue = None
    """The body's value, where `flaw` is empty."""
    flaw: str = NOT_JSON
    """Why `json` is not the body's value: the type, the encoding, or what is wrong with it."""


class AnswerRewriter(ABC):
    """Reads the origin's response before it is scrubbed and passed on. What it keeps is bounded."""

    whole = False
    """Whether nothing is passed on before all of it was read."""

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """The head, with names in lower case. Returns whether the body is to be read, too. Raises
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
    """For people: which feature, and the word that would open it."""
    body: bytes | None = None
    """Sent instead of the body; None: the body as it was read."""
    answer: bytes | None = None
    """Answered by the gateway itself, with `status` and `media`; nothing is sent. For a message of
    a WebSocket, a refusal: it is closed, and `why` is the reason."""
    status: int = 200
    media: str = "application/json"
    reader: AnswerRewriter | None = None

    @property
    def allowed(self) -> bool:
        """Whether the request is sent."""
        return self.decision.allowed and self.answer is None


class BodyNote(Struct, frozen=True):
    """Something else that a judge or its reader has found, for the audit log."""

    decision: RequestDecision
    what: str
    seen: SeenTool | None = None
    """A tool of an MCP server that is remembered for later sessions."""


class BodyJudge(ABC):
    """The judge of one service in one session. What it remembers is bounded and is this session's
    alone.

    It stays when the session's secrets change, and is made anew when anything of its service does:
    bodies that are being collected are then judged by the new one, and streams that the old one
    still reads (WebSockets, responses with a reader) are cut.
    """

    fields: frozenset[str] = frozenset()
    """Fields of a request that it looks at, in lower case. With `*` at its end, a name is a
    prefix."""

    most = MAX_JUDGED
    """Bytes of a body that it judges; a longer one is refused."""

    kept_text = MAX_JUDGED
    """Bytes to which texts of a long body are cut, where the judge needs no more of them."""

    reads_answers = False
    """Whether it ever sets a reader: then the origin is asked for responses that are not
    encoded."""

    def __init__(self) -> None:
        self.notes: list[BodyNote] = []
        """Written to the log after each call of the judge or of its reader, and then emptied."""

    @abstractmethod
    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """Whether it judges requests like this one, with or without a body. `decision` is the one
        by method and path, which allows it. The answer depends on nothing else, and is kept."""

    @abstractmethod
    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """Judge a request; of a WebSocket, the handshake. It takes a few milliseconds at most."""

    def judge_message(self, facts: BodyFacts) -> BodyJudgement:
        """Judge a message of a WebSocket: `facts` are the handshake's, with this body."""
        return refuse_unjudged(facts, "no WebSocket of this service is open")

    def judge_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """The same as `judge` for a body that was long to read: yields every millisecond or so."""
        yield
        return self.judge(facts)

    def judge_message_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """The same as `judge_message` for a long message."""
        yield
        return self.judge_message(facts)


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
