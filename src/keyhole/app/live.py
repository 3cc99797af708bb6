"""A session whose door is open: what it may do can change under it, and it ends when it should.

The same for a run's own gateway and for one that serves many. Lives on the gateway's loop. It opens
nothing and reads nothing: a new secret or policy is handed to it by whoever follows them
(`following.py`). What changes is written down (I8).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.app.ending import Ending
from keyhole.app.session import refused_event, session_event
from keyhole.gateway.session import Session
from keyhole.model.host import Host
from keyhole.model.value import dataclass
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.latelog import LateLog
    from keyhole.app.provision import Provision
    from keyhole.app.tenant import Tenant
    from keyhole.audit.log import AuditLog
    from keyhole.gateway.door import Door
    from keyhole.gateway.gateway import Gateway
    from keyhole.gateway.handle import DoorHandle
    from keyhole.gateway.pushes import Judge
    from keyhole.model.event import Event
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.grants import Grant

TICK = 1.0
"""Seconds between two looks at a session's age."""

MAX_CHANGES = 64
"""Lines of one change that are written down; a person does not judge more at once."""


@dataclass(frozen=True, slots=True)
class House:
    """What all sessions of one gateway share."""

    loop: asyncio.AbstractEventLoop
    gateway: Gateway
    log: AuditLog | LateLog
    judge: Callable[[str], Judge]
    """Who looks into a session's pushes; made when the first session needs it."""
    quarantine: Path
    observe: Callable[[Event], None] | None = None
    """Sees every event, for the metrics."""


def now() -> float:
    """Seconds since boot, those of sleep included: a session ages while a laptop is shut, and a
    clock that is set does not make it older or younger."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Idleness:
    """How long a session has not used a credential, sleep of the host included.

    The gateway notes uses by a clock that stands still while the host sleeps.
    """

    def __init__(self) -> None:
        self._used = 0.0
        self._asleep = 0.0

    def seconds(self, used: float, steady: float, since_boot: float) -> float:
        """Asked every now and then: `used` and `steady` by the gateway's clock."""
        asleep = since_boot - steady
        if used != self._used:
            self._used, self._asleep = used, asleep
        return steady - used + asleep - self._asleep


