"""One real cluster for all tests of this folder; `make test-cluster` runs them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.rigs.kube.binaries import lacking
from tests.rigs.kube.estate import Estate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """A node with an agent. `make attack` comes here on machines that can have none, too."""
    why = lacking()
    if why and not os.environ.get("CI"):
        pytest.skip(why)
    made = Estate(tmp_path_factory.mktemp("cluster"))
    try:
        made.start_agent()
        yield made
    finally:
        made.close()
