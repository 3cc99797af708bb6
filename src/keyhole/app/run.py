"""One run: a gateway, a door, a sandbox, and the command in it, while the command lives."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from keyhole.app.ahead import FORWARDED, begin_session, let_signals_come
from keyhole.app.selftest import probe_walls, refuse_unless_held
from keyhole.app.session import new_session, session_event
from keyhole.app.tried import Remembered, key_of
from keyhole.model.value import dataclass, field
from keyhole.policy.rulebook import Rulebook
from keyhole.sandbox.covers import CoverWatch
from keyhole.sandbox.files.fileplan import guarding
from keyhole.sandbox.helper import Helper, SetupFailed
from keyhole.sandbox.seccomp import build_filter
from keyhole.sandbox.start import Running, start

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from keyhole.audit.log import AuditLog
    from keyhole.gateway.gateway import Gateway
    from keyhole.gateway.session import Interception
    from keyhole.model.event import Event
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.launch import Launch
    from keyhole.sandbox.terminal import Terminal

TIMED_OUT = 124
"""The exit code of a command that outlived `limits.ttl`, as timeout(1) has it."""

DESCRIPTORS = 20_000
"""Two for each of the gateway's connections, and some for everything else."""


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run needs. `report` shows the person a line while the command runs."""

    policy: Policy
    launch: Launch
    terminal: Terminal
    audit_directory: Path
    tried: Remembered
    """Set-ups whose walls were tried since this boot."""
    force_test: bool
    report: Callable[[str], None]
    session: str = field(default_factory=new_session)
    interception: Callable[[Rulebook], Interception] | None = None
    """What inspects the policy's services; None where it has none."""
    helper: Helper | None = None
    """One that was started ahead and told of this launch."""
    log: AuditLog | None = None
    """Open, with the session begun in it, when the helper was also let go on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended, and the audit log's last digest."""

    code: int
    session: str
    head: str
    uncovered: str = ""
    """What the host replaced and so uncovered inside, which ended the run."""


def execute(run: Run) -> Outcome:
    """Run to the end on an event loop of its own."""
    _raise_descriptor_limit()
    helper = run.helper or Helper(run.launch.fault)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_execute(run, helper))
    finally:
        let_signals_come()
        helper.close()


