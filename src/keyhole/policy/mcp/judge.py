"""The judge of one MCP server for one session: streamable HTTP, and the older transport.

Every request to the server's host is read as MCP, and whatever is not MCP is refused. `wants` is
true for requests without a body, too: their answers are streams that are filtered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed
from keyhole.model.reasons import REASONS
from keyhole.policy.body import BodyJudge, BodyJudgement, BodyNote
from keyhole.policy.mcp.answers import SESSION_FIELD, McpAnswer
from keyhole.policy.mcp.capabilities import strip_capabilities
from keyhole.policy.mcp.client_messages import Outcome, Ruling, judge_message
from keyhole.policy.mcp.memory import McpMemory
from keyhole.policy.mcp.messages import MessageKind, message_key, read_messages
from keyhole.policy.mcp.mirrored_fields import check_mirrored
from keyhole.policy.mcp.raw_messages import write_part
from keyhole.policy.mcp.server_messages import ServerFilter, ServerNote, error_of

if TYPE_CHECKING:
    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.mcp.messages import Message
    from keyhole.policy.mcp_grant import McpGrant
    from keyhole.policy.policy import ServiceHost

MAX_MESSAGE = 8 << 20
"""Bytes of one body: what some tools take for a file."""

MAX_NOTES = 1024
"""Notes between two emptyings: as many as one list has tools."""

LAST_EVENT_FIELD = "last-event-id"

_ACCEPTED, _NOT_FOUND = 202, 404
_BATCH = "nothing of this batch was sent: "


class McpJudge(BodyJudge):
    """Judges the requests to one server."""

    fields = frozenset({SESSION_FIELD, LAST_EVENT_FIELD, "mcp-method", "mcp-name", "mcp-param-*"})
    most = MAX_MESSAGE
    reads_answers = True

    def __init__(self, service: str, grant: McpGrant) -> None:
        super().__init__()
        self._service = service
        self._grant = grant
        self._memory = McpMemory(grant)
        self._filter = ServerFilter(grant, self._memory, self._record)

    def wants(
        self, _host: ServiceHost, _word: str, _path: RequestPath, _decision: RequestDecision
    ) -> bool:
        """As `BodyJudge`: everything at this host is MCP."""
        return True

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`."""
        refused = (
            self._check_target(facts) or self._check_session(facts) or self._check_event(facts)
        )
        if refused is not None:
            return refused
        if facts.word == "POST":
            return self._judge_post(facts)
        if facts.word == "GET" or (facts.word == "DELETE" and SESSION_FIELD in facts.fields):
            return self._send(facts, Ruling(Outcome.SEND, Reason.RULE))
        return self._refuse(Ruling(why=f"MCP has no {facts.word} like this"))

    # ── where, and in which session ───────────────────────────────────────────────────────────────

    def _check_target(self, facts: BodyFacts) -> BodyJudgement | None:
        """Only the server's endpoints, with their queries: a query may change what a server does,
        and whose messages it takes."""
        target = _target(facts)
        if target in self._memory.endpoints or target in self._grant.endpoints:
            return None
        if not self._grant.endpoints and not facts.query:
            return None
        why = "this path and query is not one of its endpoints; name it in endpoints to open it"
        return self._refuse(Ruling(key="endpoints", why=why))

    def _check_session(self, facts: BodyFacts) -> BodyJudgement | None:
        """A session of MCP belongs to the sandbox that opened it. MCP's client begins a new one
        where it reads 404."""
        given = facts.fields.get(SESSION_FIELD)
        if given is None or given in self._memory.sessions:
            return None
        ruling = Ruling(
            reason=Reason.MCP_SESSION, why="this session of MCP was not opened by this sandbox"
        )
        return self._refuse(ruling, write_part(error_of(None, ruling.why)), _NOT_FOUND)

    def _check_event(self, facts: BodyFacts) -> BodyJudgement | None:
        resumed = facts.fields.get(LAST_EVENT_FIELD)
        # Attack: the id of an event of another sandbox, with a session of one's own, by any method.
        # Event stores find a stream by the event alone.
        if not resumed or resumed in self._memory.event_ids:
            return None
        why = "the event that it resumes from was not sent to this sandbox"
        return self._refuse(Ruling(reason=Reason.MCP_SESSION, why=why))

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    def _judge_post(self, facts: BodyFacts) -> BodyJudgement:
        if facts.flaw:
            return self._refuse(Ruling(reason=Reason.BODY_UNJUDGED, why=facts.flaw))
        try:
            messages = read_messages(facts.json)
            check_mirrored(facts.fields, messages)
            judged = [
                _Judged(each, judge_message(self._grant, self._memory, each)) for each in messages
            ]
            return self._settle(facts, judged)
        except Malformed as error:
            return self._refuse(Ruling(reason=Reason.MCP_MALFORMED, why=error.why))

    def _settle(self, facts: BodyFacts, judged: list[_Judged]) -> BodyJudgement:
        outcomes = {each.ruling.outcome for each in judged}
        if outcomes == {Outcome.SEND}:
            return self._send_messages(facts, judged)
        speaking = min(judged, key=lambda each: each.ruling.outcome.value)
        if outcomes == {Outcome.SWALLOW}:
            return self._refuse(speaking.ruling, b"", _ACCEPTED)
        if _target(facts) in self._memory.endpoints:
            return self._refuse_older(facts, judged, speaking)
        batch = isinstance(facts.json, list)
        errors = [
            error_of(
                each.message.id,
                f"{_BATCH}{speaking.ruling.why}"
                if each.ruling.outcome is Outcome.SEND
                else each.ruling.why,
            )
            for each in judged
            if each.message.kind is MessageKind.REQUEST
        ]
        if not errors:
            return self._refuse(speaking.ruling)
        return self._refuse(speaking.ruling, write_part(errors if batch else errors[0]))

    def _refuse_older(
        self, facts: BodyFacts, judged: list[_Judged], speaking: _Judged
    ) -> BodyJudgement:
        """A client of the older transport waits for an answer on its stream. A ping with the id of
        the refused request brings one there, and the filter makes it the error."""
        message, ruling = speaking.message, speaking.ruling
        if len(judged) != 1:
            return self._refuse(ruling)
        self._memory.refused.put(message_key(message.id), ruling.why)
        self._record(ServerNote(ruling.reason, ruling.key, ruling.why))
        ping = write_part({"jsonrpc": "2.0", "id": message.id, "method": "ping"})
        return self._send(facts, Ruling(Outcome.SEND, Reason.RULE), ping)

    def _send_messages(self, facts: BodyFacts, judged: list[_Judged]) -> BodyJudgement:
        body = None
        if any(each.ruling.strips for each in judged):
            if not facts.body:
                raise Malformed("it is too long to take abilities out of it")
            opened = {str(each) for each in self._grant.server_requests}
            body = strip_capabilities(facts.body, opened)
        for each in judged:
            if each.ruling.why:
                # The log says which tool was called, not only that a message was sent (I8).
                self._record(ServerNote(Reason.RULE, each.ruling.key, each.ruling.why))
        opens = any(each.message.method == "initialize" for each in judged)
        return self._send(facts, judged[0].ruling, body, opens=opens)

    # ── decisions ─────────────────────────────────────────────────────────────────────────────────

    def _send(
        self, facts: BodyFacts, ruling: Ruling, body: bytes | None = None, *, opens: bool = False
    ) -> BodyJudgement:
        rule = f"services.{self._service}.{ruling.key}" if ruling.key else facts.decision.rule
        decision = RequestDecision(Verdict.ALLOW, Reason.RULE, rule, self._service)
        hosts = facts.host.patterns
        reader = McpAnswer(self._filter, self._memory, hosts, opens=opens)
        return BodyJudgement(decision, body=body, reader=reader)

    def _refuse(
        self, ruling: Ruling, answer: bytes | None = None, status: int = 200
    ) -> BodyJudgement:
        return BodyJudgement(self._decision(ruling), ruling.why, answer=answer, status=status)

    def _decision(self, found: Ruling | ServerNote) -> RequestDecision:
        rule = f"services.{self._service}"
        rule = f"{rule}.{found.key}" if found.key else rule
        return RequestDecision(REASONS[found.reason].verdict, found.reason, rule, self._service)

    def _record(self, note: ServerNote) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(BodyNote(self._decision(note), note.what, note.seen))


def _target(facts: BodyFacts) -> str:
    return f"{facts.path.raw}?{facts.query}" if facts.query else facts.path.raw


class _Judged(Struct, frozen=True):
    message: Message
    ruling: Ruling
