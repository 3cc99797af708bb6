"""The open questions of sandboxes, for a page or a screen on which a person answers.

While it runs, gateways know that somebody can answer, and hold requests that no rule names. A
thread reads the streams of all gateways. When a gateway ends, its questions are dropped.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from keyhole.app.monitor.session_list import endpoint_of
from keyhole.app.watch.lasting_rule import save_rule_for
from keyhole.app.watch.watched_gateways import WatchedGateways
from keyhole.control.ask_words import ask_words
from keyhole.control.open_asks import OpenAsks
from keyhole.control.values import AnswerRequest, AnswerWord, AskStanding, WatchKind
from keyhole.control.watchers import watching
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.text import in_order, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import AskView, WatchEvent

LOOK_SECONDS = 0.25
"""Seconds between two searches for new runs."""

MAX_ASKS = 1000
"""Questions that are held: as many as one gateway lists."""

ANSWERS = (
    (AnswerWord.ONCE, 0, "Once"),
    (AnswerWord.FOR, 600, "10 minutes"),
    (AnswerWord.SESSION, 0, "This session"),
    (AnswerWord.ALWAYS, 0, "Always"),
    (AnswerWord.NEVER, 0, "Never"),
    (AnswerWord.NO_TO_ALL, 0, "No to all"),
)
"""The answers beside a plain no."""


class AskWatch:
    """The questions that can be answered now. `start` and `stop` may follow one another."""

    def __init__(self, paths: HostPaths, changed: Callable[[], None], search_path: str) -> None:
        """`changed` is called in the thread when a question comes or goes. `search_path` is the
        user's PATH, by which programs that a policy names are found."""
        self._paths = paths
        self._search_path = search_path
        self._changed = changed
        self._lock = threading.Lock()
        self._asks = OpenAsks(MAX_ASKS)
        self._ending: socket.socket | None = None
        self._followed = 0

    def start(self) -> None:
        """Begin to follow the gateways: they now hold requests and ask."""
        if self._ending is None:
            self._ending, ended = socket.socketpair()
            # Its own list: the thread of an earlier `start` may not have ended yet.
            self._asks = OpenAsks(MAX_ASKS)
            threading.Thread(target=self._run, args=(ended, self._asks), daemon=True).start()

    def stop(self) -> None:
        """Stop following the gateways: they refuse at once, unless somebody else watches."""
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.close()

    def asks(self) -> list[AskView]:
        """The questions: waiting ones first, taking turns between sessions."""
        with self._lock:
            return self._asks.listed()

    def answer(self, session: str, ask: str, answer: AnswerRequest) -> list[str]:
        """Answer a question. Returns the lines of the policy that an "always" has changed. Raises
        KeyholeError."""
        client = endpoint_of(self._paths, session).client()
        changed: list[str] = []
        if answer.answer is AnswerWord.ALWAYS:
            with self._lock:
                known = self._asks.get(session, ask)
            if known is None:
                raise Refused("this question is no longer open")
            # The file is written first: if that fails, nothing is allowed.
            policy = client.session(session).policy
            changed = save_rule_for(known, policy, self._paths, self._search_path)
        client.answer(session, ask, answer)
        return changed

    @property
    def gateways(self) -> int:
        """How many gateways are followed."""
        return self._followed

    def _run(self, ended: socket.socket, asks: OpenAsks) -> None:
        try:
            with watching(self._paths.runtime), selectors.DefaultSelector() as selector:
                selector.register(ended, selectors.EVENT_READ)
                try:
                    self._follow(selector, ended, asks)
                finally:
                    self._followed = 0
                    for key in list(selector.get_map().values()):
                        key.fileobj.close()  # type: ignore[union-attr] # sockets and streams
        except ResourceUnusable:
            return  # the list of sessions says the same
        with self._lock:
            asks.clear()

    def _follow(
        self, selector: selectors.BaseSelector, ended: socket.socket, asks: OpenAsks
    ) -> None:
        gateways = WatchedGateways(self._paths.runtime)
        due = 0.0
        while True:
            # Done at intervals, not at each event: a gateway that ends every stream at once must
            # not keep this thread busy.
            if time.monotonic() >= due:
                gateways.look(selector)
                due = time.monotonic() + LOOK_SECONDS
            for key, _ in selector.select(LOOK_SECONDS):
                if key.fileobj is ended:
                    return
                gateways.read(key.fileobj, selector, lambda event, _: self._take(event, asks))
            self._followed = len(gateways)

    def _take(self, event: WatchEvent, asks: OpenAsks) -> None:
        ask = event.ask
        with self._lock:
            if ask is not None and (
                event.event is WatchKind.ASK or ask.state is AskStanding.LAPSED
            ):
                if asks.get(ask.session, ask.id) == ask:
                    return
                asks.put(ask)
            elif ask is not None:
                asks.remove(ask)
            elif event.event is WatchKind.SESSION and event.state == "closed":
                asks.close(event.session)
            else:
                return
        self._changed()


def ask_view(ask: AskView) -> dict[str, Any]:
    """A question for a page: texts of the sandbox with hidden and reordering characters written
    out."""
    shown: dict[str, Any] = msgspec.to_builtins(ask)
    shown = {
        name: in_order(each) if isinstance(each, str) else each for name, each in shown.items()
    }
    return shown | {"marks": [visible(mark) for mark in ask.marks], "words": ask_words(ask)}