def _raise_descriptor_limit() -> None:
    """Each connection takes two descriptors; the soft limit of a shell is often 1,024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _execute(run: Run, helper: Helper) -> Outcome:
    loop = asyncio.get_running_loop()
    identifier = run.session
    book = Rulebook(run.policy)
    # Before anything is let go on: a secret that cannot be written stops the run.
    interception = run.interception(book) if run.interception else None
    filter_ready: asyncio.Future[bytes] = loop.create_future()
    log = run.log
    if log is None:
        filter_ready = asyncio.ensure_future(loop.run_in_executor(None, build_filter))
        await _try_walls(run, helper, await filter_ready)
        rate = run.policy.limits.audit_per_second
        log = begin_session(identifier, run.audit_directory, run.launch, rate)
    with log:

        def record(event: Event) -> None:
            log.record(identifier, event)

        doors: list[list[socket.socket]] = []
        gateways: list[Gateway] = []

        async def open_door() -> None:
            await _load_gateway()
            from keyhole.gateway.door import Door
            from keyhole.gateway.gateway import Gateway
            from keyhole.gateway.resolver import SystemResolver
            from keyhole.gateway.session import Session

            session = Session(
                identifier, book, record, lambda: log.admitting, run.report, interception
            )
            gateways.append(Gateway(loop, SystemResolver(loop)))
            gateways[0].open_door(Door(*doors.pop()), session)

        code, uncovered = 125, ""
        opening: asyncio.Task[None] | None = None
        try:
            # The door is ours before the command exists; what connects waits until it is answered.
            running = await start(
                run.launch, run.terminal.streams, doors.append, filter_ready, helper
            )
            opening = asyncio.ensure_future(open_door())
            with _signals(loop, running, run.terminal), _covers(run, running, loop) as lost:
                run.terminal.start(lambda: _is_stopped(running))
                code = await _wait(running, run.policy.limits.ttl, opening)
            running.close()
            if lost:
                record(session_event("cover-lost", path=lost[0]))
                code, uncovered = 125, lost[0]
        finally:
            if opening:
                opening.cancel()
            for gateway in gateways:
                gateway.close()
            if interception is not None and interception.judge is not None:
                interception.judge.close()
            run.terminal.close()
            record(session_event("ended", code=code))
            log.finish(identifier)
    return Outcome(code, identifier, log.head(), uncovered)


async def _load_gateway() -> None:
    """Import the data plane while the command starts on another core.

    In a thread that nobody waits for: the loop sees a short command end before it is done.
    """
    loop = asyncio.get_running_loop()
    loaded = loop.create_future()

    def load() -> None:
        error = None
        try:
            importlib.import_module("keyhole.gateway.gateway")
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(tell, error)

    def tell(error: BaseException | None) -> None:
        if loaded.cancelled():
            return
        if error:
            loaded.set_exception(error)
        else:
            loaded.set_result(None)

    threading.Thread(target=load, daemon=True).start()
    await loaded


async def _try_walls(run: Run, helper: Helper, program: bytes) -> None:
    """Once for each set-up: every known way out, tried from inside, before anything untrusted."""
    borrows = bool(helper.refusal())
    key = key_of(run.launch, program, borrows=borrows)
    if run.force_test or not run.tried.holds(key):
        refuse_unless_held(await probe_walls(run.launch, run.policy, program, borrows=borrows))
        run.tried.keep(key)


async def _wait(running: Running, seconds: float, opening: asyncio.Task[None]) -> int:
    ended = asyncio.ensure_future(running.wait())
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()  # without a gateway the command would only meet silence
            return await ended
    except TimeoutError:
        running.kill()
        await running.wait()
        return TIMED_OUT
    except BaseException:
        running.kill()
        raise
    finally:
        ended.cancel()


@contextlib.contextmanager
def _covers(run: Run, running: Running, loop: asyncio.AbstractEventLoop) -> Iterator[list[str]]:
    """End the run when something that was covered is covered no longer (I1, I11)."""
    lost: list[str] = []

    def end(targets: tuple[str, ...]) -> None:
        lost.extend(targets)
        running.kill()

    def notice(targets: tuple[str, ...]) -> None:
        running.kill()  # at once: the loop may be busy with what the sandbox keeps it busy with
        loop.call_soon_threadsafe(end, targets)

    targets = guarding(run.launch.files)
    watch = None
    if running.init:
        try:
            watch = CoverWatch(running.init, targets, notice)
        except OSError as error:
            if running.lives_on:  # else a short command has ended, and nothing is left to watch
                running.kill()
                raise SetupFailed(f"the mounts inside cannot be watched: {error}") from None
    try:
        yield lost
    finally:
        if watch:
            watch.close()


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, running: Running, terminal: Terminal
) -> Iterator[None]:
    """What is sent to us is meant for the command; a new size is the pty's."""
    for number in FORWARDED:
        loop.add_signal_handler(number, running.forward, number)
    loop.add_signal_handler(signal.SIGWINCH, terminal.resize)
    loop.add_signal_handler(signal.SIGCONT, running.resume)
    let_signals_come()
    if terminal.interactive:
        terminal.resize()  # nobody listened since the pty was made
    try:
        yield
    finally:
        for number in (*FORWARDED, signal.SIGWINCH, signal.SIGCONT):
            loop.remove_signal_handler(number)


def _is_stopped(running: Running) -> bool:
    """Whether the command itself is stopped, as Ctrl-Z does it."""
    pid = running.command_pid()
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state == "T"
