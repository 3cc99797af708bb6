"""Calls to a data plane, with a deadline for each.

Used by `gateway_operations.py`. A data plane alone is never trusted to close a door: if it does
not confirm at once it is killed, which closes every door (I12).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from keyhole.app.daemon.data_plane_process import GONE_SECONDS, UNANSWERED
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess
    from keyhole.app.session.end_reason import EndReason

ALL_RECEIPT_SECONDS = 0.075
"""Seconds for the data plane to confirm the kill switch. All sessions are to be closed, so nothing
is lost by killing it; the caller waits for at most 0.2 s."""

ONE_RECEIPT_SECONDS = 1.0
"""The same if one session is to be closed and all others would be lost: it must be longer than one
turn of a busy loop."""

CLOSE_SECONDS = 2.0
"""How long it may take after that to close doors: thousands are closed within a second."""

LOOK_SECONDS = 0.5
"""Seconds for the data plane to report its counters, before the last known ones are shown."""

LOST = "the gateway's data plane was ended, and all its sessions with it; run it again"
NOT_NOW = (
    "the gateway's data plane does not respond; it is ended and replaced if it stays so, try again"
)
NOT_GONE = (
    "the gateway's data plane, process {pid}, was killed and the kernel has not ended it yet: it"
    " waits for a disk or a device; `keyhole ps` shows when the sessions are closed"
)


async def call_plane(
    plane: DaemonDataPlaneProcess, name: str, words: Mapping[str, Any], door: Sequence[Any] = ()
) -> Any:  # noqa: ANN401 - by what is called
    """The answer of a data plane that responds. Raises Refused or NoSuchSession."""
    if plane.quiet:
        raise Refused(NOT_NOW)
    try:
        return await plane.call(name, words, door)
    except ConnectionError:
        raise Refused(LOST) from None


async def look_at_plane(plane: DaemonDataPlaneProcess, name: str, words: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """The answer, or None if it does not come soon: a listing does not wait for it."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await call_plane(plane, name, words)
    except (TimeoutError, Refused):
        return None


async def close_doors(
    plane: DaemonDataPlaneProcess, sessions: list[str], ending: EndReason, by: int, seconds: float
) -> None:
    """Close doors, by the data plane or by killing it. `seconds` is the time for its receipt."""
    words = {"sessions": sessions, "why": ending.value, "by": by}
    try:
        if plane.quiet and seconds == ALL_RECEIPT_SECONDS:
            raise TimeoutError  # it has already had more time than that
        await plane.call_acknowledged("close", words, seconds, CLOSE_SECONDS)
    except (TimeoutError, Refused, RuntimeError):
        plane.end(UNANSWERED)
        if not await plane.ended(GONE_SECONDS):
            # It serves no client any more, but its sockets close only with the process.
            raise Refused(NOT_GONE.format(pid=plane.pid)) from None
    except ConnectionError:
        pass  # its end has closed them
