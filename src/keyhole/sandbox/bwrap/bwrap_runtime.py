"""A sandbox by bubblewrap: the helper, the trial of its walls, the start.

The caller passes in the function that tries the walls: this module makes sandboxes and judges none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.confine.seccomp import build_filter
from keyhole.sandbox.bwrap.bwrap_start import RunningBubblewrap, start_sandbox
from keyhole.sandbox.bwrap.helper import Helper

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from keyhole.sandbox.bwrap.terminal import Terminal
    from keyhole.sandbox.bwrap.unattended_terminal import UnattendedTerminal
    from keyhole.sandbox.launch import Launch

    TryWalls = Callable[[Launch, bytes, bool], Awaitable[None]]
    """Tries the walls of a set-up, unless they have held since boot. Its arguments are the launch,
    the filter, and whether the namespaces are borrowed. Raises SetupFailed."""


class BubblewrapRuntime:
    """Makes one sandbox."""

    def __init__(
        self,
        launch: Launch,
        terminal: Terminal | UnattendedTerminal,
        try_walls: TryWalls,
        helper: Helper | None = None,
    ) -> None:
        """`helper` is one that was started ahead and told of this launch. Without it, one is
        started here, by this thread."""
        self.launch = launch
        self.terminal = terminal
        self._try_walls = try_walls
        self._helper = helper or Helper(launch.fault)
        self._filter: asyncio.Future[bytes] | None = None

    async def ready(self) -> None:
        """Try the walls, unless the helper was released early: only a set-up that held is."""
        loop = asyncio.get_running_loop()
        if self._helper.released:
            self._filter = loop.create_future()
            return
        self._filter = asyncio.ensure_future(loop.run_in_executor(None, build_filter))
        program = await self._filter
        await self._try_walls(self.launch, program, bool(self._helper.refusal()))

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> RunningBubblewrap:
        """Send the launch to the helper, hand its door over, and wait for the walls to be
        asserted."""
        if self._filter is None:
            raise RuntimeError("the walls are tried first")
        streams = self.terminal.streams
        return await start_sandbox(self.launch, streams, admit, self._filter, self._helper)

    def close(self) -> None:
        """Kill the helper, and release everything."""
        self._helper.close()
