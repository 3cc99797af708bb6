"""The event streams of every gateway of this user: the one that is up, and each run's own.

Used by everything that shows events. It finds new runs by listing one directory again and again.
"""

from __future__ import annotations

import contextlib
import selectors
from typing import TYPE_CHECKING

from keyhole.control.client import ControlFailed
from keyhole.control.endpoints import find_endpoints
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.control.client import EventStream
    from keyhole.control.endpoints import ControlEndpoint
    from keyhole.control.values import WatchEvent

CONNECT_SECONDS = 0.5
"""Seconds in which a gateway must accept a stream; a stopped one is tried again."""

_GATEWAY = ""
"""The name of the gateway that is up, among the ids of runs."""


class WatchedGateways:
    """The streams that are open, each with its gateway."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._streams: dict[str, tuple[EventStream, ControlEndpoint]] = {}

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def look(self, selector: selectors.BaseSelector) -> None:
        """Open streams to gateways that have none."""
        try:
            endpoints = find_endpoints(self._runtime)
        except ResourceUnusable:
            return
        for endpoint in endpoints:
            name = endpoint.run.session if endpoint.run is not None else _GATEWAY
            if name in self._streams:
                continue
            with contextlib.suppress(ControlFailed):
                stream = endpoint.client(CONNECT_SECONDS).watch({})
                self._streams[name] = stream, endpoint
                selector.register(stream, selectors.EVENT_READ)

    def read(
        self,
        stream: object,
        selector: selectors.BaseSelector,
        show: Callable[[WatchEvent, ControlEndpoint], None],
    ) -> None:
        """Show what has come by a stream that is readable."""
        found = [(name, each) for name, each in self._streams.items() if each[0] is stream]
        for name, (known, endpoint) in found:
            try:
                events = known.read()
            except ControlFailed:
                events = None
            if events is None:
                selector.unregister(known)
                known.close()
                del self._streams[name]
            for event in events or ():
                show(event, endpoint)
