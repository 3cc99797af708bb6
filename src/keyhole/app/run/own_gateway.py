"""A gateway for as long as one sandbox lives: its data plane is a process beside this one.

This process holds the sandbox, reads and watches the secrets, and records how the session began and
ended. It closes the door by asking the data plane, and by killing it if it does not answer: nothing
here waits for the process that reads hostile bytes (I12).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from keyhole.app.processes.heartbeat import STUCK_SECONDS, HeartbeatMonitor, make_heartbeat_pipe
from keyhole.app.processes.messages import (
    AnswerAsk,
    ChangeRefused,
    CloseDoor,
    CommandAnswered,
    CommitSigned,
    GrantHost,
    JudgeStarted,
    PolicyReloaded,
    ReportFigures,
    ResumeSession,
    SecretRotated,
    SpendingChanged,
    WatchSession,
    pack_message,
    packed,
)
from keyhole.app.run.data_plane_process import ANSWER_SECONDS, data_plane_failure
from keyhole.app.run.early_start import begin_session
from keyhole.app.run.run_gateway import FINISH_SECONDS, RemoteGateway
from keyhole.app.run.run_spending import RunSpending
from keyhole.app.run.source_follower import SourceFollower, stored_secrets_in
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_events import noted_event, refused_event, session_event
from keyhole.app.setup.tool_store import ToolStore
from keyhole.audit.log_line import is_digest
from keyhole.model.errors import (
    SANDBOX_LOST,
    KeyholeError,
    Refused,
    ResourceUnusable,
    SetupFailed,
)
from keyhole.policy.seen_tools import grants_tools, read_seen
from keyhole.system import clock

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.processes.messages import RunMessage
    from keyhole.app.run.data_plane_process import RunDataPlaneProcess
    from keyhole.app.run.published_listeners import PublishedListeners
    from keyhole.app.run.source_follower import SessionSources
    from keyhole.app.session.commit_signer import CommitSigner
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.provision import Provision
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import AnswerRequest, GrantRequest
    from keyhole.judge.judge_process import JudgeSpawner
    from keyhole.model.event import Event
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.policy import Policy
    from keyhole.policy.ports import PublishedPort
    from keyhole.sandbox.launch import Launch

    ClaimEndpoint = Callable[
        ["OwnGatewaySession", int, Callable[[str], None]], "ServedEndpoint | None"
    ]
    """Claims the endpoint of this session, whose data plane has this process number. The third
    argument is called with a line if that fails."""

CLOSE_SECONDS = 0.05
"""How long the data plane may take to close its door before it is ended: a healthy one takes a
millisecond, and `keyhole revoke` is to be done within 0.2 s."""

GONE_SECONDS = 0.1
"""How long to wait for the end of a data plane that was killed."""

LOOK_SECONDS = 0.3
"""Seconds for it to report its counters; after that, the last ones are shown."""

GRANT_SECONDS = 5.0
"""How long the data plane may take to apply a grant, or to resume a frozen session."""

MAX_SIGNING = 8
"""Commits that wait to be signed: twice what the data plane asks for at a time."""

MAX_COMMANDS = 8
"""Commands of `approvals.command` at a time, as the data plane asks for."""

MAX_NEWS = 2000
"""Reports about questions that are kept until the endpoint serves: a few tenths of a second."""

MAX_JUDGES = 16
"""Judges at a time. The data plane has work for six; one that was taken over gets no more processes
than this."""

DOOR_NOT_OPEN = "the session's door is not open"
REACHES_NOTHING = (
    "nothing inside reaches anything any more; end the command (Ctrl-C, or `keyhole stop {id}`)"
    " and run it again"
)


class OwnGatewaySession(Struct, frozen=True):
    """The values of the session that is served."""

    id: str
    label: str
    """The session's name in a list: the program, never its arguments."""
    policy: Path
    provision: Provision
    places: HostPaths
    sources: Callable[[], SessionSources]
    published: PublishedListeners | None = None


class ServedEndpoint(Protocol):
    """The endpoint at which verbs reach the run."""

    def serve(self, gateway: OwnGateway) -> None:
        """Answer for this gateway from now on."""

    async def close(self) -> None:
        """Let the last answers leave, and remove the socket."""


