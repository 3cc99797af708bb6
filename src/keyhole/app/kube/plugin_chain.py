"""Keeps the CNI plugin in the node's configuration, and tells whether a pod may start now.

The cluster's own network plugin may rewrite its configuration at any time. Until our plugin is
back, a new pod would have an interface and no door. So pods get no volume meanwhile, and wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.app.kube.cni_install import ChainState, chain_plugin
from keyhole.model.errors import Refused, ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.kube.cni_install import CniPlaces

LOOK_SECONDS = 0.5
"""Seconds between two checks of the node's CNI configuration."""


class PluginChain:
    """Keeps the plugin at the end of the chain."""

    def __init__(self, places: CniPlaces, socket: Path, say: Callable[[str], None]) -> None:
        self._places = places
        self._socket = socket
        self._say = say
        self._said = ""

    async def keep(self) -> None:
        """Put the plugin back wherever it was removed; never returns."""
        while True:
            try:
                await asyncio.to_thread(chain_plugin, self._places, self._socket)
                self._said = ""
            except (OSError, ResourceUnusable) as error:
                if str(error) != self._said:
                    self._say(f"the plugin could not be chained: {error}")
                self._said = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        """Raise Refused unless the plugin was already in the configuration. The kubelet then tries
        the pod again, after the runtime has read the changed file (I2). Raises OSError,
        ResourceUnusable."""
        state = await asyncio.to_thread(chain_plugin, self._places, self._socket)
        if state is not ChainState.KEPT:
            raise Refused("Keyhole's plugin was not in the node's configuration of CNI")
