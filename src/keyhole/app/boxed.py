"""A run's sandbox by an engine: the trial of its walls, then the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.tried import Remembered, key_of_box

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.app.containers import Berth
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.containers.start import Contained, Containers
    from keyhole.sandbox.interface import Console


class Boxed:
    """Makes one sandbox, in an engine whose walls were tried with this image since this boot."""

    def __init__(
        self,
        runtime: Containers,
        berth: Berth,
        policy: Policy,
        tried: Remembered,
        *,
        force_test: bool = False,
    ) -> None:
        self.launch = runtime.launch
        self._runtime = runtime
        self._berth = berth
        self._policy = policy
        self._tried = tried
        self._force_test = force_test

    @property
    def terminal(self) -> Console:
        """The person's end of its streams."""
        return self._runtime.terminal

    async def ready(self) -> None:
        """Once for each engine, image and version of ours: every known way out, from inside."""
        await self._runtime.ready()
        berth = self._berth
        engine = f"{berth.engine.path} {berth.nature.build}"
        key = key_of_box(self.launch, engine, self._runtime.kit)
        if self._force_test or not self._tried.holds(key):
            from keyhole.app.boxtest import probe_box
            from keyhole.app.selftest import refuse_unless_held

            refuse_unless_held(await probe_box(self._berth, self.launch, self._policy))
            self._tried.keep(key)

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> Contained:
        """Make the door, hand it over, and start the command behind it."""
        return await self._runtime.start(admit)

    def close(self) -> None:
        """Leave nothing of it."""
        self._runtime.close()
