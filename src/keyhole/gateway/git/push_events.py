"""The audit events of a push (I8): for each ref that is decided, abandoned or refused upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.git.push_decision import refused
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.gateway.git.push_decision import RefVerdict
    from keyhole.inject.scrub import Needles
    from keyhole.wire.receive_pack import PushRequest

MAX_OBJECTION = 200
"""Characters of an origin's reason that are recorded."""

_OK = "ok"


def abandoned_events(
    request: PushRequest, reason: str, rule: str, host: str, repository: str
) -> list[Event]:
    """An event for each ref of a push that ended before it was decided."""
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


def objection_events(
    verdicts: tuple[RefVerdict, ...],
    results: Mapping[str, str],
    host: str,
    repository: str,
    needles: Needles,
) -> list[Event]:
    """An event for each ref that the policy allowed and the origin refused."""
    return [
        Event.of(
            EventKind.REF,
            Decision(Verdict.ALLOW, Reason.UPSTREAM_REFUSED, verdict.decision.rule),
            host,
            repository=repository,
            ref=verdict.command.ref,
            # The origin may repeat what it was sent (I8).
            why=_scrubbed(results[verdict.command.ref], needles)[:MAX_OBJECTION],
        )
        for verdict in verdicts
        if results.get(verdict.command.ref, _OK) != _OK
    ]


def _scrubbed(text: str, needles: Needles) -> str:
    return needles.replace(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def decision_events(
    verdicts: tuple[RefVerdict, ...], host: str, service: str, repository: str, size: int
) -> list[Event]:
    """One event for each ref; a ref that is held back because of another is marked."""
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
