"""The endpoints that have sessions of this user: the gateway's socket, and one for each run.

Used by the verbs about sessions. Endpoints are asked in parallel, so that one that does not answer
delays no other; a run that does not answer is closed or ended by killing its processes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.client import (
    SECONDS,
    SILENT,
    ControlClient,
    ControlFailed,
    NoGateway,
    RequestDeclined,
)
from keyhole.control.runs import RUNS, ProcessIdentity, RunRecord, find_runs, socket_of
from keyhole.control.values import AskView, SessionPhase, SessionView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

LIST_SECONDS = 1.0
"""How long a run may take to answer: it lists one session."""

CLOSE_SECONDS = 0.1
"""How long a run may take to close its door before the verb kills its data plane: longer than the
run's own limit, and short enough that everything is closed within 0.2 s."""


STOP_SECONDS = 5.0
"""How long a run that cannot be asked may take to end its command and give the terminal back."""


class ClosedSessions(Struct, frozen=True):
    """The result of closing an endpoint's sessions."""

    closed: int
    ended: bool = False
    """Whether it did not answer, so that its data plane was killed."""


class ControlEndpoint(Struct, frozen=True):
    """One socket of the control API."""

    runtime: Path
    run: RunRecord | None = None
    """None for the gateway, which may have many sessions."""

    def client(self, seconds: float = SECONDS) -> ControlClient:
        """A client for it."""
        if self.run is None:
            return ControlClient(self.runtime, seconds)
        return ControlClient(self.runtime / RUNS, seconds, socket_of(self.run.session))

    def sessions(self) -> list[SessionView]:
        """The endpoint's sessions; none for a run that has ended. Raises ControlFailed for a
        gateway."""
        if self.run is None:
            return self.client().sessions()
        try:
            return self.client(LIST_SECONDS).sessions()
        except NoGateway:
            # Without a socket it cannot be asked, but it may still run.
            return [_unseen(self.run)] if self.run.plane.lives else []
        except ControlFailed:
            return [_unseen(self.run)]

    def asks(self) -> list[AskView]:
        """The questions of its sessions; none for a run that has ended. Raises ControlFailed for a
        gateway."""
        if self.run is None:
            return list(self.client().asks().asks)
        try:
            return list(self.client(LIST_SECONDS).asks().asks)
        except NoGateway:
            return []

    def resume(self, session: str) -> None:
        """Let a frozen session go on. Raises ControlFailed."""
        self.client().resume_session(session)

    def revoke(self, session: str) -> bool:
        """Close one session; returns whether it answered. Raises ControlFailed."""
        if self.run is None:
            self.client().revoke_session(session)
            return True
        try:
            self.client(CLOSE_SECONDS).revoke_session(session)
        except RequestDeclined:
            raise
        except ControlFailed as failed:
            self._end(self.run.plane, failed)
            return False
        return True

    def revoke_all(self) -> ClosedSessions:
        """Close all its sessions. Raises ControlFailed."""
        if self.run is None:
            return ClosedSessions(self.client().revoke_all())
        try:
            return ClosedSessions(self.client(CLOSE_SECONDS).revoke_all())
        except RequestDeclined:
            raise
        except ControlFailed as failed:
            self._end(self.run.plane, failed)
            return ClosedSessions(1, ended=True)

    def stop(self, session: str) -> None:
        """End a session and its sandbox. Raises ControlFailed."""
        if self.run is None:
            self.client().stop_session(session)
            return
        try:
            self.client(LIST_SECONDS).status()
            self.client().stop_session(session)
        except RequestDeclined:
            raise
        except ControlFailed as failed:
            # All its processes end with this one (PDEATHSIG), even if they are stopped.
            self._end(self.run.main, failed, STOP_SECONDS)

    def _end(self, process: ProcessIdentity, failed: ControlFailed, grace: float = 0.0) -> None:
        """Kill a process of a run that could not be asked.

        The queue of a stopped run may be full, or its socket removed. Raises NoGateway if the run
        has ended, and `failed` if the process does not end.
        """
        if failed.reason != SILENT and self.run is not None and not self.run.plane.lives:
            raise NoGateway
        if not process.end(grace):
            raise failed


def find_endpoints(runtime: Path) -> list[ControlEndpoint]:
    """All endpoints; the first is the gateway's, even if none runs. Raises ResourceUnusable."""
    return [
        ControlEndpoint(runtime),
        *(ControlEndpoint(runtime, each) for each in find_runs(runtime)),
    ]


def ask_all(
    endpoints: Sequence[ControlEndpoint], ask: Callable[[ControlEndpoint], T]
) -> list[tuple[ControlEndpoint, T | ControlFailed]]:
    """Ask each in a thread of its own; returns the answers in order."""
    found: list[T | ControlFailed | None] = [None] * len(endpoints)

    def run(number: int) -> None:
        try:
            found[number] = ask(endpoints[number])
        except ControlFailed as error:
            found[number] = error
        except OSError as error:  # no descriptor is left: reported, not skipped
            found[number] = ControlFailed(f"it cannot be asked: {error.strerror}")

    threads = [threading.Thread(target=run, args=(n,)) for n in range(1, len(endpoints))]
    for each in threads:
        each.start()
    if endpoints:
        run(0)
    for each in threads:
        each.join()
    return [(e, f) for e, f in zip(endpoints, found, strict=True) if f is not None]


def _unseen(run: RunRecord) -> SessionView:
    """A view of a run that does not answer, from its lock file."""
    return SessionView(
        id=run.session,
        state=SessionPhase.SILENT,
        label=run.label,
        policy=run.policy,
        pid=run.main.pid,
        opened=run.opened,
        expires=None,
        connections=0,
        requests=0,
        denied=0,
        up=0,
        down=0,
        stored=(),
    )
