"""Two things that asyncio lacks: a `run` that Ctrl-C may interrupt at any moment, and waiting for a
descriptor.

`asyncio.run` makes its loop before it handles Ctrl-C. A KeyboardInterrupt in between leaves a loop
without its sockets, whose finaliser fails, and a coroutine that was never awaited; both print.
Later it may miss a Ctrl-C: a signal that comes just before the loop begins to wait does not end the
wait. Verbs use `run_on_loop`. Processes without a terminal call `asyncio.run` themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

_INTERRUPT = {signal.SIGINT}
_SIGNALS_READ = 64


def run_on_loop(start: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run `start()` to its end. Raises KeyboardInterrupt after Ctrl-C, when the loop is closed.

    `start` is called on the loop, so nothing waits for an `await` that does not come.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)

    async def interruptible() -> T:
        with _woken_by_signals():
            # The runner handles Ctrl-C by now: it cancels this task.
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            try:
                return await start()
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)

    try:
        return asyncio.run(interruptible())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[None]:
    """Let every signal end the loop's wait, so that Python handles it at once."""
    if threading.current_thread() is not threading.main_thread():  # no other handles signals
        yield
        return
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, _SIGNALS_READ)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


async def wait_readable(descriptor: int) -> None:
    """Wait until a descriptor can be read, or has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
