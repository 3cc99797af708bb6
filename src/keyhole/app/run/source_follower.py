"""Follows the policy and the secrets of a run's session while the command runs.

Used by `own_gateway.py`. A thread watches the sources; changes are reported on the loop, so that
the gateway passes them to its data plane in order.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.secret import SecretScheme

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.app.session.source_watcher import SourceListener
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.provision import Provision
    from keyhole.app.setup.provision_reader import (
        ProvisionReader,
        ProvisionRequest,
        SourcedProvision,
    )


class SessionSources(Struct, frozen=True):
    """The sources of a session's policy and secrets, for the watcher."""

    provider: ProvisionReader
    wanted: ProvisionRequest
    stock: SourcedProvision


def stored_secrets_in(provision: Provision) -> set[str]:
    """The secrets of the store that a policy names."""
    refs = {each.secret for each in provision.policy.services if each.secret}
    return {each.locator for each in refs if each.source is SecretScheme.STORE}


class SourceFollower:
    """Watches one session's sources in a thread, and informs the data plane on the loop."""

    def __init__(
        self, sources: SessionSources, told: SourceListener, loop: asyncio.AbstractEventLoop
    ) -> None:
        from keyhole.app.session.source_watcher import INTERVAL, SourceListener, SourceWatcher

        def on_loop(tell: Callable[..., None]) -> Callable[..., None]:
            def say(*values: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                    loop.call_soon_threadsafe(tell, *values)

            return say

        heard = SourceListener(on_loop(told.rotated), on_loop(told.reloaded), on_loop(told.kept))
        self._following = SourceWatcher(sources.provider, sources.wanted, sources.stock, heard)
        self.reload = self._following.reload
        self.touch = self._following.touch
        self._interval = INTERVAL
        self._over = threading.Event()
        threading.Thread(target=self._run, name="following", daemon=True).start()

    @property
    def examined(self) -> ExaminedPolicy:
        """The policy in force, with the files that it refers to as they were accepted."""
        return self._following.examined

    def close(self) -> None:
        """Stop watching."""
        self._over.set()
        self._following.close()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._following.look()
