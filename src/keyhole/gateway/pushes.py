"""A push, judged before a byte of it goes upstream (I3, I4).

Used by `inspected.py` once a push's list of commands is read: by names first, with what the remote
says of itself, then by what the judge finds in the pack. One ref that is refused refuses the push.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway.inquiry import NoAnswer
from keyhole.inject.scrub import Needles
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass
from keyhole.policy.push import Change, Remote, decide_by_name, decide_ref_update, foresee
from keyhole.policy.pushwords import refusal_words
from keyhole.policy.trial import Case, Unheard, Unjudged, Unsound
from keyhole.wire.receivepack import ReportReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keyhole.gateway.pushbody import PushBody
    from keyhole.gateway.quarantine import Quarantine
    from keyhole.gateway.remote import RemoteRepository
    from keyhole.policy.policy import GitGrant, Service
    from keyhole.policy.trial import Finding, Question
    from keyhole.wire.receivepack import Command, PushRequest


MAX_OBJECTION = 200
"""Characters of an origin's reason that are written down."""

OK = "ok"

Told = Callable[[Mapping[str, str], Needles], None]
"""Hears what an origin said of each ref, `ok` or why not, and what must not be in it."""


class Judge(Protocol):
    """Walks a pack where nothing that it holds can do harm."""

    def prepare(self) -> None:
        """A push is announced."""

    async def judge(
        self,
        pack: int,
        offset: int,
        case: Case,
        ask: Callable[[Question], AsyncIterator[bytes]],
    ) -> tuple[Finding, ...]:
        """What a pack, which begins at `offset` of the file, does. Raises Unjudged."""


@dataclass(frozen=True, slots=True)
class RefVerdict:
    """What was decided on one command, and the words for who pushed."""

    command: Command
    change: Change
    decision: Decision
    words: str = ""


class Push:
    """How one push is judged."""

    def __init__(
        self,
        service: Service,
        grant: GitGrant,
        request: PushRequest,
        remote: RemoteRepository,
        judge: Judge | None,
    ) -> None:
        self._service = service
        self._grant = grant
        self._request = request
        self._repository = remote
        self._judge = judge
        self._remote = Remote()
        self._tips: frozenset[str] = frozenset()

    async def decide(self, body: PushBody) -> tuple[RefVerdict, ...]:
        """Judge a push whose body still comes; there is a verdict once it is whole."""
        verdicts = await self._survey()
        if refused(verdicts):
            body.discard()
        await body.whole
        if refused(verdicts) or not self._request.has_pack:
            return verdicts
        return await self._try(body.quarantine, body.offset)

    async def foresee(self) -> tuple[RefVerdict, ...]:
        """Judge one whose pack is nobody's business."""
        return await self._survey()

    async def _survey(self) -> tuple[RefVerdict, ...]:
        """Judge by names alone, with what the remote says of itself."""
        request = self._request
        if not self._grant.push_options.issuperset(request.options):
            rule = f"{self._service.rule}.push_options"
            return self._all(Decision(reason=Reason.PUSH_OPTION, rule=rule))
        named = tuple(
            self._verdict(command, _claimed(command), decide_by_name(self._service, command))
            for command in request.commands
        )
        if refused(named):
            # What no answer can change is not asked about.
            return named
        try:
            refs = await self._repository.refs()
        except NoAnswer as error:
            return self._all(Decision(reason=Reason.PUSH_UNJUDGED), str(error))
        self._remote = Remote.of(refs.head, refs.symbolic)
        self._tips = frozenset(refs.tips.values()) | frozenset(refs.peeled.values())
        return tuple(
            self._verdict(command, _claimed(command), decision)
            for command in request.commands
            for decision in [foresee(self._service, command, self._remote, refs.tips)]
        )

    async def _try(self, quarantine: Quarantine | None, offset: int) -> tuple[RefVerdict, ...]:
        """Judge by what the pack holds."""
        request = self._request
        if self._judge is None or quarantine is None:
            return self._all(Decision(reason=Reason.PUSH_UNJUDGED))
        pushed = tuple(command for command in request.commands if not command.is_delete)
        case = Case(
            pushed, self._tips, self._grant.deny_paths, request.object_format, request.shallow
        )
        try:
            found = await self._judge.judge(quarantine.fd, offset, case, self._repository.pack)
        except Unheard as error:
            return self._all(Decision(reason=Reason.OVER_SHARE, rule="shares.judges"), str(error))
        except Unsound as error:
            return self._all(Decision(reason=Reason.PUSH_MALFORMED), str(error))
        except Unjudged as error:
            return self._all(Decision(reason=Reason.PUSH_UNJUDGED), str(error))
        findings = {finding.ref: finding for finding in found}
        return tuple(self._conclude(command, findings) for command in request.commands)

    def _conclude(self, command: Command, findings: dict[str, Finding]) -> RefVerdict:
        if command.is_delete:
            decision = decide_ref_update(self._service, command.ref, Change.DELETE, self._remote)
            return self._verdict(command, Change.DELETE, decision)
        found = findings.get(command.ref)
        change = found.change if found is not None else Change.UNKNOWN
        why = found.why if found is not None else ""
        decision = decide_ref_update(self._service, command.ref, change, self._remote)
        if decision.allowed and (self._grant.deny_paths or self._request.shallow):
            if found is None or found.unproven:
                decision = Decision(reason=Reason.ANCESTRY_UNKNOWN, rule=decision.rule)
            elif found.denied_path is not None:
                rule = f"{self._service.rule}.deny_paths"
                decision, why = Decision(reason=Reason.DENIED_PATH, rule=rule), found.denied_path
        return self._verdict(command, change, decision, why)

    def _all(self, decision: Decision, why: str = "") -> tuple[RefVerdict, ...]:
        return tuple(
            self._verdict(command, _claimed(command), decision, why)
            for command in self._request.commands
        )

    def _verdict(
        self, command: Command, change: Change, decision: Decision, why: str = ""
    ) -> RefVerdict:
        if decision.allowed:
            return RefVerdict(command, change, decision)
        words = refusal_words(self._grant, command.ref, decision, why)
        return RefVerdict(command, change, decision, words)


