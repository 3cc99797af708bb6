"""The trial of a sandbox's walls before a run: once for each set-up since this boot.

Handed to the runtimes, which call it before they start anything (I2). The tests are in
`selftest.py` and `container_selftest.py`; `selftest_cache.py` records the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.app.selftest.selftest_cache import SelftestCache, bubblewrap_key, container_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from keyhole.policy.policy import Policy
    from keyhole.sandbox.containers.container_target import ContainerTarget
    from keyhole.sandbox.launch import Launch


class WallTrial:
    """Tries every known way out, from inside, under one policy."""

    def __init__(self, policy: Policy, tried: Path, *, force: bool = False) -> None:
        """`tried` is the file of set-ups that held; with `force` one is tried all the same."""
        self._policy = policy
        self._tried = SelftestCache(tried)
        self._force = force

    async def in_bubblewrap(self, launch: Launch, program: bytes, borrows: bool) -> None:
        """Try the walls of a bubblewrap sandbox. Raises SetupFailed."""
        key = bubblewrap_key(launch, program, borrows=borrows)
        if not self._force and self._tried.holds(key):
            return
        from keyhole.app.selftest.selftest import probe_walls, refuse_unless_held

        refuse_unless_held(await probe_walls(launch, self._policy, program, borrows=borrows))
        self._tried.keep(key)

    def in_container(
        self, target: ContainerTarget
    ) -> Callable[[Launch, str], Coroutine[Any, Any, None]]:
        """Test a sandbox of this engine; the callback gets the launch and our own programs."""

        async def try_walls(launch: Launch, kit: str) -> None:
            key = container_key(launch, target.build, kit)
            if not self._force and self._tried.holds(key):
                return
            from keyhole.app.selftest.container_selftest import probe_container
            from keyhole.app.selftest.selftest import refuse_unless_held

            refuse_unless_held(await probe_container(target, launch, self._policy))
            self._tried.keep(key)

        return try_walls
