"""Memory for bodies: a session leaves as much as it takes (I9, I12)."""

from __future__ import annotations

import contextlib

import pytest

from keyhole.gateway import body_memory
from keyhole.gateway.body_memory import BodyMemory
from keyhole.model.decision import Reason
from keyhole.model.errors import OverLimit


def test_a_session_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_memory, "MAX_GATHERED", 10)
    memory = BodyMemory()
    memory.take(0, 10)
    with pytest.raises(OverLimit) as raised:
        memory.take(10, 1)
    assert (raised.value.reason, raised.value.decision.rule) == (Reason.OVER_LIMIT, "limits.body")
    memory.free(10)
    memory.take(0, 10)


def take_all(memory: BodyMemory) -> int:
    """Take bytes one by one, as long as there are some."""
    held = 0
    with contextlib.suppress(OverLimit):
        while True:
            memory.take(held, 1)
            held += 1
    return held


def test_any_number_of_greedy_sessions_leave_some_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control is the greedy session itself, which gets no more."""
    monkeypatch.setattr(body_memory, "MAX_GATHERED", 1000)
    monkeypatch.setattr(body_memory, "MAX_OF_ALL", 1000)
    monkeypatch.setattr(body_memory, "OWN", 10)
    memory = BodyMemory()
    for number in range(20):
        held = take_all(memory)
        assert 10 <= held <= 500, number
        with pytest.raises(OverLimit) as raised:
            memory.take(held, 1)
        assert raised.value.reason == Reason.OVER_SHARE
    assert memory.held < 1000 + 20 * 10
