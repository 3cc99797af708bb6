"""The presets by name: which learner fills which.

Called by `app` with the names that a policy lists under `egress.presets`. A learner is loaded when
its preset is asked for, so that `keyhole run` without presets starts without readers of XML, zip
files and the like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from keyhole.host.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.host.surroundings import Surroundings
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


def learn(name: str, surroundings: Surroundings) -> Preset:
    """What this host's settings say of one preset, or `NotFound` with what to do."""
    if name not in LEARNERS:
        raise NotFound(name, f"there is no such preset; known: {', '.join(NAMES)}")
    learner: Callable[[Surroundings], Preset] = importlib.import_module(LEARNERS[name]).learn
    return learner(surroundings)