def _claimed(command: Command) -> Change:
    """What a command says of itself; whether an update rewrites is not known by it."""
    if command.is_delete:
        return Change.DELETE
    return Change.CREATE if command.is_create else Change.UNKNOWN


def refused(verdicts: tuple[RefVerdict, ...]) -> dict[str, str]:
    """The words for each ref that was refused; empty when the push may go."""
    return {v.command.ref: v.words for v in verdicts if not v.decision.allowed}


class Report:
    """What the origin says of a push; it goes on as it came, and is listened to."""

    __slots__ = ("_needles", "_reader", "_told")

    def __init__(self, told: Told, needles: Needles) -> None:
        self._reader = ReportReader()
        self._told = told
        self._needles = needles

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        self._reader.feed(data)
        return data

    def end(self) -> bytes:
        """Nothing more; what was heard is told."""
        self._told(self._reader.results(), self._needles)
        return b""


def abandoned(
    request: PushRequest, reason: str, rule: str, host: str, repository: str
) -> list[Event]:
    """An event for each ref of a push that came to nothing before it was decided."""
    return [
        Event(
            EventKind.REF,
            Verdict.DENY,
            reason,
            rule,
            host,
            (
                ("repository", repository),
                ("ref", command.ref),
                ("old", command.old),
                ("new", command.new),
            ),
        )
        for command in request.commands
    ]


def objections(
    verdicts: tuple[RefVerdict, ...],
    results: Mapping[str, str],
    host: str,
    repository: str,
    needles: Needles,
) -> list[Event]:
    """An event for each ref that policy allowed and the origin did not take."""
    return [
        Event.of(
            EventKind.REF,
            Decision(Verdict.ALLOW, Reason.UPSTREAM_REFUSED, verdict.decision.rule),
            host,
            repository=repository,
            ref=verdict.command.ref,
            # The origin may say back what it was sent (I8).
            why=_scrubbed(results[verdict.command.ref], needles)[:MAX_OBJECTION],
        )
        for verdict in verdicts
        if results.get(verdict.command.ref, OK) != OK
    ]


def _scrubbed(text: str, needles: Needles) -> str:
    return needles.replace(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def events(
    verdicts: tuple[RefVerdict, ...], host: str, service: str, repository: str, size: int
) -> list[Event]:
    """One event for each ref; what is held back with others says so."""
    stopped = bool(refused(verdicts))
    written = []
    for verdict in verdicts:
        command, decision = verdict.command, verdict.decision
        if stopped and decision.allowed:
            decision = Decision(reason=Reason.HELD_BACK, rule=decision.rule)
        written.append(
            Event.of(
                EventKind.REF,
                decision,
                host,
                service=service,
                repository=repository,
                ref=command.ref,
                old=command.old,
                new=command.new,
                change=verdict.change.name.lower().replace("_", "-"),
                size=size,
            )
        )
    return written
