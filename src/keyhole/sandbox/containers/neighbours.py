"""Hears from the engine when somebody attaches a container of their own to a sandbox.

Whoever may use the engine can start a container in the network, or among the processes, of a
holder or of a sandbox. What it asks for comes by the sandbox's door, so it has the sandbox's
identity (I5). It is the operator's doing, so nothing is ended; but it is told and written down. The
engine is heard over a connection of its own, in a thread that nobody waits for.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.containers.engine import EngineFailed, NoSuchThing
from keyhole.sandbox.interface import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.sandbox.containers.engine import Arrivals, Engine, Joined

_MAX_CHAIN = 8
"""Containers that are attached to one another, and followed; more than anybody makes."""
_MAX_TOLD = 1024
"""Foreign containers of one run that are told of: a loop that starts them fills no log."""


class Neighbours:
    """Tells of each container that is attached to one of `own`, once."""

    def __init__(self, engine: Engine, own: Iterable[str], told: Callable[[Notice], None]) -> None:
        """`own` are the full ids of the holder and the sandbox."""
        self._engine = engine
        self._own = frozenset(own)
        self._told = told
        self._expected: dict[str, Joined] = {}
        """Made and not started. Looked at by then: one that ends at once may be removed at once."""
        self._known: set[str] = set()
        self._over = threading.Event()
        self._arrivals: Arrivals | None = None
        threading.Thread(target=self._run, name="neighbours", daemon=True).start()

    def close(self) -> None:
        """Tell no more."""
        self._over.set()
        if self._arrivals is not None:
            self._arrivals.close()

    def _run(self) -> None:
        why = "it hung up"
        try:
            engine = self._engine.another()
            try:
                self._hear(engine)
            finally:
                engine.close()
        except EngineFailed as failed:
            why = str(failed)
        if not self._over.is_set():
            line = (
                f"the engine is heard no longer ({why}): who attaches to this sandbox is not told"
            )
            self._told(Notice("engine-silent", line))

    def _hear(self, engine: Engine) -> None:
        # From before the list is made, so that nobody comes in between.
        since = int(time.time()) - 1
        for container in engine.running():
            if self._over.is_set():
                return
            self._started(engine, container)
        self._arrivals = engine.arrivals(since)
        if self._over.is_set():
            self._arrivals.close()
        for action, container in self._arrivals:
            if self._over.is_set():
                return
            if action == "create":
                if found := self._foreign(engine, container):
                    self._expected[found.id] = found
            elif action == "start":
                self._started(engine, container)

    def _started(self, engine: Engine, container: str) -> None:
        if container in self._own or container in self._known or len(self._known) >= _MAX_TOLD:
            return
        found = self._expected.pop(container, None) or self._foreign(engine, container)
        if found is None:
            return
        self._known.add(found.id)
        line = (
            f"the container {found.name} ({found.id[:12]}) was attached to this sandbox from "
            "outside: whatever it asks for is this sandbox's asking"
        )
        self._told(Notice("foreign-container", line, {"container": found.id, "name": found.name}))

    def _foreign(self, engine: Engine, container: str) -> Joined | None:
        """The container, if it leads to one of ours, and is none of them."""
        try:
            found = engine.joined(container)
        except NoSuchThing:
            return None  # it has ended, and was removed
        leads = found.id not in self._own and self._leads(engine, found, _MAX_CHAIN)
        return found if leads else None

    def _leads(self, engine: Engine, joined: Joined, steps: int) -> bool:
        """Whether it shares with ours, be it by way of others. The engine knows what is meant by a
        name, or by the beginning of an id."""
        for name in joined.others:
            try:
                other = engine.joined(name)
            except NoSuchThing:
                continue
            if other.id in self._own or (steps and self._leads(engine, other, steps - 1)):
                return True
        return False
