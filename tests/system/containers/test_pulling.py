"""An image that the engine does not have: pulled, with progress, or refused in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.cli.pull_progress import MAX_LAYERS, LayerSizes
from keyhole.sandbox.containers.engine_values import PullProgress
from tests.rigs.cli.terminals import on_terminal
from tests.rigs.containers.engines import TOOLS
from tests.rigs.containers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.containers.conftest import Boxed


@pytest.fixture
def registry() -> Iterator[Registry]:
    """With a small image."""
    made = Registry(TOOLS)
    yield made
    made.close()


@pytest.mark.outside
def test_an_image_is_pulled_and_how_far_it_is_shows_on_a_terminal(
    plain: Boxed, registry: Registry
) -> None:
    """Once: the second time it is there. One that the registry lacks is told in a line."""
    image = f"{registry.address}/made:1"
    who = plain.person
    become = ["/usr/bin/setpriv", f"--reuid={who.uid}", f"--regid={who.gid}", "--clear-groups"]
    run = ["run", "--trust", "--image", image, "--", "sh", "-c", "echo it runs"]
    words = [*become, str(who.program), *run]
    code, text = on_terminal(words, plain.env, plain.directory, size=(24, 120))
    assert (code, f"pulling {image}" in text, "it runs" in text) == (0, True, True), text
    done = plain(*run)
    assert ("pulling" in done.err, done.out) == (False, "it runs\n")
    missing = plain.run("id", flags=("--image", f"{registry.address}/made:2"))
    assert missing.code == 125
    first, second = missing.err.splitlines()
    assert first == f"keyhole: pulling {registry.address}/made:2, which the engine does not have"
    assert "and it cannot be pulled" in second


def test_what_a_registry_says_of_sizes_is_added_up_and_bounded() -> None:
    """I9: it is a stranger's."""
    sizes = LayerSizes()
    assert (sizes.done, sizes.total) == (0, 0)
    sizes.hear(PullProgress("a", "Downloading", 10, 100))
    sizes.hear(PullProgress("b", "Downloading", 5, 50))
    sizes.hear(PullProgress("b", "Extracting", 1, 50))
    assert (sizes.done, sizes.total) == (15, 150)
    sizes.hear(PullProgress("a", "Pull complete", 0, 0))
    sizes.hear(PullProgress("c", "Already exists", 0, 0))
    assert (sizes.done, sizes.total) == (105, 150)
    for number in range(2 * MAX_LAYERS):
        sizes.hear(PullProgress(str(number), "Downloading", 0, 1))
    assert sizes.total == 150 + MAX_LAYERS - 2
