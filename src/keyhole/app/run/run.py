"""One run: a gateway, a door, a sandbox, and the command in it, while the command lives."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections import deque
from typing import TYPE_CHECKING

import uvloop
from msgspec import Struct

from keyhole.app.run.early_start import FORWARDED, unblock_signals
from keyhole.app.run.exec_listener import ExecTerms, serve_further_commands
from keyhole.app.session.end_reason import EndReason
from keyhole.model.errors import SetupFailed
from keyhole.model.text import visible
from keyhole.sandbox.bwrap.mount_watch import MountWatch
from keyhole.sandbox.files.mount_plan import guarding_targets
from keyhole.system.faults import report_loop_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from keyhole.app.run.run_gateway import RunGateway
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.files.comparison import Finding
    from keyhole.sandbox.interface import Console, RunningSandbox, SandboxNotice, SandboxRuntime

TIMED_OUT = 124
"""The exit code of a command that outlived `limits.ttl`, as timeout(1) has it."""

GRACE_SECONDS = 5.0
"""How long a command that is stopped may take to end by itself."""

MAX_PATH = 1024
"""Characters of a path in an audit event."""


class UnattendedListener(Struct, frozen=True):
    """The listener of a run without a terminal. A signal ends such a run and its command."""

    started: Callable[[RunningSandbox], None]
    closed: Callable[[EndReason], None]
    attach: Callable[[], tuple[int, int]] | None = None
    """Attaches a terminal to its command; None for a container, whose engine does."""


class Run(Struct, frozen=True):
    """The parts of one run. `report` shows the person a line while the command runs."""

    policy: Policy
    session: str
    runtime: SandboxRuntime
    """The runtime that makes its sandbox."""
    post: RunGateway
    """The gateway that serves its door."""
    report: Callable[[str], None]
    warn: Callable[[str], None] | None = None
    """Like `report`, also with `--quiet`; None: as `report`."""
    lasting: UnattendedListener | None = None
    """The listener of an unattended run."""
    runtime_directory: Path | None = None
    """The directory in which `keyhole exec` finds the sandbox; None: it cannot be entered."""
    left: Callable[[], Sequence[Finding]] = tuple
    """Finds, after the command has ended, files that it left and that the host may execute
    (I11)."""


class RunOutcome(Struct, frozen=True):
    """The exit code, and the audit log's last digest."""

    code: int
    session: str
    head: str
    uncovered: str = ""
    """The path that the host replaced and so uncovered inside, which ended the run."""


