"""A run's sandbox by bubblewrap: the helper, the trial of its walls, the start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.app.selftest import probe_walls, refuse_unless_held
from keyhole.app.tried import Remembered, key_of
from keyhole.sandbox.helper import Helper
from keyhole.sandbox.seccomp import build_filter
from keyhole.sandbox.start import Running, start

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.policy.policy import Policy
    from keyhole.sandbox.launch import Launch
    from keyhole.sandbox.terminal import Terminal


class Bubblewrap:
    """Makes one sandbox."""

    def __init__(
        self,
        launch: Launch,
        terminal: Terminal,
        policy: Policy,
        tried: Remembered,
        *,
        force_test: bool = False,
        helper: Helper | None = None,
    ) -> None:
        """`tried` are set-ups whose walls were tried since this boot; `helper` is one that was
        started ahead and told of this launch. Without it, one is started here, by this thread."""
        self.launch = launch
        self.terminal = terminal
        self._policy = policy
        self._tried = tried
        self._force_test = force_test
        self._helper = helper or Helper(launch.fault)
        self._filter: asyncio.Future[bytes] | None = None

    async def ready(self) -> None:
        """Once for each set-up: every known way out, tried from inside, before anything untrusted.

        One that was let go on ahead was tried before.
        """
        loop = asyncio.get_running_loop()
        if self._helper.released:
            self._filter = loop.create_future()
            return
        self._filter = asyncio.ensure_future(loop.run_in_executor(None, build_filter))
        program = await self._filter
        borrows = bool(self._helper.refusal())
        key = key_of(self.launch, program, borrows=borrows)
        if self._force_test or not self._tried.holds(key):
            walls = await probe_walls(self.launch, self._policy, program, borrows=borrows)
            refuse_unless_held(walls)
            self._tried.keep(key)

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> Running:
        """Tell the helper, hand its door over, and see the walls asserted."""
        if self._filter is None:
            raise RuntimeError("the walls are tried first")
        streams = self.terminal.streams
        return await start(self.launch, streams, admit, self._filter, self._helper)

    def close(self) -> None:
        """End the helper, and leave nothing of it."""
        self._helper.close()
