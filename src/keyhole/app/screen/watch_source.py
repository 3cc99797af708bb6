"""What the screen shows, looked up in a thread: sessions, and the newest events of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.monitor.log_store import LogStore
from keyhole.app.monitor.session_list import WatchedSessions, act_on_session, list_sessions

if TYPE_CHECKING:
    from keyhole.app.monitor.log_view import EventFilter
    from keyhole.app.setup.host_paths import HostPaths

SHOWN_EVENTS = 200
"""Events of the list; `keyhole log` has all."""


class WatchState(Struct, frozen=True):
    """Everything on the screen."""

    sessions: WatchedSessions
    events: list[dict[str, Any]]
    total: int
    """Events that the filter passes."""


class WatchSource:
    """The control sockets and the log of one user. Its methods block."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._log = LogStore(paths.audit)

    def look(self, wanted: EventFilter) -> WatchState:
        """The state now."""
        sessions = list_sessions(self._paths)
        self._log.refresh()
        page = self._log.page(wanted, None, SHOWN_EVENTS)
        return WatchState(sessions, page.events, page.total)

    def act(self, session: str, act: str) -> None:
        """Revoke, stop or resume a session. Raises ControlFailed or ResourceUnusable."""
        act_on_session(self._paths, session, act)
