"""The presets by name, and the module that fills each.

Called by `app` with the names that a policy lists under `egress.presets`. A learner is loaded when
its preset is asked for, so that `keyhole run` without presets starts without readers of XML, zip
files and the like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

LEARNERS = {
    "python": "keyhole.host.python",
    "node": "keyhole.host.node",
    "debian": "keyhole.host.debian",
    "cargo": "keyhole.host.cargo",
    "go": "keyhole.host.golang",
    "maven": "keyhole.host.maven",
}
"""Each preset's module; its `learn` fills it."""

NAMES = tuple(LEARNERS)
QUICK_FIRST = ("debian", "python", "maven", "go", "cargo", "node")
"""In the order of the time that each takes: npm itself is asked for its settings."""


def learn(name: str, surroundings: HostEnvironment) -> Preset:
    """Fill one preset from this host's settings; `Refused` says what to do instead."""
    if name not in LEARNERS:
        raise Refused(f"there is no such preset; known: {', '.join(NAMES)}")
    learner: Callable[[HostEnvironment], Preset] = importlib.import_module(LEARNERS[name]).learn
    return learner(surroundings)