class OwnGateway(RemoteGateway):
    """One session, served by a data plane of its own."""

    def __init__(
        self,
        plane: RunDataPlaneProcess,
        own_session: OwnGatewaySession,
        claim: ClaimEndpoint,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`claim` claims the run's endpoint. `log` is open and has the session's beginning, where
        the helper was released early."""
        super().__init__(own_session.provision.policy.limits.ttl, report, warn)
        self._plane = plane
        self._own_session = own_session
        self._log = log
        self._claim = claim
        self._endpoint: ServedEndpoint | None = None
        self.provision = own_session.provision
        """The policy, roots and secrets now in force."""
        self.stored: set[str] = set()
        """The secrets of the store that it has used."""
        self._born = clock.now()
        self._pulse = -1
        self._opened: asyncio.Future[None] | None = None
        self._watch: HeartbeatMonitor | None = None
        self._follower: SourceFollower | None = None
        self._spawner: JudgeSpawner | None = None
        self._signer: CommitSigner | None = None
        self._spending: RunSpending | None = None
        self._signing = 0
        self._why, self._why_closed = "", EndReason.LOST
        """Why this process ended the data plane, and what that means for the session."""
        self._retired = False
        """The data plane was told to end."""
        self._number = 0
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._shut = asyncio.Event()
        """The door is closed, or about to be."""
        self._gone = asyncio.Event()
        """The data plane has ended."""
        self._figures: dict[str, Any] = {}
        self._consulting = 0
        self._watch_news: list[dict[str, Any]] = []
        """Reports about questions that came before the endpoint serves."""
        self.hear_news: Callable[[dict[str, Any]], None] = self._keep_news
        """Takes the data plane's reports about questions."""
        self.over = asyncio.Event()
        """The sandbox has ended."""

    # ── as a run sees it ──────────────────────────────────────────────────────────────────────────

    def begin(self, launch: Launch) -> None:
        """Open the log of the session; the data plane opens one of its own before the door."""
        if self._log is None:
            rate = self._own_session.provision.policy.limits.audit_per_second
            audit = self._own_session.places.audit
            self._log = begin_session(self._own_session.id, audit, launch, rate)
        # Before the door is served, so that every served door can be closed.
        self._endpoint = self._claim(self._own_session, self._plane.pid, self._warn)

    def admit(self, door: list[socket.socket]) -> None:
        """Hand the door over. Connections wait in its sockets until the data plane is loaded; if
        that dies first, they are closed."""
        self._pulse, beats = make_heartbeat_pipe()
        published = self._own_session.published
        if published is None:
            self._plane.hand_over(door, beats)
        else:
            self._plane.hand_over([*door, *published.sockets], beats, published.inner_ports)

    async def open(self, ended: Callable[[EndReason], None]) -> None:
        """Wait until the data plane serves the door, which takes a while; then watch over it."""
        loop = self._attend(ended)
        self._opened = loop.create_future()
        self._line = self._plane.attach(loop, self._heard, self._plane_ended)
        if self._endpoint is not None:
            self._endpoint.serve(self)
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), ANSWER_SECONDS)
        except TimeoutError:
            raise _lost("the data plane does not serve the door") from None
        if self._gone.is_set():
            return
        pulse, self._pulse = self._pulse, -1
        self._watch = HeartbeatMonitor(loop, pulse, self._stuck)
        from keyhole.app.session.source_watcher import SourceListener

        told = SourceListener(self._rotated, self._reloaded, self._refused)
        self._follower = SourceFollower(self._own_session.sources(), told, loop)
        self._spending = RunSpending(
            loop,
            self._own_session.places.spending,
            lambda: self.provision.policy,
            lambda spent: self._plane.tell(pack_message(SpendingChanged(spent))),
        )

    def note(self, what: str, **details: str | int) -> None:
        """Record it in this process's log."""
        self._opened_log.record(self._own_session.id, noted_event(what, **details))

    async def close(self, code: int) -> str:
        """Close the door, then the logs; the last digest of this process's covers both."""
        if self._follower is not None:
            self._follower.close()
        if self._watch is not None:
            self._watch.close()
        if self._pulse >= 0:
            os.close(self._pulse)
        head = await self._last_word(code)
        if self._spending is not None:
            self._spending.close()
        if self._spawner is not None:
            self._spawner.close()
        if self._signer is not None:
            self._signer.close()
        last = ""
        if self._log is not None:
            with self._log as log:
                if head is None:
                    why = f"no answer within {FINISH_SECONDS:g} s"
                    log.record(self._own_session.id, refused_event("data-plane-ended", why=why))
                elif is_digest(head):
                    log.join(head)
                self.note("ended", code=code)
                log.finish(self._own_session.id)
            last = log.head()
        self._plane.close()
        if self._own_session.published is not None:
            self._own_session.published.close()
        self._shut.set()
        self.over.set()
        if self._endpoint is not None:
            await self._endpoint.close()
        return last

    async def _last_word(self, code: int) -> str | None:
        """The digest with which the data plane's log ends, empty if there is none; None if the data
        plane does not answer. It has ended, or is about to."""
        if self._line is not None:
            self._line.hear()
        if self.is_served:
            head = await self._finish(code)
            return "" if head is None and self._gone.is_set() else head
        # It reports that it serves before it takes the first connection. Without that report there
        # is nothing to record, and a short command does not wait for it.
        self._closing = True
        self._plane.kill()
        if self._line is not None:
            self._line.close()
        return ""

    # ── as the control endpoint sees it ───────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether the door is open."""
        return not self._shut.is_set()

    @property
    def is_served(self) -> bool:
        """Whether the data plane serves the door."""
        return self._opened is not None and self._opened.done()

    @property
    def is_quiet(self) -> bool:
        """Whether the data plane has not responded for longer than a busy host explains."""
        return self._watch is not None and self._watch.quiet

    @property
    def ports(self) -> tuple[PublishedPort, ...]:
        """The ports that it publishes."""
        published = self._own_session.published
        return published.ports if published is not None else ()

    @property
    def admits(self) -> bool:
        """Whether events can be written to the log."""
        return self._log is not None and self._log.admitting

    @property
    def expires_in(self) -> float:
        """Seconds until the session ends at the latest."""
        return max(0.0, self._born + self.provision.policy.limits.ttl - clock.now())

    def record(self, session: str, event: Event) -> None:
        """Record an event, as long as the log is open."""
        if self._log is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the run is about to end
                self._log.record(session, event)

    async def shut(self, ending: EndReason, by: int) -> bool:
        """Close the door for good, whatever the data plane does. Returns whether it was open."""
        if self._shut.is_set():
            return False
        self._plane.tell(pack_message(CloseDoor(ending.value, by)))
        try:
            await asyncio.wait_for(self._shut.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._end_plane(f"it did not close its door within {CLOSE_SECONDS * 1000:g} ms", ending)
            # The door first: a log that cannot be written must not keep it open.
            self.record(self._own_session.id, session_event("closed", why=ending.value, by=by))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GONE_SECONDS)
        return True

    async def stop(self, by: int) -> None:
        """End the sandbox, and wait until it has ended."""
        if not await self.shut(EndReason.STOPPED, by):
            self._ended(EndReason.STOPPED)
        await self.over.wait()

    async def grant(self, grant: GrantRequest, by: int) -> dict[str, Any]:
        """Allow one more host. Raises Refused."""
        if not self.is_open:
            raise Refused(DOOR_NOT_OPEN)
        return await self._ask(
            lambda number: GrantHost(number, str(grant.host), grant.seconds, grant.uses, by),
            GRANT_SECONDS,
        )

    async def resume(self, by: int) -> None:
        """Let a frozen session go on. Raises Refused."""
        if not self.is_open:
            raise Refused(DOOR_NOT_OPEN)
        await self._ask(lambda number: ResumeSession(number, by), GRANT_SECONDS)

    async def answer(self, ask: str, answer: AnswerRequest, by: int) -> dict[str, Any]:
        """Answer a question. Raises Refused."""
        if not self.is_open:
            raise Refused(DOOR_NOT_OPEN)
        return await self._ask(
            lambda number: AnswerAsk(
                number, ask, answer.answer.value, answer.seconds, by, answer.via
            ),
            GRANT_SECONDS,
        )

    def watch(self, *, answers: bool) -> None:
        """A person is there to answer questions, or no longer."""
        self._plane.tell(pack_message(WatchSession(answers)))

    def follow_news(self, hear: Callable[[dict[str, Any]], None]) -> None:
        """Pass the data plane's reports about questions on, also those that came before."""
        self.hear_news = hear
        kept, self._watch_news = self._watch_news, []
        for each in kept:
            hear(each)

    def _keep_news(self, message: dict[str, Any]) -> None:
        if "asked" in message and len(self._watch_news) < MAX_NEWS:
            self._watch_news.append(message)

    async def figures(self) -> dict[str, Any]:
        """The session's counters, as reported by the data plane."""
        if not self._gone.is_set():
            with contextlib.suppress(Refused):
                self._figures = await self._ask(ReportFigures, LOOK_SECONDS)
        return self._figures

    def reload(self) -> tuple[bool, str]:
        """Read the policy now. Returns whether it changed, or why the old one stays in force. This
        may take long."""
        return self._follower.reload() if self._follower is not None else (False, "")

    def touch(self, reference: str) -> None:
        """Read a changed secret now. This may take long."""
        if self._follower is not None:
            self._follower.touch(reference)

    def _rotated(self, reference: SecretRef, secret: Secret, hidden: tuple[Secret, ...]) -> None:
        self._plane.tell(pack_message(SecretRotated(reference, secret, hidden)))

    def _reloaded(self, provision: Provision) -> None:
        self.stored |= stored_secrets_in(self.provision)
        self.provision = provision
        self._plane.tell(pack_message(PolicyReloaded(packed(provision))))

    def _refused(self, why: str) -> None:
        self._plane.tell(pack_message(ChangeRefused(why)))

    # ── the data plane ────────────────────────────────────────────────────────────────────────────

    async def _ask(self, ask: Callable[[int], RunMessage], seconds: float) -> dict[str, Any]:
        self._number += 1
        number = self._number
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._plane.tell(pack_message(ask(number)))
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise Refused("the data plane does not answer; `keyhole revoke` ends it") from None
        finally:
            del self._asked[number]

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"opened": True} if self._opened is not None and not self._opened.done():
                self._opened.set_result(None)
            case {"failed": str()} if self._opened is not None and not self._opened.done():
                self._opened.set_exception(_lost(data_plane_failure(message)))
            case {"looked": int(number)} | {"granted": int(number)}:
                if number in self._asked and not self._asked[number].done():
                    self._asked[number].set_result(message)
            case {"ungranted": int(number), "why": str(why)}:
                if number in self._asked and not self._asked[number].done():
                    self._asked[number].set_exception(Refused(why))
            case {"sign": int(number), "commit": str(commit)}:
                self._start_signing(number, commit)
            case {"consult": int(number), "ask": dict(ask)}:
                self._start_consulting(number, ask)
            case {"asked": _} | {"decided": _} | {"unsent": _}:
                self.hear_news(message)
            case {"tools": str(service), "seen": list(seen)}:
                self._remember_tools(service, seen)
            case {"judge": True}:
                self._start_judge()
            case {"spent": dict(said)} if self._spending is not None:
                self._spending.heard(said)
            case {"closed": str(why)} if why in tuple(EndReason) and not self._shut.is_set():
                self._figures = message
                self._shut.set()
                self._ended(EndReason(why))
                self._retire()
            case _:
                super()._heard(message)

    def _remember_tools(self, service: str, seen: list[object]) -> None:
        """Remember tools of an MCP server; a disk that is full costs a note in the next session."""
        session = self._own_session
        if grants_tools(self.provision.policy, service):
            with contextlib.suppress(OSError):
                ToolStore(session.places.tools).note(session.policy, service, read_seen(seen))

    def _start_signing(self, number: int, commit: str) -> None:
        """Sign a commit in a thread. Not in an executor, because the loop waits for its threads at
        the end."""
        if self._signing >= MAX_SIGNING:
            self._tell_signed(CommitSigned(number, why="too many signatures are under way"))
            return
        self._signing += 1
        loop, policy = asyncio.get_running_loop(), self.provision.policy

        def work() -> None:
            answer = self._sign(policy, number, commit)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(self._end_signing, answer)

        threading.Thread(target=work, daemon=True).start()

    def _sign(self, policy: Policy, number: int, commit: str) -> CommitSigned:
        from keyhole.app.session.commit_signer import CommitSigner

        try:
            if self._signer is None:
                sources = self._own_session.sources()
                env, writable = sources.provider.env, sources.wanted.writable
                self._signer = CommitSigner(self._own_session.places, env, writable)
            return CommitSigned(number, self._signer.sign(policy, base64.b64decode(commit)))
        except (KeyholeError, OSError, ValueError) as error:
            return CommitSigned(number, why=str(error) or "it cannot be signed")

    def _end_signing(self, answer: CommitSigned) -> None:
        self._signing -= 1
        self._tell_signed(answer)

    def _tell_signed(self, answer: CommitSigned) -> None:
        self._plane.tell(pack_message(answer))

    def _start_consulting(self, number: int, ask: dict[str, Any]) -> None:
        """Run the policy's command for a question in a thread, as commits are signed."""
        from keyhole.app.session.approval_command import run_approval_command

        follower = self._follower
        if self._consulting >= MAX_COMMANDS:
            self._plane.tell(pack_message(CommandAnswered(number, why="too many commands run")))
            return
        self._consulting += 1
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                sources = self._own_session.sources()
                home, env = self._own_session.places.home, sources.provider.env
                examined = follower.examined if follower is not None else sources.stock.examined
                printed = run_approval_command(examined, home, env, ask)
                answer = CommandAnswered(number, printed)
            except (KeyholeError, OSError, ValueError) as error:
                answer = CommandAnswered(number, why=str(error) or "it failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(self._end_consulting, answer)

        threading.Thread(target=work, daemon=True).start()

    def _end_consulting(self, answer: CommandAnswered) -> None:
        self._consulting -= 1
        self._plane.tell(pack_message(answer))

    def _start_judge(self) -> None:
        """Start a judge in this thread, since a judge dies with the thread that started it."""
        from keyhole.judge.judge_process import JudgeSpawner

        spawner = self._spawner = self._spawner or JudgeSpawner()
        try:
            if spawner.count >= MAX_JUDGES:
                raise OSError("too many judges are at work")
            control, pidfd = spawner.start()
        except (OSError, ResourceUnusable) as error:
            self._plane.tell(pack_message(JudgeStarted(str(error))))
            return
        with control:
            if not self._plane.give([control.fileno(), pidfd], pack_message(JudgeStarted())):
                self._plane.tell(pack_message(JudgeStarted("the data plane is too busy")))
        os.close(pidfd)

    def _stuck(self) -> None:
        self._end_plane(f"it did not respond for {STUCK_SECONDS:g} s", EndReason.LOST)

    def _end_plane(self, why: str, ending: EndReason) -> None:
        self._why, self._why_closed = why, ending
        self._shut.set()
        self._plane.kill()

    def _retire(self) -> None:
        """The data plane reports that the door is closed for good: have it finish its log and exit.
        Attack: a data plane that was taken over reports this and goes on."""
        if self._line is None or self._closing:
            return
        self._retired = True
        self._line.say(ended=True)
        asyncio.get_running_loop().call_later(FINISH_SECONDS, self._plane.kill)

    def _plane_ended(self) -> None:
        """The data plane's channel is closed: it has ended, and its sockets with it. Attack: a data
        plane that was taken over closes the channel and goes on serving."""
        self._plane.kill()
        self._shut.set()
        self._gone.set()
        why, ending = self._why or self._plane.cause(), self._why_closed
        told, ends_run = f"the data plane was ended: {why}", False
        if self._opened is not None and not self._opened.done():
            if self._closing:
                self._opened.cancel()
            elif ending is EndReason.LOST:
                self._opened.set_exception(_lost(told))
                ends_run = True  # and gives the reason
            else:
                self._opened.set_result(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Refused("the data plane has ended"))
        if self._retired:
            self._lost("")
            return
        if not self._closing:
            self.record(self._own_session.id, refused_event("data-plane-ended", why=why))
            self._ended(ending)
        if ending is EndReason.LOST:
            told += "; " + REACHES_NOTHING.format(id=self._own_session.id)
        self._lost("" if ends_run else told)

    @property
    def _opened_log(self) -> AuditLog:
        if self._log is None:
            raise RuntimeError("the log is opened before the sandbox starts")
        return self._log


def _lost(why: str) -> SetupFailed:
    return SetupFailed(why, reason=SANDBOX_LOST)
