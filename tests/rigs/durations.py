"""How long a test of the attack battery goes on, where a variable says so."""

from __future__ import annotations

import os
import re

UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(variable: str, default: str) -> float:
    """A duration as the policy writes one."""
    text = os.environ.get(variable) or default
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None:
        raise ValueError(f"{variable}={text}: a number and s, m or h, as in 30m")
    return int(found[1]) * UNITS[found[2]]
