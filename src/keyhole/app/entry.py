"""One session as the control process knows it, and as a person sees it in a list.

Kept by `operations.py` from when a session is prepared to its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from keyhole.control.values import SessionView, State

if TYPE_CHECKING:
    from keyhole.app.calls import Figures
    from keyhole.app.line import Line
    from keyhole.app.planes import Plane
    from keyhole.control.peer import Peer
    from keyhole.control.values import Opening


class Entry:
    """One session: whose it is, where it stands, and its figures as they were last told."""

    def __init__(
        self, session: str, opening: Opening, peer: Peer, plane: Plane, figures: Figures
    ) -> None:
        # Not the id that the data plane gave: it must not speak for another session.
        self.id = session
        self.label = opening.label
        self.policy = opening.policy
        self.process = peer.process
        self.pidfd = peer.watch()
        self.opened = int(time.time())
        self.state = State.PREPARED
        self.plane = plane
        """Which data plane has it: no other one ever will."""
        self.figures = figures
        self.line: Line | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()

    @property
    def served(self) -> bool:
        """Whether its data plane is still there."""
        return not self.plane.gone.is_set()

    def view(self) -> SessionView:
        """For a list; one whose data plane does not turn has the figures that it told last."""
        told = self.figures
        silent = self.state is State.OPEN and self.plane.quiet
        return SessionView(
            id=self.id,
            state=State.SILENT if silent else self.state,
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
            grants=told.grants if self.state is State.OPEN else (),
            budgets=told.budgets,
        )
