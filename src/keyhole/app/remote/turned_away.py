"""Counts the visitors whom the remote listener turns away, and has them reported once a second.

Used by `listener.py`. Anybody who reaches the port can be turned away as often as they like, so
each reason is one event a second, with the first one's address and the number of times (I8, I9).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.remote.known_door import REPORT_SECONDS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class TurnedAway(enum.Enum):
    """Why a visitor was turned away before it had a session."""

    CODE = "no-such-code"
    """It showed the code of no invitation that waits to be used."""
    CERTIFICATE = "certificate-not-valid"
    """It showed a certificate that has ended or was replaced, of a session that is closed or gone,
    or of another authority."""


class _Counted(Struct):
    address: str
    session: str
    times: int = 1


class TurnedAwayVisitors:
    """Those since the last report, by the reason."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, report: Callable[[dict[str, object]], None]
    ) -> None:
        self._loop, self._report = loop, report
        self._counted: dict[TurnedAway, _Counted] = {}

    def count(self, why: TurnedAway, address: str, session: str = "") -> None:
        """Count one. `session` is that of a certificate which this gateway has signed."""
        if why in self._counted:
            self._counted[why].times += 1
            return
        self._counted[why] = _Counted(address, session)
        self._loop.call_later(REPORT_SECONDS, self._tell, why)

    def _tell(self, why: TurnedAway) -> None:
        found = self._counted.pop(why)
        self._report(
            {
                "turned_away": why.value,
                "address": found.address,
                "of": found.session,
                "times": found.times,
            }
        )
