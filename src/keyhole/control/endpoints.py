"""Every place where sessions of this user can be asked for: the gateway's socket, and each run's.

Used by the verbs that speak of sessions. Endpoints are asked side by side, so that one that does
not answer keeps nobody waiting; a run that does not answer is closed or ended by its processes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.control.client import SECONDS, Client, ControlFailed, Declined, NoGateway, Silent
from keyhole.control.runs import RUNS, Process, RunRecord, find_runs, socket_of
from keyhole.control.values import SessionView, State
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

LIST_SECONDS = 1.0
"""How long a run may take to say what it does: it lists one session."""

CLOSE_SECONDS = 0.1
"""How long a run may take to close its door before its data plane is ended from here: longer than
the run itself gives it, and so short that all is closed within 0.2 s."""


STOP_SECONDS = 5.0
"""How long a run that cannot be asked may take to end its command and give the terminal back."""


@dataclass(frozen=True, slots=True)
class Closed:
    """What became of an endpoint's sessions."""

    closed: int
    ended: bool = False
    """It did not answer, and its data plane was ended."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place to ask."""

    runtime: Path
    run: RunRecord | None = None
    """None: the gateway's, which may have many sessions."""

    def client(self, seconds: float = SECONDS) -> Client:
        """Asks there."""
        if self.run is None:
            return Client(self.runtime, seconds)
        return Client(self.runtime / RUNS, seconds, socket_of(self.run.session))

    def sessions(self) -> list[SessionView]:
        """What it has; a run that has ended has none. Raises ControlFailed for a gateway."""
        if self.run is None:
            return self.client().sessions()
        try:
            return self.client(LIST_SECONDS).sessions()
        except NoGateway:
            # Without a socket it cannot be asked, but it may still be there.
            return [_unseen(self.run)] if self.run.plane.lives else []
        except ControlFailed:
            return [_unseen(self.run)]

    def revoke(self, session: str) -> bool:
        """Close one session; whether it answered. Raises ControlFailed."""
        if self.run is None:
            self.client().revoke_session(session)
            return True
        try:
            self.client(CLOSE_SECONDS).revoke_session(session)
        except Declined:
            raise
        except ControlFailed as failed:
            self._end(self.run.plane, failed)
            return False
        return True

    def revoke_all(self) -> Closed:
        """Close all that it has. Raises ControlFailed."""
        if self.run is None:
            return Closed(self.client().revoke_all())
        try:
            return Closed(self.client(CLOSE_SECONDS).revoke_all())
        except Declined:
            raise
        except ControlFailed as failed:
            self._end(self.run.plane, failed)
            return Closed(1, ended=True)

    def stop(self, session: str) -> None:
        """End a session and its sandbox. Raises ControlFailed."""
        if self.run is None:
            self.client().stop_session(session)
            return
        try:
            self.client(LIST_SECONDS).status()
            self.client().stop_session(session)
        except Declined:
            raise
        except ControlFailed as failed:
            # Everything of it ends with this process (PDEATHSIG), stopped or not.
            self._end(self.run.main, failed, STOP_SECONDS)

    def _end(self, process: Process, failed: ControlFailed, grace: float = 0.0) -> None:
        """End a process of a run that could not be asked, however that failed: the queue of a run
        that is stopped may be full, or its socket removed. Raises NoGateway where the run has
        ended, and `failed` where the process does not end."""
        if not isinstance(failed, Silent) and self.run is not None and not self.run.plane.lives:
            raise NoGateway
        if not process.end(grace):
            raise failed


def find_endpoints(runtime: Path) -> list[Endpoint]:
    """All of them, the gateway's first, whether or not there is one. Raises Unusable."""
    return [Endpoint(runtime), *(Endpoint(runtime, each) for each in find_runs(runtime))]


def ask_all(
    endpoints: Sequence[Endpoint], ask: Callable[[Endpoint], T]
) -> list[tuple[Endpoint, T | ControlFailed]]:
    """Ask each in a thread of its own; what each said, in their order."""
    found: list[T | ControlFailed | None] = [None] * len(endpoints)

    def run(number: int) -> None:
        try:
            found[number] = ask(endpoints[number])
        except ControlFailed as error:
            found[number] = error
        except OSError as error:  # no descriptor is left: it is told, not passed over
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
    """What is known of a run that does not answer."""
    return SessionView(
        id=run.session,
        state=State.SILENT,
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
