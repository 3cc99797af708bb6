"""What the screen shows, looked up in a thread: sessions, and the newest events of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.monitor.ask_watch import AskWatch
from keyhole.app.monitor.log_store import LogStore
from keyhole.app.monitor.rule_line import find_rule_line
from keyhole.app.monitor.session_list import WatchedSessions, act_on_session, list_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.monitor.log_view import EventFilter
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import AnswerRequest, AskView

SHOWN_EVENTS = 200
"""Events of the list; `keyhole log` has all."""


class WatchState(Struct, frozen=True):
    """Everything on the screen."""

    sessions: WatchedSessions
    events: list[dict[str, Any]]
    total: int
    """Events that the filter passes."""
    asks: tuple[AskView, ...] = ()


class WatchSource:
    """The control sockets and the log of one user. Its methods block."""

    def __init__(self, paths: HostPaths, search_path: str = "") -> None:
        """`search_path` is the user's PATH."""
        self._paths = paths
        self._watch = AskWatch(paths, lambda: self.changed(), search_path)
        self.changed: Callable[[], None] = lambda: None
        """Called in a thread when a question comes or goes."""
        self._log = LogStore(paths.audit)

    def look(self, wanted: EventFilter) -> WatchState:
        """The state now."""
        sessions = list_sessions(self._paths)
        self._log.refresh()
        page = self._log.page(wanted, None, SHOWN_EVENTS)
        known = {each.view.id for each in sessions.sessions}
        asks = tuple(each for each in self._watch.asks() if each.session in known)
        return WatchState(sessions, page.events, page.total, asks)

    def open(self) -> None:
        """Be there to answer."""
        self._watch.start()

    def close(self) -> None:
        """Be gone."""
        self._watch.stop()

    def answer(self, ask: AskView, answer: AnswerRequest) -> list[str]:
        """Answer a question. Returns the lines of the policy that changed. Raises KeyholeError."""
        return self._watch.answer(ask.session, ask.id, answer)

    def rule_line(self, event: dict[str, Any], sessions: WatchedSessions) -> str:
        """Where the rule of an event stands; empty if that is not known."""
        return find_rule_line(sessions.sessions, event["session"], event["rule"], self._paths)

    def act(self, session: str, act: str) -> list[str]:
        """Revoke, stop or resume a session; nothing to show. Raises KeyholeError."""
        act_on_session(self._paths, session, act)
        return []
