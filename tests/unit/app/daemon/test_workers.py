"""How many workers a gateway has that nobody told a number."""

from __future__ import annotations

import os

import pytest

from keyhole.app.daemon.workers import default_workers


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (4, 4), (5, 4), (64, 4)])
def test_there_is_a_worker_for_each_core_and_four_at_most(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_workers() == workers
