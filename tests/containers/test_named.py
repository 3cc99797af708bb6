"""Sandboxes that have a name: made, stopped, started, entered, attached to, destroyed."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.rig import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.containers.conftest import Boxed
    from tests.containers.engines import OwnEngine

pytestmark = pytest.mark.outside


def listed(project: Boxed, **env: str) -> dict[str, dict[str, Any]]:
    """What `ps` says of each sandbox that has a name."""
    said = project("ps", "--json", env=env)
    assert said.code == 0, said
    return {each["name"]: each for each in json.loads(said.out)}


@contextlib.contextmanager
def made(project: Boxed, name: str, *words: str, **more: Any) -> Iterator[None]:  # noqa: ANN401
    """A sandbox while the block lasts."""
    said = project("new", name, "--trust", *words, **more)
    assert said.code == 0, said
    try:
        yield
    finally:
        project("destroy", name, **more)


def test_a_sandbox_keeps_its_home_from_one_start_to_the_next_and_nothing_else(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    before = {v["Name"] for v in dockerd.engine._client.volumes()["Volumes"] or ()}
    script = "cat ~/seen; echo $$ >>~/seen; id -u >>~/seen; exec sleep 300"
    with made(plain, "box", "--", "sh", "-c", script):
        first = listed(plain)["box"]
        assert first["state"] == "running"
        assert sorted(dockerd.left()) == ["holder", "sandbox"]
        said = plain("stop", "box")
        assert (said.code, said.out) == (0, "box ended; `keyhole start box` starts it again\n")
        until(lambda: dockerd.left() == [])
        assert listed(plain)["box"]["state"] == "stopped"
        said = plain("start", "box")
        assert (said.code, said.out) == (0, "box runs\n"), said
        assert listed(plain)["box"]["id"] != first["id"]
        assert plain("destroy", "box").out.endswith("box is gone, with its home\n")
    until(lambda: dockerd.left() == [])
    after = {v["Name"] for v in dockerd.engine._client.volumes()["Volumes"] or ()}
    assert not [name for name in after - before if "home" in name]
    assert plain("ps").code == 2
