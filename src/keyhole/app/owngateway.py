"""A gateway for as long as one sandbox lives: its data plane is a process beside this one.

This process holds the sandbox, reads and follows the secrets, and writes down how the session began
and ended. It closes the door by asking the data plane, and by ending it where it does not answer:
nothing here waits for the process that reads hostile bytes (I12).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from keyhole.app.ahead import begin_session
from keyhole.app.ending import Ending
from keyhole.app.heartbeat import STUCK_SECONDS, Watch, make_pulse
from keyhole.app.plane import ANSWER_SECONDS, failure
from keyhole.app.post import FAREWELL_SECONDS, Served
from keyhole.app.runendpoint import RunEndpoint
from keyhole.app.session import refused_event, session_event
from keyhole.audit.line import is_digest
from keyhole.model.secret import Source
from keyhole.model.value import dataclass
from keyhole.sandbox.helper import SandboxLost

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.places import Places
    from keyhole.app.plane import DataPlane
    from keyhole.app.provider import Provider, Stock, Wanted
    from keyhole.app.provision import Provision
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import Grant
    from keyhole.model.event import Event
    from keyhole.sandbox.bailiff import Bailiff
    from keyhole.sandbox.launch import Launch

CLOSE_SECONDS = 0.05
"""How long the data plane may take to close its door before it is ended: a healthy one takes a
millisecond, and `keyhole revoke` is to be done within 0.2 s."""

GONE_SECONDS = 0.1
"""How long the end of a data plane that was killed is waited for."""

LOOK_SECONDS = 0.3
"""How long it may take to say its figures; after that, those that it said last are shown."""

GRANT_SECONDS = 5.0
"""How long it may take to take a grant."""

MAX_JUDGES = 16
"""Judges at a time, of which the data plane has work for six: one that was taken over gets no more
processes than these."""

REACHES_NOTHING = (
    "nothing inside reaches anything any more; end the command (Ctrl-C, or `keyhole stop {id}`)"
    " and run it again"
)


@dataclass(frozen=True, slots=True)
class Sourced:
    """Where a session's policy and secrets come from, for what follows them."""

    provider: Provider
    wanted: Wanted
    stock: Stock


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The session that is served."""

    id: str
    label: str
    """What it is called in a list: the program, never its arguments."""
    policy: Path
    provision: Provision
    places: Places
    sourced: Callable[[], Sourced]


class Unanswered(Exception):
    """The data plane has not done what it was asked for, and why."""


class OwnGateway(Served):
    """One session, served by a data plane of its own."""

    def __init__(
        self,
        plane: DataPlane,
        tenancy: Tenancy,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`log` is open, with the session begun in it, where the helper was let go on ahead."""
        super().__init__(tenancy.provision.policy.limits.ttl, report, warn)
        self._plane = plane
        self._tenancy = tenancy
        self._log = log
        self._endpoint: RunEndpoint | None = None
        self.provision = tenancy.provision
        """What it stands on now."""
        self.stored: set[str] = set()
        """What it has had of the store."""
        self._born = now()
        self._pulse = -1
        self._opened: asyncio.Future[None] | None = None
        self._watch: Watch | None = None
        self._follower: _Follower | None = None
        self._bailiff: Bailiff | None = None
        self._why, self._why_closed = "", Ending.LOST
        """Why this process ended the data plane, and what that means for the session."""
        self._retired = False
        """The data plane was told to go."""
        self._number = 0
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._shut = asyncio.Event()
        """The door is closed, or about to be."""
        self._gone = asyncio.Event()
        """The data plane has ended."""
        self._figures: dict[str, Any] = {}
        self.over = asyncio.Event()
        """The sandbox has ended."""

    # ── as a run sees it ──────────────────────────────────────────────────────────────────────────

    def begin(self, launch: Launch) -> None:
        """Open the log of the session; the data plane opens one of its own before the door."""
        if self._log is None:
            rate = self._tenancy.provision.policy.limits.audit_per_second
            audit = self._tenancy.places.audit
            self._log = begin_session(self._tenancy.id, audit, launch, rate)
        # Before the door is served: what can be reached can be closed.
        self._endpoint = RunEndpoint.claim(self._tenancy, self._plane.pid, self._warn)

    def admit(self, door: list[socket.socket]) -> None:
        """Hand the door over. What connects waits in its sockets until the data plane is loaded; if
        that dies first, they are closed."""
        self._pulse, beats = make_pulse()
        self._plane.hand_over(door, beats)

    async def open(self, ended: Callable[[Ending], None]) -> None:
        """Wait until the data plane serves the door, which takes a while; then watch over it."""
        loop = self._attend(ended)
        self._opened = loop.create_future()
        self._line = self._plane.attach(loop, self._heard, self._plane_ended)
        if self._endpoint is not None:
            self._endpoint.serve(self)
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), ANSWER_SECONDS)
        except TimeoutError:
            raise SandboxLost("the data plane does not serve the door") from None
        if self._gone.is_set():
            return
        pulse, self._pulse = self._pulse, -1
        self._watch = Watch(loop, pulse, self._stuck)
        self._follower = _Follower(self._tenancy.sourced(), self._tell, loop)

    def note(self, what: str, **details: str | int) -> None:
        """In the log."""
        self._opened_log.record(self._tenancy.id, session_event(what, **details))

    async def close(self, code: int) -> str:
        """Close the door, then the logs; the last digest of this process's covers both."""
        if self._follower is not None:
            self._follower.close()
        if self._watch is not None:
            self._watch.close()
        if self._pulse >= 0:
            os.close(self._pulse)
        head = await self._last_word(code)
        if self._bailiff is not None:
            self._bailiff.close()
        last = ""
        if self._log is not None:
            with self._log as log:
                if head is None:
                    why = f"no answer within {FAREWELL_SECONDS:g} s"
                    log.record(self._tenancy.id, refused_event("data-plane-ended", why=why))
                elif is_digest(head):
                    log.join(head)
                self.note("ended", code=code)
                log.finish(self._tenancy.id)
            last = log.head()
        self._plane.close()
        self._shut.set()
        self.over.set()
        if self._endpoint is not None:
            await self._endpoint.close()
        return last

    async def _last_word(self, code: int) -> str | None:
        """The digest that the data plane's log ends with, empty where it has none; None where it
        does not answer. It is ended, or about to be."""
        if self._line is not None:
            self._line.hear()
        if self.is_served:
            head = await self._farewell(code)
            return "" if head is None and self._gone.is_set() else head
        # It says that it serves before it takes the first connection: there is nothing to write
        # down, and a short command does not wait for it.
        self._closing = True
        self._plane.kill()
        if self._line is not None:
            self._line.close()
        return ""

    # ── as the control endpoint sees it ───────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether its door is."""
        return not self._shut.is_set()

    @property
    def is_served(self) -> bool:
        """Whether the data plane has taken it."""
        return self._opened is not None and self._opened.done()

    @property
    def is_quiet(self) -> bool:
        """Whether the data plane has not turned for longer than a busy host explains."""
        return self._watch is not None and self._watch.quiet

    @property
    def admits(self) -> bool:
        """Whether what happens can be written down."""
        return self._log is not None and self._log.admitting

    @property
    def expires_in(self) -> float:
        """Seconds until the session ends at the latest."""
        return max(0.0, self._born + self.provision.policy.limits.ttl - now())

    def record(self, session: str, event: Event) -> None:
        """Have an event written, as long as the log is open."""
        if self._log is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the run is about to end
                self._log.record(session, event)

    async def shut(self, ending: Ending, by: int) -> bool:
        """Close the door for good, whatever the data plane does; whether it was open."""
        if self._shut.is_set():
            return False
        self._plane.tell("close", ending, by)
        try:
            await asyncio.wait_for(self._shut.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._end_plane(f"it did not close its door within {CLOSE_SECONDS * 1000:g} ms", ending)
            # The door first: a log that cannot be written does not keep it open.
            self.record(self._tenancy.id, session_event("closed", why=ending.value, by=by))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GONE_SECONDS)
        return True

    async def stop(self, by: int) -> None:
        """Have the sandbox ended, and wait until it is."""
        if not await self.shut(Ending.STOPPED, by):
            self._ended(Ending.STOPPED)
        await self.over.wait()

    async def grant(self, grant: Grant, by: int) -> dict[str, Any]:
        """Allow one host more. Raises Unanswered."""
        if not self.is_open:
            raise Unanswered("the session's door is not open")
        return await self._ask(
            "grant", grant.host, grant.seconds, grant.uses, by, seconds=GRANT_SECONDS
        )

    async def figures(self) -> dict[str, Any]:
        """What the session has done, as far as the data plane says."""
        if not self._gone.is_set():
            with contextlib.suppress(Unanswered):
                self._figures = await self._ask("look", seconds=LOOK_SECONDS)
        return self._figures

    def reload(self) -> tuple[bool, str]:
        """Read the policy now: whether it changed, or why the old one holds. It may take long."""
        return self._follower.reload() if self._follower is not None else (False, "")

    def touch(self, reference: str) -> None:
        """Read a secret now that has changed. It may take long."""
        if self._follower is not None:
            self._follower.touch(reference)

    def _tell(self, what: str, *values: Any) -> None:  # noqa: ANN401 - by what is said
        """Pass on what has changed under the session."""
        if what == "reloaded":
            self.stored |= stored_in(self.provision)
            self.provision = values[0]
        self._plane.tell(what, *values)

    # ── the data plane ────────────────────────────────────────────────────────────────────────────

    async def _ask(self, what: str, *values: object, seconds: float) -> dict[str, Any]:
        self._number += 1
        number = self._number
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._plane.tell(what, number, *values)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise Unanswered("the data plane does not answer; `keyhole revoke` ends it") from None
        finally:
            del self._asked[number]

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"opened": True} if self._opened is not None and not self._opened.done():
                self._opened.set_result(None)
            case {"failed": str()} if self._opened is not None and not self._opened.done():
                self._opened.set_exception(SandboxLost(failure(message)))
            case {"looked": int(number)} | {"granted": int(number)}:
                if number in self._asked and not self._asked[number].done():
                    self._asked[number].set_result(message)
            case {"ungranted": int(number), "why": str(why)}:
                if number in self._asked and not self._asked[number].done():
                    self._asked[number].set_exception(Unanswered(why))
            case {"judge": True}:
                self._start_judge()
            case {"closed": str(why)} if why in tuple(Ending) and not self._shut.is_set():
                self._figures = message
                self._shut.set()
                self._ended(Ending(why))
                self._retire()
            case _:
                super()._heard(message)

    def _start_judge(self) -> None:
        """In this thread: a judge dies with the one that started it."""
        from keyhole.sandbox.bailiff import Bailiff
        from keyhole.sandbox.programs import Missing

        bailiff = self._bailiff = self._bailiff or Bailiff()
        try:
            if bailiff.count >= MAX_JUDGES:
                raise OSError("too many judges are at work")
            control, pidfd = bailiff.start()
        except (OSError, Missing) as error:
            self._plane.tell("judge", str(error))
            return
        with control:
            if not self._plane.give([control.fileno(), pidfd], "judge", ""):
                self._plane.tell("judge", "the data plane is too busy")
        os.close(pidfd)

    def _stuck(self) -> None:
        self._end_plane(f"it did not respond for {STUCK_SECONDS:g} s", Ending.LOST)

    def _end_plane(self, why: str, ending: Ending) -> None:
        self._why, self._why_closed = why, ending
        self._shut.set()
        self._plane.kill()

    def _retire(self) -> None:
        """The door is closed for good, as the data plane says: have it write the end of its log and
        go. Attack: one that was taken over says so and goes on."""
        if self._line is None or self._closing:
            return
        self._retired = True
        self._line.say(ended=True)
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._plane.kill)

    def _plane_ended(self) -> None:
        """Its line is closed: it has ended, and its sockets with it. Attack: one that was taken
        over closes the line and goes on serving."""
        self._plane.kill()
        self._shut.set()
        self._gone.set()
        why, ending = self._why or self._plane.cause(), self._why_closed
        told, ends_run = f"the data plane was ended: {why}", False
        if self._opened is not None and not self._opened.done():
            if self._closing:
                self._opened.cancel()
            elif ending is Ending.LOST:
                self._opened.set_exception(SandboxLost(told))
                ends_run = True  # and says why
            else:
                self._opened.set_result(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Unanswered("the data plane has ended"))
        if self._retired:
            self._lost("")
            return
        if not self._closing:
            self.record(self._tenancy.id, refused_event("data-plane-ended", why=why))
            self._ended(ending)
        if ending is Ending.LOST:
            told += "; " + REACHES_NOTHING.format(id=self._tenancy.id)
        self._lost("" if ends_run else told)

    @property
    def _opened_log(self) -> AuditLog:
        if self._log is None:
            raise RuntimeError("the log is opened before the sandbox starts")
        return self._log


def stored_in(provision: Provision) -> set[str]:
    """The secrets of the store that a policy names."""
    refs = {each.secret for each in provision.policy.services if each.secret}
    return {each.locator for each in refs if each.source is Source.STORE}


def now() -> float:
    """Seconds since boot, those of sleep included, as a session's age is counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Follower:
    """Follows one session's sources in a thread, and tells the data plane on the loop."""

    def __init__(
        self, sourced: Sourced, tell: Callable[..., None], loop: asyncio.AbstractEventLoop
    ) -> None:
        from keyhole.app.following import INTERVAL, Following, Told

        def saying(what: str) -> Callable[..., None]:
            def say(*values: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                    loop.call_soon_threadsafe(tell, what, *values)

            return say

        told = Told(saying("rotated"), saying("reloaded"), saying("kept"))
        self._following = Following(sourced.provider, sourced.wanted, sourced.stock, told)
        self.reload = self._following.reload
        self.touch = self._following.touch
        self._interval = INTERVAL
        self._over = threading.Event()
        threading.Thread(target=self._run, name="following", daemon=True).start()

    def close(self) -> None:
        """Follow no longer."""
        self._over.set()
        self._following.close()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._following.look()
