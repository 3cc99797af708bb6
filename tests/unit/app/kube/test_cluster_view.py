"""The policies of a cluster, as an agent follows them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lightkube.resources.core_v1 import Secret

from keyhole.app.kube import cluster_view as room
from keyhole.app.kube.cluster_view import ClusterView
from keyhole.app.kube.policy_files import PolicyFiles
from keyhole.app.kube.resources import KeyholePolicy, PodIdentity
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

POLICY = """\
version = 1
[services.one]
hosts  = ["one.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:missing/token"
allow  = ["GET /**"]
"""


class _Listed:
    resourceVersion = "1"

    def __init__(self, found: list[Any]) -> None:
        self._found = found

    async def __aiter__(self) -> AsyncIterator[Any]:
        for each in self._found:
            yield each


class _ApiServer:
    """Has policies and a pod in each namespace, and no Secret: a watch of one says nothing."""

    def __init__(self, policies: list[Any]) -> None:
        self._policies = policies
        self.watched: list[str] = []

    def list(self, kind: Any, **_: object) -> _Listed:  # noqa: ANN401
        return _Listed(self._policies if kind is KeyholePolicy else [])

    async def watch(self, kind: Any, **where: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        if kind is Secret:
            self.watched.append(where["namespace"])
        await asyncio.Event().wait()
        yield

    async def get(self, kind: Any, name: str, namespace: str) -> Any:  # noqa: ANN401
        metadata = SimpleNamespace(
            uid="0a", namespace=namespace, labels={"role": "agent"}, annotations={},
            ownerReferences=None,
        )  # fmt: skip
        return SimpleNamespace(metadata=metadata, spec=None, to_dict=dict)

    async def patch(self, *_: object, **__: object) -> None:
        return None


def _policy(namespace: str, name: str = "agents") -> SimpleNamespace:
    spec = {"podSelector": {"matchLabels": {"role": "agent"}}, "policy": POLICY}
    metadata = SimpleNamespace(namespace=namespace, name=name, generation=1)
    return SimpleNamespace(metadata=metadata, spec=spec)


def test_a_policy_without_a_pod_on_the_node_has_its_secret_not_read_and_holds_no_other_i12(
    tmp_path: Path,
) -> None:
    """Attack: many policies of one namespace with Secrets that are not there. And least privilege:
    this node asks for the Secret of the one policy that its pod is under."""
    names = [f"team-{number}" for number in range(20)]
    server: Any = _ApiServer([_policy(name) for name in names])
    places = HostPaths(tmp_path, tmp_path / "config", tmp_path / "state", tmp_path / "run")
    said: list[str] = []
    files = PolicyFiles(tmp_path / "cluster", places, FileCatalogue())

    async def follow() -> None:
        view = ClusterView(server, files, said.append)
        task = asyncio.ensure_future(view.follow())
        await view.known.wait()
        assert view.counted() == (len(names), 0), said
        assert server.watched == []
        using = asyncio.ensure_future(view.known_pod(PodIdentity("0a", "team-3", "agent")))
        await until_in_loop(lambda: server.watched)
        assert server.watched == ["team-3"], "the control: this one is asked for"
        for each in (using, task):
            each.cancel()
        await asyncio.gather(using, task, return_exceptions=True)

    asyncio.run(follow())


def test_one_namespace_takes_no_room_of_another_i12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the list has more policies than it may; the last has one, which is kept."""
    monkeypatch.setattr(room, "MAX_NAMESPACE_POLICIES", 3)
    monkeypatch.setattr(room, "MAX_POLICIES", 5)
    many = [_policy("crowd", f"agents-{number}") for number in range(9)]
    server: Any = _ApiServer([*many, _policy("team")])
    places = HostPaths(tmp_path, tmp_path / "config", tmp_path / "state", tmp_path / "run")
    said: list[str] = []
    files = PolicyFiles(tmp_path / "cluster", places, FileCatalogue())

    async def follow() -> None:
        view = ClusterView(server, files, said.append)
        task = asyncio.ensure_future(view.follow())
        await view.known.wait()
        assert view.counted() == (4, 0), said
        assert sum("crowd/" in each and "3 policies already" in each for each in said) == 6
        assert not any("team/" in each for each in said)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(follow())
