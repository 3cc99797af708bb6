"""A sandbox that has a name, as `keyhole ps` shows it: what is on disk, and what a gateway says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.named import NotPossible, State
from keyhole.cli.amounts import moment
from keyhole.control.values import State as Door
from keyhole.model.value import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.app.named import Named
    from keyhole.control.values import SessionView


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One row."""

    name: str
    state: State
    session: str
    """Of one that runs."""
    shared: bool
    since: int | None
    """When it was started, if it runs."""
    code: str
    """Of one that ended: its command's exit code."""
    runtime: str = "?"
    image: str = "?"
    policy: str = "?"
    pid: int | None = None

    @classmethod
    def of(cls, named: Named) -> Sandbox:
        """As far as it is known without a gateway."""
        state, life = named.state(), named.life()
        lives = state is not State.STOPPED
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
        except NotPossible:
            return found
        return replace(found, runtime=record.runtime, image=record.image, policy=record.policy)

    def at(self, sessions: Sequence[SessionView]) -> Sandbox:
        """The same, closed if its gateway does not serve it: it has died, or revoked it."""
        if self.state is not State.RUNNING or not self.shared:
            return self
        served = any(each.id == self.session and each.state is Door.OPEN for each in sessions)
        return self if served else replace(self, state=State.CLOSED)

    def as_json(self) -> dict[str, object]:
        """For scripts; its id is that of its session while it runs, else its name."""
        return {
            "id": self.session or self.name,
            "name": self.name,
            "state": str(self.state),
            "exit": int(self.code) if self.code else None,
            "runtime": self.runtime,
            "image": self.image,
            "policy": self.policy,
            "pid": self.pid,
            "opened": None if self.since is None else moment(self.since),
        }
