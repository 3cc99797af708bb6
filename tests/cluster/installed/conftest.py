"""One cluster for these tests, on which the chart was installed: README's command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.kube.installed import InstalledCluster, saved_image
from tests.rigs.sandbox.people import open_ground

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    """It has a policy for pods with the role `agent`."""
    with open_ground("installed", engine=True) as ground:
        image = saved_image(ground)
        made = InstalledCluster(tmp_path_factory.mktemp("cluster"), image)
        try:
            yield made
        finally:
            made.close()
