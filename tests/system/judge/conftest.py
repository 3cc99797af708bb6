"""The accounts that judges are started from, and the loops that they are asked by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.court import LOOPS, playing
from tests.system.sandbox.conftest import ground, person

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ground", "person"]


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Each kind of loop."""
    with playing(str(request.param)) as run:
        yield run