class LiveSession:
    """One session from the opening of its door to its closing."""

    def __init__(
        self,
        house: House,
        tenant: Tenant,
        door: Door,
        report: Callable[[str], None],
        ended: Callable[[Ending], None],
    ) -> None:
        """`report` shows the person a line; `ended` hears when the door was closed, and why."""
        self._house = house
        self._tenant = tenant
        self._report = report
        self._ended = ended
        self._born = now()
        self._idleness = Idleness()
        self._book: Rulebook | None = None
        self.ending: Ending | None = None
        # Before the first secret is written anywhere: one that cannot be stops it here.
        session = self._session(tenant)
        try:
            self._handle: DoorHandle = house.gateway.open_door(door, session)
        except BaseException:
            door.close()
            raise
        self._timer = house.loop.call_later(self._next(), self._tick)

    @property
    def provision(self) -> Provision:
        """What it stands on now."""
        return self._tenant.provision

    @property
    def trusted(self) -> bool:
        """Whether its CA is made, where it needs one."""
        return self._tenant.trust is not None or self.provision.roots is None

    async def try_upstream(self, host: Host, port: int) -> str:
        """Why this cannot be reached now, by the session's own rules; empty when it can."""
        book = self._book or Rulebook(self.provision.policy)
        return await self._house.gateway.try_upstream(book, host, port)

    @property
    def handle(self) -> DoorHandle:
        """Its door."""
        return self._handle

    @property
    def expires_in(self) -> float:
        """Seconds until it ends at the latest."""
        return self._born + self.provision.policy.limits.ttl - now()

    # ── what it may do ────────────────────────────────────────────────────────────────────────────

    def rotate(self, ref: SecretRef, secret: Secret, hidden: tuple[Secret, ...] = ()) -> None:
        """Write this secret from now on; the old one is still searched for in answers (I7)."""
        services = self.provision.services_of(ref)
        if self.ending or not services:
            return
        try:
            self._change(self._tenant.with_secret(ref, secret, hidden))
        except Refused as refused:
            self.keep(f"the new secret of {', '.join(services)} is not used: {refused}")
            return
        for name in services:
            self.record(session_event("secret-changed", service=name))

    def reload(self, provision: Provision) -> None:
        """Go on under another policy."""
        if self.ending:
            return
        before, after = _lines(self.provision), _lines(provision)
        try:
            self._change(self._tenant.with_provision(provision))
        except Refused as refused:
            self.keep(f"the changed policy is not used: {refused}")
            return
        self.record(session_event("policy-changed", digest=provision.digest))
        for what, lines in (("granted", after - before), ("withdrawn", before - after)):
            for line in sorted(lines)[:MAX_CHANGES]:
                self.record(session_event(what, grant=line))
        self._report("the policy has changed and holds from now on")

    def keep(self, why: str) -> None:
        """Go on as before, though something has changed that cannot be used."""
        if self.ending is None:
            self.record(refused_event("change-refused", why=why))
            self._report(why)

    def grant(self, pattern: HostPattern, seconds: int, uses: int, by: int) -> Grant:
        """Allow one host more for a while, as a person asked in this process. Ungrantable."""
        given = self._handle.grant(Host.parse(pattern.name), pattern.port, seconds, uses)
        self.record(session_event("granted", grant=str(pattern), seconds=seconds, uses=uses, by=by))
        self._report(f"{pattern} is granted for {seconds} s and {uses} uses")
        return given

    def _change(self, tenant: Tenant) -> None:
        session = self._session(tenant)
        self._tenant = tenant
        try:
            self._handle.change(session)
        except BaseException:
            self.close(Ending.REVOKED)  # its door is closed already, and everybody is to know
            raise

    def _session(self, tenant: Tenant) -> Session:
        house, policy = self._house, tenant.provision.policy
        # A new secret under the same policy is decided by the same book.
        book = self._book if self._book and self._book.policy is policy else Rulebook(policy)
        self._book = book
        judge = None
        if any(s.git and (s.git.push or s.git.tags) for s in policy.services):
            house.quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            judge = house.judge(tenant.id)
        interception = tenant.interception(book, judge, house.quarantine)
        log = house.log
        return Session(
            tenant.id, book, self.record, lambda: log.admits(tenant.id), self._report, interception
        )

    def record(self, event: Event) -> None:
        """Have an event written."""
        self._house.log.record(self._tenant.id, event)
        if self._house.observe is not None:
            self._house.observe(event)

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def close(self, ending: Ending, by: int | None = None) -> None:
        """Close the door for good and cut what is open. The first reason stays.

        `by` is the process that asked for it.
        """
        if self.ending is not None:
            return
        self.ending = ending
        self._timer.cancel()
        self._handle.close()
        if ending is not Ending.DONE:
            asked = {"by": by} if by else {}
            self.record(session_event("closed", why=ending.value, **asked))
        self._ended(ending)

    def _tick(self) -> None:
        """Attack: requests without a credential, or refused ones, to keep a session from idling."""
        used = self._handle.figures.credentialed
        idle = self._idleness.seconds(used, self._house.loop.time(), now())
        if self.expires_in <= 0:
            self.close(Ending.EXPIRED)
        elif idle > self.provision.policy.limits.idle:
            self.close(Ending.IDLE)
        else:
            self._timer = self._house.loop.call_later(self._next(), self._tick)

    def _next(self) -> float:
        return min(TICK, max(0.0, self.expires_in))


def _lines(provision: Provision) -> set[str]:
    return {f"{line.subject}: {line.text}" for line in summarise(provision.policy)}
