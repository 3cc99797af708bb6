"""Questions as a page or a screen gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from keyhole.app.monitor.ask_watch import AskWatch
from keyhole.control.values import AskStanding, WatchEvent, WatchKind
from tests.rigs.control.rig import ASK

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths

A, B = "a" * 12, "b" * 12
LATER = 2**32
"""An expiry that is never reached."""


def test_one_sandbox_hides_no_other() -> None:
    """I12: of 200 stale questions of one, and a new one of another, the new one is first."""
    told: list[None] = []
    watch = AskWatch(cast("HostPaths", None), lambda: told.append(None), "")
    for number in range(200):
        ask = replace(ASK, id=f"{number:06x}", session=A, state=AskStanding.LAPSED, expires=LATER)
        watch._take(WatchEvent(WatchKind.SETTLED, 0, A, ask, "unanswered"), watch._asks)
    waits = replace(ASK, session=B, asked=ASK.asked + 9)
    watch._take(WatchEvent(WatchKind.ASK, 0, B, waits), watch._asks)
    assert watch.asks()[0] == waits
    assert len(watch.asks()) == 201
    watch._take(WatchEvent(WatchKind.SESSION, 0, A, state="closed"), watch._asks)
    assert watch.asks() == [waits]
    watch._take(WatchEvent(WatchKind.SETTLED, 0, B, waits, "approved"), watch._asks)
    assert watch.asks() == []
    assert len(told) == 203
