"""A named sandbox as `keyhole ps` shows it, from its record on disk and from its gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.containers.named_sandbox import SandboxState
from keyhole.cli.amounts import moment
from keyhole.control.values import SessionPhase as Door
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.app.containers.named_sandbox import NamedSandbox
    from keyhole.control.values import SessionView


class SandboxRow(Struct, frozen=True):
    """One row."""

    name: str
    state: SandboxState
    session: str
    """The session, if it runs."""
    shared: bool
    since: int | None
    """When it was started, if it runs."""
    code: str
    """The command's exit code, if it has ended."""
    runtime: str = "?"
    image: str = "?"
    policy: str = "?"
    pid: int | None = None

    @classmethod
    def of(cls, named: NamedSandbox) -> SandboxRow:
        """The row, as far as it is known without a gateway."""
        state, life = named.state(), named.life()
        lives = state is not SandboxState.STOPPED
        ended = "" if lives or life.code is None else str(life.code)
        found = cls(
            named.name,
            state,
            life.session if lives else "",
            life.shared,
            life.since if lives else None,
            ended,
            pid=life.pid if lives else None,
        )
        try:
            record = named.record()
        except Refused:
            return found
        return replace(found, runtime=record.runtime, image=record.image, policy=record.policy)

    def at(self, sessions: Sequence[SessionView]) -> SandboxRow:
        """The same, closed if its gateway does not serve it: it has died, or revoked it."""
        if self.state is not SandboxState.RUNNING or not self.shared:
            return self
        served = any(each.id == self.session and each.state is Door.OPEN for each in sessions)
        return self if served else replace(self, state=SandboxState.CLOSED)

    def as_json(self) -> dict[str, object]:
        """The row for scripts; its id is that of its session while it runs, otherwise its name."""
        return {
            "id": self.session or self.name,
            "name": self.name,
            "state": str(self.state),
            "exit": int(self.code) if self.code else None,
            "runtime": self.runtime,
            "image": self.image or None,
            "policy": self.policy,
            "pid": self.pid,
            "opened": None if self.since is None else moment(self.since),
        }
