"""A learning run in a container of Docker's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.containers.learning import learn_in_container

if TYPE_CHECKING:
    from collections.abc import Callable

    import trustme

    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside


def test_a_container_learns_by_the_same_rules(
    new_project: Callable[..., Boxed], authority: trustme.CA
) -> None:
    """I1, I3."""
    learn_in_container(new_project(), authority)
