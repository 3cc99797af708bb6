"""Two real agents from npm answer by name, without a key (I1, I10). The attack battery has all.

`make setup` installs them by the lock where there is npm. Without npm they are skipped, since no
other test needs Node; where it is there, CI must have them.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.agents import AGENTS, Provider, provider_of_models, work_by_name
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.projects import SEARCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

NEW_ENOUGH = "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)"


@pytest.fixture(scope="module")
def programs() -> str:
    """The directory of the agents' programs."""
    node, npm = (shutil.which(name, path=SEARCH) for name in ("node", "npm"))
    if not node or not npm or subprocess.run([node, "-e", NEW_ENOUGH], check=False).returncode:
        pytest.skip("npm, or Node 20, is not installed")
    if not (AGENTS / "keyhole-locks").exists():
        give_up("the agents are not installed: make setup, and .agents/npm.log")
    return f"{AGENTS}/node_modules/.bin"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with provider_of_models(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.mark.parametrize("name", ["gemini", "qwen"])
def test_a_real_agent_answers_by_name_and_never_holds_a_key(
    name: str, new_project: Callable[[], Project], programs: str, provider: Provider
) -> None:
    work_by_name(name, new_project(), programs, provider)
