"""A named sandbox that runs, for the verbs that enter it: its engine, and whether it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import SandboxState
from keyhole.cli.sandbox_rows import SandboxRow
from keyhole.control.client import ControlClient, ControlFailed
from keyhole.model.errors import Refused
from keyhole.sandbox.containers.container_spec import SESSION_LABEL
from keyhole.sandbox.containers.engine import Engine

if TYPE_CHECKING:
    from keyhole.app.containers.named_sandbox import NamedSandbox, SandboxLifecycle, SandboxRecord
    from keyhole.app.setup.host_paths import HostPaths


def open_engine(record: SandboxRecord, life: SandboxLifecycle) -> Engine:
    """The engine of a sandbox, after a check that the container is the one that was started."""
    engine = Engine(record.engine)
    state = engine.state(life.container)
    if not state.running or state.labels.get(SESSION_LABEL) != life.session:
        raise Refused(f"{record.name} has just ended; `keyhole start {record.name}` starts it")
    return engine


def is_closed(named: NamedSandbox, places: HostPaths) -> bool:
    """Whether no gateway serves its door any more."""
    found = SandboxRow.of(named)
    if found.shared:
        try:
            found = found.at(ControlClient(places.runtime).sessions())
        except ControlFailed:
            found = found.at(())
    return found.state is SandboxState.CLOSED
