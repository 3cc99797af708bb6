"""The control endpoint of one run: claimed before its door is served, released at its end.

Its server is imported while the command runs, in a daemon thread; an earlier client waits in the
socket's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
import time
from typing import TYPE_CHECKING

from keyhole.control.runs import ProcessIdentity, RunRecord, claim_run
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.run.own_gateway import OwnGateway, OwnGatewaySession
    from keyhole.app.run.run_operations import RunOperations
    from keyhole.control.runs import RunClaim
    from keyhole.control.server import ControlServer

DELAY_SECONDS = 0.1
"""Delay before its modules are imported: most short commands have ended by then."""

_MODULES = ("keyhole.control.server", "keyhole.app.run.run_operations")


class RunEndpoint:
    """The control endpoint of one run."""

    def __init__(self, claim: RunClaim, record: RunRecord) -> None:
        self._claim = claim
        self._record = record
        self._task: asyncio.Task[None] | None = None
        self._server: ControlServer | None = None
        self._operations: RunOperations | None = None

    @classmethod
    def claim(
        cls, own_session: OwnGatewaySession, plane: int, warn: Callable[[str], None]
    ) -> RunEndpoint | None:
        """Claim the socket; None, after a line with the reason, when that fails."""
        main = ProcessIdentity.of(os.getpid())
        record = RunRecord(
            own_session.id,
            own_session.label,
            str(own_session.policy),
            int(time.time()),
            main,
            ProcessIdentity.of(plane),
        )
        try:
            return cls(claim_run(own_session.places.runtime, record), record)
        except ResourceUnusable as error:
            warn(f"`keyhole ps`, `revoke` and `exec` do not know this run: {error}")
            return None

    def serve(self, gateway: OwnGateway) -> None:
        """Answer for this gateway from now on."""
        self._task = asyncio.ensure_future(self._serve(gateway))

    async def close(self) -> None:
        """Send the last answers, and remove the socket."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._operations is not None:
            self._operations.close()
        if self._server is not None:
            await self._server.close()
            return
        self._claim.release()

    async def _serve(self, gateway: OwnGateway) -> None:
        await asyncio.sleep(DELAY_SECONDS)
        await _load(_MODULES)
        from keyhole.app.run.run_operations import RunOperations
        from keyhole.control.server import ControlServer

        operations = self._operations = RunOperations(gateway, self._record)
        loop = asyncio.get_running_loop()
        self._server = ControlServer(loop, self._claim, self._claim.listener, operations)


async def _load(modules: tuple[str, ...]) -> None:
    """Import modules beside the loop. Not in an executor, because the loop waits for its threads at
    the end; a short command ends sooner."""
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
