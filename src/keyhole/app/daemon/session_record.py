"""One session in the control process, and its view in a list.

Kept by `gateway_operations.py` from when a session is prepared to its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from keyhole.control.values import SessionPhase, SessionView

if TYPE_CHECKING:
    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess
    from keyhole.app.daemon.plane_messages import SessionCounters
    from keyhole.app.processes.sandbox_channel import SandboxChannel
    from keyhole.control.peer import Peer
    from keyhole.control.values import SessionRequest


class SessionRecord:
    """One session: its owner, its state, and its last known counters."""

    def __init__(
        self,
        session: str,
        opening: SessionRequest,
        peer: Peer,
        plane: DaemonDataPlaneProcess,
        figures: SessionCounters,
    ) -> None:
        # Not the id that the data plane gave: it must not speak for another session.
        self.id = session
        self.label = opening.label
        self.policy = opening.policy
        self.process = peer.process
        self.pidfd = peer.watch()
        self.opened = int(time.time())
        self.state = SessionPhase.PREPARED
        self.plane = plane
        """The data plane that has it: it never moves to another one."""
        self.namespace = b""
        """The network namespace of its door."""
        self.figures = figures
        self.line: SandboxChannel | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()

    @property
    def served(self) -> bool:
        """Whether its data plane still runs."""
        return not self.plane.gone.is_set()

    def view(self, worker: int) -> SessionView:
        """The session's view for a list, with its worker's number; with a stuck data plane it shows
        the last known counters."""
        told = self.figures
        state = self.state
        if state is SessionPhase.OPEN and self.plane.quiet:
            state = SessionPhase.SILENT
        elif state is SessionPhase.OPEN and told.frozen:
            state = SessionPhase.FROZEN
        return SessionView(
            id=self.id,
            state=state,
            label=self.label,
            policy=self.policy,
            pid=self.process[0],
            opened=self.opened,
            expires=told.expires,
            connections=told.connections if self.served else 0,
            requests=told.requests,
            denied=told.denied,
            up=told.up,
            down=told.down,
            stored=told.stored,
            secrets=told.secrets,
            grants=told.grants if self.state is SessionPhase.OPEN else (),
            budgets=told.budgets,
            worker=worker,
            spent=told.spent,
            unpriced=told.unpriced,
        )
