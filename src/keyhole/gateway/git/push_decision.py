"""Decides on each ref of a push, before a byte of the push goes upstream (I3, I4).

Used by `push_exchange.py` once the push's list of commands is read: by names first, with the
remote's refs, then by the judge's findings in the pack. One refused ref refuses the push.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import UpstreamFailed
from keyhole.policy.asks import MAX_RULE
from keyhole.policy.push import (
    RefChange,
    RemoteFacts,
    decide_by_name,
    decide_optimistically,
    decide_ref_update,
)
from keyhole.policy.push_messages import refusal_message
from keyhole.policy.push_trial import UNJUDGED, PushCase, PushUnjudged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.gateway.git.push_body import PushBody
    from keyhole.gateway.git.quarantine import Quarantine
    from keyhole.gateway.git.remote import RemoteRepository
    from keyhole.gateway.session import Judge
    from keyhole.policy.policy import GitGrant, Service
    from keyhole.policy.push_trial import PushFinding
    from keyhole.wire.receive_pack import PushRequest, RefCommand


AskPush = Callable[[str, str], Awaitable[Decision]]
"""Asks a person about a ref and its change: `create`, `update` or `delete`."""

MAX_ASKED_REFS = 4
"""Refs of one push that a person is asked about."""

_NOT_NAMED = (Reason.REF_NOT_GRANTED, Reason.TAG_NOT_GRANTED)


class RefVerdict(Struct, frozen=True):
    """The decision on one command, and the message for the pusher."""

    command: RefCommand
    change: RefChange
    decision: Decision
    words: str = ""


class PushDecider:
    """Decides on one push."""

    def __init__(
        self,
        service: Service,
        grant: GitGrant,
        request: PushRequest,
        remote: RemoteRepository,
        judge: Judge | None,
        ask: AskPush | None = None,
    ) -> None:
        """`ask` has a person allow a ref that the policy does not name; None: nobody is asked."""
        self._ask = ask
        self._approved: frozenset[str] = frozenset()
        self._service = service
        self._grant = grant
        self._request = request
        self._repository = remote
        self._judge = judge
        self._remote = RemoteFacts()
        self._tips: frozenset[str] = frozenset()

    async def decide(self, body: PushBody) -> tuple[RefVerdict, ...]:
        """Judge a push while its body still arrives; the verdict follows when it is whole."""
        verdicts = await self.decide_by_names()
        if refused(verdicts):
            body.discard()
        await body.whole
        if refused(verdicts) or not self._request.has_pack:
            return verdicts
        return await self._decide_by_pack(body.quarantine, body.pack_offset)

    async def decide_by_names(self) -> tuple[RefVerdict, ...]:
        """Judge by names alone, with the remote's refs; enough for a pack that is not read."""
        request = self._request
        if not self._grant.push_options.issuperset(request.options):
            rule = f"{self._service.rule}.push_options"
            return self._all(Decision(reason=Reason.PUSH_OPTION, rule=rule))
        named = tuple(
            self._verdict(command, _claimed(command), decide_by_name(self._service, command))
            for command in request.commands
        )
        asked = self._may_ask(named)
        if len(refused(named)) > len(asked):
            # No answer of the origin could allow these refs, so it is not asked.
            return named
        try:
            refs = await self._repository.refs()
        except UpstreamFailed as error:
            return self._all(UNJUDGED, str(error))
        self._remote = RemoteFacts.of(refs.head, refs.symbolic)
        self._tips = frozenset(refs.tips.values()) | frozenset(refs.peeled.values())
        self._approved = frozenset(asked)
        best = self._decide_optimistically(refs.tips)
        if not asked:
            return best
        if refused(best):
            # A person is not asked about a push that would be refused for something else.
            self._approved = frozenset()
            return self._decide_optimistically(refs.tips)
        return await self._ask_person(best)

    def _decide_optimistically(self, tips: Mapping[str, str]) -> tuple[RefVerdict, ...]:
        return tuple(
            self._verdict(command, _claimed(command), decision)
            for command in self._request.commands
            for decision in [
                decide_optimistically(self._service, command, self._remote, tips, self._approved)
            ]
        )

    def _may_ask(self, named: tuple[RefVerdict, ...]) -> list[str]:
        """The refs that no pattern of the policy names, if a person may be asked about them."""
        if self._ask is None:
            return []
        found = [v.command.ref for v in named if v.decision.reason in _NOT_NAMED]
        few = len(found) <= MAX_ASKED_REFS and all(len(ref) <= MAX_RULE for ref in found)
        return found if few else []

    async def _ask_person(self, best: tuple[RefVerdict, ...]) -> tuple[RefVerdict, ...]:
        """Ask about each ref that needs it; nothing of the push has left."""
        verdicts = []
        for verdict in best:
            command = verdict.command
            if self._ask is not None and command.ref in self._approved:
                said = await self._ask(command.ref, _called(command))
                verdict = self._verdict(command, verdict.change, said)
            verdicts.append(verdict)
        return tuple(verdicts)

    async def _decide_by_pack(
        self, quarantine: Quarantine | None, offset: int
    ) -> tuple[RefVerdict, ...]:
        """Judge by the content of the pack."""
        request = self._request
        if self._judge is None or quarantine is None:
            return self._all(UNJUDGED)
        pushed = tuple(command for command in request.commands if not command.is_delete)
        case = PushCase(
            pushed, self._tips, self._grant.deny_paths, request.object_format, request.shallow
        )
        try:
            found = await self._judge.judge(quarantine.fd, offset, case, self._repository.pack)
        except PushUnjudged as error:
            return self._all(error.decision, error.message)
        findings = {finding.ref: finding for finding in found}
        return tuple(self._conclude(command, findings) for command in request.commands)

    def _conclude(self, command: RefCommand, findings: dict[str, PushFinding]) -> RefVerdict:
        if command.is_delete:
            decision = self._decide_update(command.ref, RefChange.DELETE)
            return self._verdict(command, RefChange.DELETE, decision)
        found = findings.get(command.ref)
        change = found.change if found is not None else RefChange.UNKNOWN
        why = found.why if found is not None else ""
        decision = self._decide_update(command.ref, change)
        if decision.allowed and (self._grant.deny_paths or self._request.shallow):
            if found is None or found.unproven:
                decision = Decision(reason=Reason.ANCESTRY_UNKNOWN, rule=decision.rule)
            elif found.denied_path is not None:
                rule = f"{self._service.rule}.deny_paths"
                decision, why = Decision(reason=Reason.DENIED_PATH, rule=rule), found.denied_path
        return self._verdict(command, change, decision, why)

    def _decide_update(self, ref: str, change: RefChange) -> Decision:
        return decide_ref_update(self._service, ref, change, self._remote, self._approved)

    def _all(self, decision: Decision, why: str = "") -> tuple[RefVerdict, ...]:
        return tuple(
            self._verdict(command, _claimed(command), decision, why)
            for command in self._request.commands
        )

    def _verdict(
        self, command: RefCommand, change: RefChange, decision: Decision, why: str = ""
    ) -> RefVerdict:
        if decision.allowed:
            return RefVerdict(command, change, decision)
        words = refusal_message(self._grant, command.ref, decision, why)
        return RefVerdict(command, change, decision, words)


def _called(command: RefCommand) -> str:
    if command.is_delete:
        return "delete"
    return "create" if command.is_create else "update"


def _claimed(command: RefCommand) -> RefChange:
    """The change that a command declares; whether an update rewrites history is not known yet."""
    if command.is_delete:
        return RefChange.DELETE
    return RefChange.CREATE if command.is_create else RefChange.UNKNOWN


def refused(verdicts: tuple[RefVerdict, ...]) -> dict[str, str]:
    """The words for each refused ref; empty when the push may be sent."""
    return {v.command.ref: v.words for v in verdicts if not v.decision.allowed}
