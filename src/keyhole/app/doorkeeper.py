"""The doorkeeper: a process beside a gateway in a container, for a sandbox that others make.

It is to that gateway what `keyhole run` is to one on a host: it takes the door from the holder,
opens a session for it over the control socket, hands the door over, and holds the connection on
which the holder lives. Nothing is asked of an engine: holder and sandbox are described in a compose
file, and meet the gateway in volumes alone. It holds no secret, and dies with the gateway; with its
connection the holder ends, and with that every process of the sandbox (I2).

One door at a time, each with a session, a CA and placeholders of its own. The socket on which the
next one registers is made when the last one is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from keyhole.app.attached import Attached
from keyhole.app.companion import stay_with_parent
from keyhole.app.doorway import Expected
from keyhole.app.ending import Ending
from keyhole.app.furniture import Furniture
from keyhole.app.leftovers import SUPERVISOR
from keyhole.app.line import MAX_MESSAGE, Line
from keyhole.app.policyfile import Unreadable
from keyhole.control.client import Client, ControlFailed
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.containers.links import LinkWatch
from keyhole.sandbox.containers.registration import (
    Registration,
    cookie_of,
    receive,
    refuse_elsewhere,
)
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SETUP_SECONDS, TOOK_TOO_LONG, SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.sandbox.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.furniture import Furnishing
    from keyhole.app.places import Places

NO_DOOR = "no door is registered"
REVOKED = "its session was closed; it stays so until the door is made anew"
PAUSE_SECONDS = 1.0
"""After a door that was not taken: a holder that is started at once is not refused all the time."""


MAX_WORDS = 1000
"""Characters of what is said, as an answer of the control socket has room for."""


class Doorkeeper:
    """Takes one door after the other until the gateway is gone."""

    def __init__(self, expected: Expected, places: Places, line: Line) -> None:
        self._expected = expected
        self._line = line
        self._client = Client(places.runtime)
        self._furniture = Furniture(expected, places, dict(os.environ))

    async def serve(self, opened: asyncio.Event) -> None:
        """Never returns; raises OSError or Missing where it cannot be of use at all.

        `opened` is when the gateway can be asked.
        """
        await asyncio.to_thread(self._furniture.prepare)
        await opened.wait()
        why = ""
        while True:
            self._lacks(f"{NO_DOOR}; the last one was not taken: {why}" if why else NO_DOOR)
            control = await Registration(self._expected.door).accept()
            with control:
                try:
                    await self._serve(control)
                    why = ""
                    continue
                except PolicyFaults as error:
                    why = "; ".join(each.render().partition("\n")[0] for each in error.faults)
                except (Refused, Unreadable, ControlFailed, SetupFailed) as error:
                    why = str(error)
            self._say(f"a door was not taken: {why}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _serve(self, control: socket.socket) -> None:
        # 1. The door, from who is in its network (I5).
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                handed = await receive(control)
        except TimeoutError:
            raise SetupFailed(TOOK_TOO_LONG) from None
        endings: asyncio.Queue[Ending] = asyncio.Queue()
        door = handed.door
        try:
            refuse_elsewhere(control, door)
            # 2. A session for it, under the policy as it is accepted now.
            furnishing = await asyncio.to_thread(self._furniture.open, self._client)
            cookie = cookie_of(control)
        except BaseException:
            for each in (*door, handed.links):
                each.close()
            raise
        post = Attached(self._client, furnishing.opened, furnishing.ttl, self._say)
        watch = LinkWatch(handed.links, self._added(control, post))
        try:
            # 3. It is served before anything may be started behind it (I2).
            await asyncio.to_thread(post.admit, door)
            await post.open(endings.put_nowait)
            furnishing.place(handed.namespace, cookie)
            self._lacks("")
            # 4. Until one of both hangs up.
            await self._hold(control, endings, furnishing)
        finally:
            furnishing.withdraw()
            self._lacks(NO_DOOR)
            watch.close()
            control.close()  # so the holder ends, and with it the sandbox
            await post.close(0)

    async def _hold(
        self, control: socket.socket, endings: asyncio.Queue[Ending], furnishing: Furnishing
    ) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(control, over.set)
        left = asyncio.ensure_future(over.wait())
        closing: asyncio.Task[Ending] | None = None
        try:
            while not left.done():
                closing = asyncio.ensure_future(endings.get())
                await asyncio.wait((closing, left), return_when=asyncio.FIRST_COMPLETED)
                if not closing.done():
                    return
                if closing.result() in (Ending.EXPIRED, Ending.STOPPED, Ending.LOST):
                    return
                # Cut off: what runs there goes on without, and nothing is started anew.
                furnishing.close()
                self._lacks(REVOKED)
        finally:
            loop.remove_reader(control)
            left.cancel()
            if closing is not None:
                closing.cancel()

    def _added(self, control: socket.socket, post: Attached) -> Callable[[str], None]:
        """End the sandbox whose network is no longer empty (I2); from any thread."""
        loop = asyncio.get_running_loop()

        def added(name: str) -> None:
            # The holder hangs up when it hears nobody, and so does what waits for it to.
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
    """The process: `python -c … LINE`; what is expected comes as the first message."""
    if not stay_with_parent():
        return
    # A gateway that comes after one that died ends processes of this name alone.
    name_process(SUPERVISOR)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    told = sock.recv(MAX_MESSAGE)
    if told:
        asyncio.run(_main(sock, *Expected.read(told)))


async def _main(sock: socket.socket, expected: Expected, places: Places) -> None:
    gone, opened = asyncio.Event(), asyncio.Event()

    def heard(message: dict[str, Any]) -> None:
        if "open" in message:
            opened.set()

    line = Line(asyncio.get_running_loop(), sock, heard, gone.set)
    serving = asyncio.ensure_future(Doorkeeper(expected, places, line).serve(opened))
    left = asyncio.ensure_future(gone.wait())
    await asyncio.wait((serving, left), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        try:
            serving.result()
        except (OSError, Missing) as error:
            line.say(say=f"no door can be taken: {error}")
    serving.cancel()
    await asyncio.gather(serving, left, return_exceptions=True)


if __name__ == "__main__":
    main()
