"""The control endpoint of one run: claimed before its door is served, given back at its end.

What serves it is imported while the command runs, in a thread that nobody waits for; whoever asks
earlier waits in the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.owngateway import OwnGateway, Tenancy
    from keyhole.control.runs import RunClaim, RunRecord
    from keyhole.control.server import Server

DELAY_SECONDS = 0.1
"""Before anything is imported for it: most short commands have ended by then."""

_MODULES = ("keyhole.control.server", "keyhole.app.runoperations")


class RunEndpoint:
    """One endpoint."""

    def __init__(self, claim: RunClaim, record: RunRecord) -> None:
        self._claim = claim
        self._record = record
        self._task: asyncio.Task[None] | None = None
        self._server: Server | None = None

    @classmethod
    def claim(cls, tenancy: Tenancy, plane: int, warn: Callable[[str], None]) -> RunEndpoint | None:
        """Take the place; None, and a line that says why, where there is none to be had."""
        from keyhole.control.place import Unusable
        from keyhole.control.runs import Process, RunRecord, claim_run

        main = Process.of(os.getpid())
        record = RunRecord(
            tenancy.id,
            tenancy.label,
            str(tenancy.policy),
            int(time.time()),
            main,
            Process.of(plane),
        )
        try:
            return cls(claim_run(tenancy.places.runtime, record), record)
        except Unusable as error:
            warn(f"`keyhole ps` and `keyhole revoke` do not know this run: {error}")
            return None

    def serve(self, gateway: OwnGateway) -> None:
        """Answer for this gateway from now on."""
        self._task = asyncio.ensure_future(self._serve(gateway))

    async def close(self) -> None:
        """Let the last answers leave, and remove the socket."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._server is not None:
            await self._server.close()
            return
        self._claim.release()

    async def _serve(self, gateway: OwnGateway) -> None:
        await asyncio.sleep(DELAY_SECONDS)
        await _load(_MODULES)
        from keyhole.app.runoperations import RunOperations
        from keyhole.control.server import Server

        operations = RunOperations(gateway, self._record)
        loop = asyncio.get_running_loop()
        self._server = Server(loop, self._claim, self._claim.listener, operations)


async def _load(modules: tuple[str, ...]) -> None:
    """Import modules beside the loop. Not in an executor, whose threads are waited for at the end:
    the loop sees a short command end before it is done."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[None] = loop.create_future()

    def load() -> None:
        error = None
        try:
            for each in modules:
                importlib.import_module(each)
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
