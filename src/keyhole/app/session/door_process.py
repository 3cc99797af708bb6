"""A process beside a gateway that takes doors for it, as the gateway starts it.

`app/containers/door_receiver.py` and `app/kube/node_agent.py` are such processes. The gateway sends
settings as the first message, and later that its control socket listens; the process reports what
it lacks, and lines for the gateway's log. It ends with the gateway.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
from typing import TYPE_CHECKING, Any

from keyhole.app.processes.child import stay_with_parent
from keyhole.app.processes.sandbox_channel import MAX_MESSAGE, SandboxChannel
from keyhole.app.session.session_register import SUPERVISOR
from keyhole.model.errors import KeyholeError
from keyhole.system.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_WORDS = 1000
"""Characters of a message, which fit into a response of the control socket."""


def run_door_process(
    serve: Callable[[bytes, SandboxChannel, asyncio.Event], Awaitable[None]], failed: str
) -> None:
    """Run as `python -c … LINE`. `serve` gets the first message, the channel to the gateway, and an
    event that is set when the gateway can be asked; it never returns. The line about an error that
    ends it begins with `failed`."""
    if not stay_with_parent():
        return
    # If this gateway dies, the next one ends only processes of this name.
    name_process(SUPERVISOR)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    told = sock.recv(MAX_MESSAGE)
    if told:
        asyncio.run(_run(sock, functools.partial(serve, told), failed))


async def _run(
    sock: socket.socket,
    serve: Callable[[SandboxChannel, asyncio.Event], Awaitable[None]],
    failed: str,
) -> None:
    gone, opened = asyncio.Event(), asyncio.Event()

    def heard(message: dict[str, Any]) -> None:
        if "open" in message:
            opened.set()

    line = SandboxChannel(asyncio.get_running_loop(), sock, heard, gone.set)
    serving = asyncio.ensure_future(serve(line, opened))
    left = asyncio.ensure_future(gone.wait())
    await asyncio.wait((serving, left), return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and (error := serving.exception()):
        why = str(error) if isinstance(error, (OSError, KeyholeError)) else repr(error)
        line.say(say=f"{failed}: {why}"[:MAX_WORDS])
    serving.cancel()
    await asyncio.gather(serving, left, return_exceptions=True)