def execute_run(run: Run) -> RunOutcome:
    """Run to the end on an event loop of its own."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_execute(run))
    finally:
        unblock_signals()
        run.runtime.close()


async def _execute(run: Run) -> RunOutcome:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_loop_fault)
    await run.runtime.ready()
    post, terminal = run.post, run.runtime.terminal
    post.begin(run.runtime.launch)
    code, uncovered, head = 125, "", ""
    opening: asyncio.Task[None] | None = None
    ran = False
    endings: asyncio.Queue[EndReason] = asyncio.Queue()
    door_ends: list[EndReason] = []

    def door_closed(ending: EndReason) -> None:
        door_ends.append(ending)
        endings.put_nowait(ending)

    try:
        # The door is served, or in our hands, before the command exists.
        running = await run.runtime.start(post.admit)
        ran = True
        opening = asyncio.ensure_future(post.open(door_closed))
        stop = functools.partial(door_closed, EndReason.STOPPED) if run.lasting else None
        launch, place = run.runtime.launch, run.runtime_directory
        attach = run.lasting.attach if run.lasting else None
        terms = ExecTerms(run.session, launch, place, post.note, door_ends, attach)
        async with serve_further_commands(running, terms):
            with (
                _signals(loop, running, terminal, stop),
                _covers(run, running, loop) as lost,
                _outside(run, running, loop) as notices,
            ):
                terminal.start(running.is_stopped)
                if run.lasting:
                    run.lasting.started(running)
                code = await _wait(run, running, opening, endings)
        running.close()
        if lost:
            post.note("cover-lost", path=lost[0])
            code, uncovered = 125, lost[0]
        if any(notice.ends for notice in notices):
            code = 125
    finally:
        if opening:
            opening.cancel()
        terminal.close()
        try:
            if ran:
                await _write_down_what_is_left(run)
        finally:
            head = await post.close(code)
    return RunOutcome(code, run.session, head, uncovered)


async def _write_down_what_is_left(run: Run) -> None:
    """Record files that were left, however the run ended (I8, I11)."""
    for finding in await asyncio.to_thread(run.left):
        path = visible(finding.path)[:MAX_PATH]
        run.post.note("host-may-execute", path=path, change=finding.change, why=finding.why)


async def _wait(
    run: Run,
    running: RunningSandbox,
    opening: asyncio.Task[None],
    endings: asyncio.Queue[EndReason],
) -> int:
    ended = asyncio.ensure_future(running.wait())
    closing: asyncio.Task[EndReason] | None = None
    overdue = False
    try:
        await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()  # without a gateway the command would get no answer
        while not ended.done():
            closing = asyncio.ensure_future(endings.get())
            await asyncio.wait((closing, ended), return_when=asyncio.FIRST_COMPLETED)
            if closing.done() and not overdue:
                overdue = _close(run, running, closing.result())
        code = await ended
        return TIMED_OUT if overdue else code
    except BaseException:
        running.kill()
        raise
    finally:
        ended.cancel()
        if closing is not None:
            closing.cancel()


def _close(run: Run, running: RunningSandbox, ending: EndReason) -> bool:
    """The door was closed: end the command or leave it. Returns whether its time limit was
    reached."""
    if run.lasting:
        run.lasting.closed(ending)
    match ending:
        case EndReason.EXPIRED:
            run.report(f"limits.ttl ({run.policy.limits.ttl:g} s) is over: the command is ended")
            running.kill()
            return True
        case EndReason.STOPPED:
            run.report("the session was stopped: the command is ended")
            running.forward(signal.SIGTERM)
            asyncio.get_running_loop().call_later(GRACE_SECONDS, running.kill)
        case EndReason.LOST:
            pass  # the gateway has reported the reason
        case EndReason.IDLE:
            run.report("limits.idle is over: the session is closed, nothing is reached any more")
        case _:
            run.report("the session was revoked: nothing inside reaches anything any more")
    return False


@contextlib.contextmanager
def _covers(
    run: Run, running: RunningSandbox, loop: asyncio.AbstractEventLoop
) -> Iterator[list[str]]:
    """End the run when something that was covered is no longer covered (I1, I11)."""
    lost: list[str] = []

    def end(targets: tuple[str, ...]) -> None:
        lost.extend(targets)
        running.kill()

    def notice(targets: tuple[str, ...]) -> None:
        running.kill()  # at once: the sandbox may keep the loop busy
        loop.call_soon_threadsafe(end, targets)

    targets = guarding_targets(run.runtime.launch.files)
    watch = None
    if running.init:
        try:
            watch = MountWatch(running.init, targets, notice)
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
def _outside(
    run: Run, running: RunningSandbox, loop: asyncio.AbstractEventLoop
) -> Iterator[list[SandboxNotice]]:
    """Report and record what is done to the sandbox from outside, while it runs."""
    notices: list[SandboxNotice] = []
    waiting: deque[SandboxNotice] = deque()

    over = False

    def tell() -> None:
        while waiting and not over:
            notice = waiting.popleft()
            notices.append(notice)
            (run.warn or run.report)(notice.line)
            run.post.note(notice.reason, **notice.details)

    def told(notice: SandboxNotice) -> None:
        waiting.append(notice)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(tell)

    try:
        with running.watch(told):
            yield notices
    finally:
        tell()
        over = True  # the log is about to be closed


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop,
    running: RunningSandbox,
    terminal: Console,
    stop: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Forward signals to the command, or `stop` it; pass a new terminal size on to the pty."""
    for number in FORWARDED:
        forward = functools.partial(running.forward, number)
        loop.add_signal_handler(number, stop or forward)
    loop.add_signal_handler(signal.SIGWINCH, terminal.resize)
    loop.add_signal_handler(signal.SIGCONT, running.resume)
    unblock_signals()
    if terminal.interactive:
        terminal.resize()  # nothing handled it since the pty was made
    try:
        yield
    finally:
        for number in (*FORWARDED, signal.SIGWINCH, signal.SIGCONT):
            loop.remove_signal_handler(number)
