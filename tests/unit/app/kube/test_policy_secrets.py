"""A node keeps the Secrets of policies that its pods are under, and no others (I1)."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.kube.policy_files import PolicyFiles
from keyhole.app.kube.policy_secrets import SECRET_SECONDS, PolicySecrets
from keyhole.app.kube.resources import ClusterPolicy, PodSelector
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

ONE = ClusterPolicy("team", "one", PodSelector(), "")
TWO = ClusterPolicy("team", "two", PodSelector(), "")
KEYS = {each.name: (each.namespace, each.name) for each in (ONE, TWO)}


class ApiServer:
    """Has every Secret but `missing`."""

    def __init__(self) -> None:
        self.watching: list[str] = []
        self.declines: dict[str, int] = {}
        """How often it declines yet, by the Secret's name."""

    async def watch(self, kind: object, **where: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        name = where["fields"]["metadata.name"]
        if self.declines.get(name, 0):
            self.declines[name] -= 1
            raise OSError("forbidden")
        self.watching.append(name)
        try:
            if name != "missing":
                value = base64.b64encode(f"value-of-{name}".encode()).decode()
                yield "ADDED", SimpleNamespace(data={"token": value})
            await asyncio.Event().wait()
        finally:
            self.watching.remove(name)


class Node:
    """The Secrets of a node, with two policies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "cluster"
        places = HostPaths(directory, directory / "config", directory / "state", directory / "run")
        self.files = PolicyFiles(self._directory, places, FileCatalogue())
        self.server = ApiServer()
        client: Any = self.server
        self.secrets = PolicySecrets(client, self.files, lambda _: None)
        self.secrets.set(ONE, ["first", "second"])
        self.secrets.set(TWO, ["third"])

    def kept(self) -> list[str]:
        """The Secrets on this node's disk."""
        found = self._directory.glob("policies/*/*/secrets/*/token")
        return sorted(each.parent.name for each in found)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]:
    async def main(work: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
        await work(Node(tmp_path))

    return lambda work: asyncio.run(main(work))


def test_a_secret_is_on_the_node_while_a_pod_is_under_its_policy_and_no_longer_i1(run: Any) -> None:  # noqa: ANN401
    async def work(node: Node) -> None:
        assert (node.kept(), node.server.watching) == ([], [])
        await node.secrets.use(KEYS["one"], "pod-a")
        await node.secrets.use(KEYS["one"], "pod-b")
        assert node.kept() == ["first", "second"], "and not the third, which no pod uses"
        node.secrets.release("pod-a")
        assert node.kept() == ["first", "second"]
        node.secrets.release("pod-b")
        assert node.kept() == []
        await until_in_loop(lambda: not node.server.watching)

    run(work)


def test_a_pod_under_two_policies_has_the_secrets_of_both_until_it_is_gone(run: Any) -> None:  # noqa: ANN401
    async def work(node: Node) -> None:
        await node.secrets.use(KEYS["one"], "pod")
        await node.secrets.use(KEYS["two"], "pod")
        assert node.kept() == ["first", "second", "third"]
        node.secrets.release("pod")
        assert node.kept() == []

    run(work)


def test_a_policy_that_names_other_secrets_now_has_those_alone(run: Any) -> None:  # noqa: ANN401
    async def work(node: Node) -> None:
        await node.secrets.use(KEYS["one"], "pod")
        node.secrets.set(ONE, ["second", "fourth"])
        await until_in_loop(lambda: node.kept() == ["fourth", "second"])
        node.secrets.set(TWO, ["fifth"])
        node.secrets.remove(KEYS["one"])
        assert node.kept() == []
        await until_in_loop(lambda: not node.server.watching)
        await node.secrets.use(KEYS["one"], "pod")  # it is gone: nothing to wait for

    run(work)


def test_a_missing_secret_is_waited_for_once_and_the_others_are_there_i12(
    run: Any,  # noqa: ANN401
) -> None:
    async def work(node: Node) -> None:
        node.secrets.set(ONE, ["first", "missing"])
        await node.secrets.use(KEYS["one"], "pod-a")
        assert node.kept() == ["first"]
        began = asyncio.get_running_loop().time()
        await node.secrets.use(KEYS["one"], "pod-b")
        assert asyncio.get_running_loop().time() - began < SECRET_SECONDS / 2

    run(work)


def test_a_pod_waits_a_moment_for_a_role_that_the_api_server_does_not_know_yet(
    run: Any,  # noqa: ANN401
) -> None:
    async def work(node: Node) -> None:
        node.server.declines["first"] = 1
        await node.secrets.use(KEYS["one"], "pod")
        assert node.kept() == ["first", "second"]

    run(work)


def test_a_pod_without_a_role_for_its_secret_starts_and_gets_it_when_it_is_granted(
    run: Any,  # noqa: ANN401
) -> None:
    async def work(node: Node) -> None:
        node.server.declines["first"] = 3
        began = asyncio.get_running_loop().time()
        await node.secrets.use(KEYS["one"], "pod")
        assert asyncio.get_running_loop().time() - began < SECRET_SECONDS / 2
        assert node.kept() == ["second"]
        await until_in_loop(lambda: node.kept() == ["first", "second"])

    run(work)


def test_the_next_agent_finds_no_secret_of_the_one_before_i1(run: Any) -> None:  # noqa: ANN401
    async def work(node: Node) -> None:
        await node.secrets.use(KEYS["one"], "pod")
        assert node.kept() == ["first", "second"], "the control"
        node.files.clear()
        assert node.kept() == []

    run(work)
