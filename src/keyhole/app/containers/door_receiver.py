"""The door receiver: a process beside a gateway in a container, for a sandbox of another tool.

It does what `keyhole run` does for a gateway on a host: it takes the door from the holder, opens a
session for it over the control socket, hands the door over, and keeps the connection open that
keeps the holder alive. It calls no engine: a compose file describes holder and sandbox, which share
only volumes with the gateway. It holds no secret, and dies with the gateway; then its connection
closes, the holder ends, and with it every process of the sandbox (I2).

One door at a time, each with a session, a CA and placeholders of its own. The socket for the next
registration is made when the last door is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from keyhole.app.containers.door_receiver_client import ExpectedSandbox
from keyhole.app.containers.sandbox_files import SandboxFilesWriter
from keyhole.app.run.daemon_gateway import AttachedSession
from keyhole.app.session.door_process import MAX_WORDS, run_door_process
from keyhole.app.session.end_reason import EndReason
from keyhole.control.client import ControlClient
from keyhole.model.errors import KeyholeError, ResourceUnusable, SetupFailed
from keyhole.sandbox.containers.interface_watch import InterfaceWatch
from keyhole.sandbox.containers.registration import (
    DoorRegistration,
    cookie_of,
    receive_door,
    refuse_other_network,
)
from keyhole.sandbox.handover import SETUP_SECONDS, TOOK_TOO_LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.containers.sandbox_files import SandboxFiles
    from keyhole.app.processes.sandbox_channel import SandboxChannel
    from keyhole.app.setup.host_paths import HostPaths

NO_DOOR = "no door is registered"
REVOKED = "its session was closed; it stays so until the door is restarted"
PAUSE_SECONDS = 1.0
"""Pause after a door that was refused, so that a holder which is restarted at once does not
loop."""


class DoorReceiver:
    """Takes one door after another until the gateway has ended."""

    def __init__(self, expected: ExpectedSandbox, places: HostPaths, line: SandboxChannel) -> None:
        self._expected = expected
        self._line = line
        self._client = ControlClient(places.runtime)
        self._files_writer = SandboxFilesWriter(expected, places, dict(os.environ))

    async def serve(self, opened: asyncio.Event) -> None:
        """Never returns; raises OSError or ResourceUnusable where it cannot work at all.

        `opened` is set when the gateway can be asked.
        """
        await asyncio.to_thread(self._files_writer.prepare)
        await opened.wait()
        why = ""
        while True:
            self._lacks(f"{NO_DOOR}; the last one was not taken: {why}" if why else NO_DOOR)
            control = await DoorRegistration(self._expected.door).accept()
            with control:
                try:
                    await self._serve(control)
                    why = ""
                    continue
                except ResourceUnusable:
                    raise  # a program that is missing now is missing for every later door
                except KeyholeError as error:
                    why = str(error)
            self._say(f"a door was not taken: {why}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _serve(self, control: socket.socket) -> None:
        # 1. The door, from a peer in its network (I5).
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                handed = await receive_door(control)
        except TimeoutError:
            raise SetupFailed(TOOK_TOO_LONG) from None
        endings: asyncio.Queue[EndReason] = asyncio.Queue()
        door = handed.door
        try:
            refuse_other_network(control, door)
            # 2. A session for it, under the policy as it is accepted now.
            session_files = await asyncio.to_thread(self._files_writer.open, self._client)
            cookie = cookie_of(control)
        except BaseException:
            for each in (*door, handed.links):
                each.close()
            raise
        post = AttachedSession(self._client, session_files.opened, session_files.ttl, self._say)
        watch = InterfaceWatch(handed.links, self._added(control, post))
        try:
            # 3. It is served before anything may be started behind it (I2).
            await asyncio.to_thread(post.admit, door)
            await post.open(endings.put_nowait)
            session_files.place(handed.namespace, cookie)
            self._lacks("")
            # 4. Until either side hangs up.
            await self._hold(control, endings, session_files)
        finally:
            session_files.withdraw()
            self._lacks(NO_DOOR)
            watch.close()
            control.close()  # so the holder ends, and with it the sandbox
            await post.close(0)

    async def _hold(
        self, control: socket.socket, endings: asyncio.Queue[EndReason], session_files: SandboxFiles
    ) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(control, over.set)
        left = asyncio.ensure_future(over.wait())
        closing: asyncio.Task[EndReason] | None = None
        try:
            while not left.done():
                closing = asyncio.ensure_future(endings.get())
                await asyncio.wait((closing, left), return_when=asyncio.FIRST_COMPLETED)
                if not closing.done():
                    return
                if closing.result() in (EndReason.EXPIRED, EndReason.STOPPED, EndReason.LOST):
                    return
                # Cut off: processes inside go on without the network, and nothing is restarted.
                session_files.close()
                self._lacks(REVOKED)
        finally:
            loop.remove_reader(control)
            left.cancel()
            if closing is not None:
                closing.cancel()

    def _added(self, control: socket.socket, post: AttachedSession) -> Callable[[str], None]:
        """Returns a callback that ends a sandbox whose network is no longer empty (I2). It may be
        called from any thread."""
        loop = asyncio.get_running_loop()

        def added(name: str) -> None:
            # The holder ends when its connection is closed, and with it the sandbox.
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            line = f"an interface ({name}) was put into the sandbox's network: it is ended"
            loop.call_soon_threadsafe(self._say, line)
            loop.call_soon_threadsafe(lambda: post.note("interface-added", interface=name))

        return added

    def _lacks(self, why: str) -> None:
        self._line.say(lacks=why[:MAX_WORDS])

    def _say(self, line: str) -> None:
        self._line.say(say=line[:MAX_WORDS])


def main() -> None:
    """Run by the gateway; the first message is its `ExpectedSandbox`."""
    run_door_process(_serve, "no door can be taken")


async def _serve(told: bytes, line: SandboxChannel, opened: asyncio.Event) -> None:
    await DoorReceiver(*ExpectedSandbox.read(told), line).serve(opened)


if __name__ == "__main__":
    main()
