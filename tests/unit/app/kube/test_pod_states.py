"""The state of each pod's door, as it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.kube import pod_states
from keyhole.app.kube.pod_states import DoorState, PodStates
from keyhole.app.kube.resources import PodIdentity

if TYPE_CHECKING:
    import pytest

ONE, TWO = (PodIdentity(uid, "team", uid) for uid in ("a1", "b2"))


def test_a_pod_is_shown_with_its_policy_until_it_is_gone() -> None:
    states = PodStates()
    states.set(ONE, DoorState.WAITING, "agents")
    states.set(ONE, DoorState.OPEN)
    states.set(TWO, DoorState.CLOSED, why="x" * 1000)
    assert states.counts() == {"closed": 1, "waiting": 0, "open": 1}
    assert states.listed()[0].policy == "agents"
    assert len(states.listed()[1].why) == pod_states.MAX_WHY
    states.forget("a1")
    assert [each.pod for each in states.listed()] == [TWO]


def test_only_a_change_counts_as_one() -> None:
    states = PodStates()
    states.set(ONE, DoorState.OPEN)
    before = states.version
    states.set(ONE, DoorState.OPEN)
    states.forget("none")
    assert states.version == before
    states.set(ONE, DoorState.CLOSED)
    assert states.version == before + 1


def test_a_pod_that_waits_and_is_not_asked_for_any_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = PodStates()
    states.set(ONE, DoorState.WAITING)
    states.set(TWO, DoorState.OPEN)
    monkeypatch.setattr(pod_states, "WAITING_SECONDS", -1.0)
    assert [each.pod for each in states.listed()] == [TWO]


def test_there_is_a_bound_on_pods_i9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_states, "MAX_STATES", 1)
    states = PodStates()
    states.set(ONE, DoorState.OPEN)
    states.set(TWO, DoorState.OPEN)
    assert len(states.listed()) == 1
