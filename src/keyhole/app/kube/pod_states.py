"""The state of each pod of this node: its door is open, it waits for one, or its door was closed.

`pod_sessions.py` sets the states, and `node_report.py` reports them.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from keyhole.app.kube.resources import PodIdentity

BOUND = "pod-bound"
"""The event that names the pod of a session in the audit log (I8)."""

MAX_STATES = 1024
"""Pods that are shown of one node: twice as many as can have a door."""
MAX_WHY = 300
"""Characters of a reason."""
WAITING_SECONDS = 600.0
"""Seconds for which a waiting pod is shown after the kubelet's last request for it. The kubelet
repeats its requests at least every two minutes, until the pod is gone."""


class DoorState(enum.Enum):
    """The state of a pod's door."""

    CLOSED = "closed"
    WAITING = "waiting"
    OPEN = "open"


class PodState(Struct, frozen=True):
    """One pod."""

    pod: PodIdentity
    policy: str
    """The name of its KeyholePolicy; empty while it has none."""
    state: DoorState
    why: str = ""


class PodStates:
    """All of them, by the pod's uid."""

    def __init__(self) -> None:
        self._states: dict[str, PodState] = {}
        self._asked: dict[str, float] = {}
        self.version = 0
        """The number of changes so far."""

    def set(self, pod: PodIdentity, state: DoorState, policy: str = "", why: str = "") -> None:
        """Set the state of a pod. Without a policy, it keeps the one that it had."""
        before = self._states.get(pod.uid)
        if before is None and len(self._states) >= MAX_STATES:
            return
        self._asked[pod.uid] = time.monotonic()
        now = PodState(pod, policy or (before.policy if before else ""), state, why[:MAX_WHY])
        if now != before:
            self._states[pod.uid] = now
            self.version += 1

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._asked.pop(uid, None)
        if self._states.pop(uid, None) is not None:
            self.version += 1

    def listed(self) -> list[PodState]:
        """All pods, by namespace and name."""
        since = time.monotonic() - WAITING_SECONDS
        for uid, each in list(self._states.items()):
            if each.state is DoorState.WAITING and self._asked[uid] < since:
                self.forget(uid)
        return sorted(self._states.values(), key=lambda each: str(each.pod))

    def counts(self) -> dict[str, int]:
        """How many pods there are in each state."""
        found = Counter(each.state for each in self.listed())
        return {state.value: found[state] for state in DoorState}
