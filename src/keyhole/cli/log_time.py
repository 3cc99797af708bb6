"""The time that `keyhole log --since` names: so long ago, today, or a date."""

from __future__ import annotations

import time
from datetime import datetime

from keyhole.cli.errors import CliError
from keyhole.model.errors import Unparsable
from keyhole.model.quantity import parse_duration
from keyhole.model.text import visible

TODAY = "today"


def parse_since(text: str, now: float | None = None) -> float:
    """Seconds since the epoch; a date without a zone is this host's."""
    now = time.time() if now is None else now
    if text == TODAY:
        midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight.timestamp()
    try:
        return now - parse_duration(text)
    except Unparsable:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise CliError(
            f"--since '{visible(text)}' is no time: 90s, 2h and 3d are so long ago, "
            "'2026-11-17' and '2026-11-17 09:30' are dates"
        ) from None
