"""One run: a gateway, a door, a sandbox, and the command in it, while the command lives."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections import deque
from typing import TYPE_CHECKING

import uvloop

from keyhole.app.ahead import FORWARDED, let_signals_come
from keyhole.app.ending import Ending
from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox.covers import CoverWatch
from keyhole.sandbox.files.fileplan import guarding
from keyhole.sandbox.helper import SetupFailed
from keyhole.system.faults import report_loop_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyhole.app.post import Post
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.files.comparison import Finding
    from keyhole.sandbox.interface import Console, Notice, Running, Runtime

TIMED_OUT = 124
"""The exit code of a command that outlived `limits.ttl`, as timeout(1) has it."""

GRACE_SECONDS = 5.0
"""How long a command that is stopped may take to end by itself."""

MAX_PATH = 1024
"""Characters of a path in an audit event."""


@dataclass(frozen=True, slots=True)
class Lasting:
    """Who hears of a run that nobody sits in front of. A signal then ends it, command and all."""

    started: Callable[[Running], None]
    closed: Callable[[Ending], None]


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run needs. `report` shows the person a line while the command runs."""

    policy: Policy
    session: str
    runtime: Runtime
    """Who makes its sandbox."""
    post: Post
    """Who serves its door."""
    report: Callable[[str], None]
    warn: Callable[[str], None] | None = None
    """The same for what a quiet person must read, too; None: as `report`."""
    lasting: Lasting | None = None
    """For one that nobody sits in front of."""
    left: Callable[[], Sequence[Finding]] = tuple
    """Looks, after the command has ended, for what it left that the host may execute (I11)."""


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
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_execute(run))
    finally:
        let_signals_come()
        run.runtime.close()


async def _execute(run: Run) -> Outcome:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_loop_fault)
    await run.runtime.ready()
    post, terminal = run.post, run.runtime.terminal
    post.begin(run.runtime.launch)
    code, uncovered, head = 125, "", ""
    opening: asyncio.Task[None] | None = None
    ran = False
    endings: asyncio.Queue[Ending] = asyncio.Queue()
    try:
        # The door is served, or in our hands, before the command exists.
        running = await run.runtime.start(post.admit)
        ran = True
        opening = asyncio.ensure_future(post.open(endings.put_nowait))
        stop = functools.partial(endings.put_nowait, Ending.STOPPED) if run.lasting else None
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
    return Outcome(code, run.session, head, uncovered)


async def _write_down_what_is_left(run: Run) -> None:
    """However the run ended: a command that breaks it leaves no less behind (I8, I11)."""
    for finding in await asyncio.to_thread(run.left):
        path = visible(finding.path)[:MAX_PATH]
        run.post.note("host-may-execute", path=path, change=finding.change, why=finding.why)


async def _wait(
    run: Run, running: Running, opening: asyncio.Task[None], endings: asyncio.Queue[Ending]
) -> int:
    ended = asyncio.ensure_future(running.wait())
    closing: asyncio.Task[Ending] | None = None
    overdue = False
    try:
        await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()  # without a gateway the command would only meet silence
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


def _close(run: Run, running: Running, ending: Ending) -> bool:
    """The door was closed: what that means for the command. True: its time was over."""
    if run.lasting:
        run.lasting.closed(ending)
    match ending:
        case Ending.EXPIRED:
            run.report(f"limits.ttl ({run.policy.limits.ttl:g} s) is over: the command is ended")
            running.kill()
            return True
        case Ending.STOPPED:
            run.report("the session was stopped: the command is ended")
            running.forward(signal.SIGTERM)
            asyncio.get_running_loop().call_later(GRACE_SECONDS, running.kill)
        case Ending.LOST:
            pass  # the gateway has said what happened
        case Ending.IDLE:
            run.report("limits.idle is over: the session is closed, nothing is reached any more")
        case _:
            run.report("the session was revoked: nothing inside reaches anything any more")
    return False


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

    targets = guarding(run.runtime.launch.files)
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
def _outside(run: Run, running: Running, loop: asyncio.AbstractEventLoop) -> Iterator[list[Notice]]:
    """Say and write down what is done to the sandbox from outside, while it runs."""
    notices: list[Notice] = []
    waiting: deque[Notice] = deque()

    over = False

    def tell() -> None:
        while waiting and not over:
            notice = waiting.popleft()
            notices.append(notice)
            (run.warn or run.report)(notice.line)
            run.post.note(notice.reason, **notice.details)

    def told(notice: Notice) -> None:
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
    running: Running,
    terminal: Console,
    stop: Callable[[], None] | None = None,
) -> Iterator[None]:
    """What is sent to us is meant for the command, or to `stop` it; a new size is the pty's."""
    for number in FORWARDED:
        forward = functools.partial(running.forward, number)
        loop.add_signal_handler(number, stop or forward)
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
