"""Listens for `keyhole exec` while a sandbox runs.

Most runs are never asked, so the module that answers is imported at the first request.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.exec_socket import claim_exec_socket
from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.files.mount_plan import Bind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from keyhole.app.run.exec_endpoint import ExecEndpoint
    from keyhole.app.session.end_reason import EndReason
    from keyhole.sandbox.interface import RunningSandbox
    from keyhole.sandbox.launch import Launch


class ExecTerms(Struct, frozen=True):
    """The run, as its further commands need it."""

    session: str
    launch: Launch
    runtime: Path | None
    """The directory in which the verb finds the sandbox; None: it cannot be entered."""
    note: Callable[..., None]
    """Records an event."""
    door_ends: Sequence[EndReason]
    """Why the door was closed, once it was."""
    attach: Callable[[], tuple[int, int]] | None = None
    """Attaches a terminal to the first command of an unattended run."""


@contextlib.asynccontextmanager
async def serve_further_commands(running: RunningSandbox, terms: ExecTerms) -> AsyncIterator[None]:
    """Answer while the block lasts. For a container it does nothing: its engine is asked."""
    commands, init = running.commands, running.init
    claim = None
    if commands is not None and init is not None and terms.runtime is not None:
        # If the directory cannot be used, the run has said that no verb knows it.
        with contextlib.suppress(ResourceUnusable, OSError):
            claim = claim_exec_socket(terms.runtime, terms.session)
    if claim is None or commands is None or init is None:
        yield
        return
    trees = tuple(e.target for e in terms.launch.files if isinstance(e, Bind) and e.writable)
    endpoint: ExecEndpoint | None = None

    def closed() -> str:
        return f"its session is closed ({terms.door_ends[0]})" if terms.door_ends else ""

    def accept() -> None:
        nonlocal endpoint
        from keyhole.app.run.exec_endpoint import ExecEndpoint, ExecSandbox

        if endpoint is None:
            sandbox = ExecSandbox(
                commands,
                init,
                terms.launch.directory,
                trees,
                terms.note,
                closed,
                terms.attach,
            )
            endpoint = ExecEndpoint(sandbox)
        with contextlib.suppress(OSError):
            endpoint.take(claim.listener.accept()[0])

    loop = asyncio.get_running_loop()
    loop.add_reader(claim.listener, accept)
    try:
        yield
    finally:
        loop.remove_reader(claim.listener)
        claim.release()
        if endpoint is not None:
            await endpoint.close()
