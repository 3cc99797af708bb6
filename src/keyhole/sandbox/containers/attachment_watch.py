"""Watches for foreign containers that are attached to a sandbox.

A user of the engine can start a container in the network, or among the processes, of a holder or of
a sandbox. Its traffic comes through the sandbox's door, so it has the sandbox's identity (I5). The
operator did it, so nothing is ended; but it is reported and recorded. A daemon thread reads the
engine's events over a connection of its own.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.interface import SandboxNotice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.sandbox.containers.engine import ContainerEvents, Engine
    from keyhole.sandbox.containers.engine_values import JoinedNamespaces

_MAX_CHAIN = 8
"""How many containers, each attached to the next, are followed. Real set-ups have two or three."""
_MAX_TOLD = 1024
"""How many foreign containers of one run are reported. A loop that starts them must not fill the
log."""


class AttachmentWatch:
    """Reports each container that is attached to one of `own`, once."""

    def __init__(
        self, engine: Engine, own: Iterable[str], told: Callable[[SandboxNotice], None]
    ) -> None:
        """`own` are the full ids of the holder and the sandbox."""
        self._engine = engine
        self._own = frozenset(own)
        self._told = told
        self._expected: dict[str, JoinedNamespaces] = {}
        """Containers that were created and have not started. They are inspected at creation,
        because one that ends at once may also be removed at once."""
        self._known: set[str] = set()
        self._over = threading.Event()
        self._arrivals: ContainerEvents | None = None
        threading.Thread(target=self._run, name="neighbours", daemon=True).start()

    def close(self) -> None:
        """Stop reporting."""
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
            self._told(SandboxNotice("engine-silent", line))

    def _hear(self, engine: Engine) -> None:
        # Subscribed before the list is made, so that no container is missed in between.
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
        self._told(
            SandboxNotice("foreign-container", line, {"container": found.id, "name": found.name})
        )

    def _foreign(self, engine: Engine, container: str) -> JoinedNamespaces | None:
        """The container's namespaces, if it is foreign and shares one with a container of ours."""
        try:
            found = engine.joined(container)
        except NotInEngine:
            return None  # it has ended, and was removed
        leads = found.id not in self._own and self._leads(engine, found, _MAX_CHAIN)
        return found if leads else None

    def _leads(self, engine: Engine, joined: JoinedNamespaces, steps: int) -> bool:
        """Whether it shares a namespace with a container of ours, directly or through other
        containers. The engine resolves names and shortened ids."""
        for name in joined.others:
            try:
                other = engine.joined(name)
            except NotInEngine:
                continue
            if other.id in self._own or (steps and self._leads(engine, other, steps - 1)):
                return True
        return False
