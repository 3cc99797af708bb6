"""Admission answers about policies as the API server asks; the API server itself is not there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.kube.admission_server import AdmissionServer
from keyhole.app.kube.policy_files import PolicyFiles
from keyhole.app.kube.resources import MAX_NAMESPACE_POLICIES, KeyholePolicy
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

POLICY = """\
version = 1
[services.own]
hosts  = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:own/token"
allow  = ["GET /**"]
"""


class AwayServer:
    """An API server that answers nothing."""

    def list(self, kind: object, **_: object) -> Any:  # noqa: ANN401
        raise OSError("away")

    async def get(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        raise OSError("away")


@pytest.fixture
def server(tmp_path: Path) -> AdmissionServer:
    places = HostPaths(*(tmp_path / name for name in ("home", "config", "state", "runtime")))
    files = PolicyFiles(tmp_path / "cluster", places, FileCatalogue())
    client: Any = AwayServer()
    return AdmissionServer(client, files, ("lab", "keyhole-system"))


def ask(server: AdmissionServer, **request: object) -> tuple[bool, str]:
    """Whether a policy is allowed, and what is said."""
    asked = {"kind": {"kind": "KeyholePolicy"}, "uid": "1", "name": "agents", **request}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"request": asked}).encode()}

    async def send(message: Any) -> None:  # noqa: ANN401 - of ASGI
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/policies", "headers": [], "query_string": b"",
    }  # fmt: skip
    asyncio.run(server.application()(scope, receive, send))
    answer = json.loads(sent[-1]["body"])["response"]
    return answer["allowed"], (answer.get("status") or {}).get("message", "")


def policy(role: str = "agent") -> dict[str, Any]:
    return {"spec": {"podSelector": {"matchLabels": {"role": role}}, "policy": POLICY}}


@pytest.mark.parametrize("namespace", ["lab", "keyhole-system"])
def test_a_policy_for_pods_that_nobody_stamps_is_refused_i3(
    server: AdmissionServer, namespace: str
) -> None:
    """Also where the administrator has exempted a namespace by the chart's values."""
    allowed, said = ask(server, operation="CREATE", namespace=namespace, object=policy())
    assert (allowed, "exempt" in said) == (False, True), said
    # The control: elsewhere the policy is looked at, for which the API server is asked.
    allowed, said = ask(server, operation="CREATE", namespace="team", object=policy())
    assert (allowed, "does not answer" in said) == (False, True), said


def test_a_change_that_leaves_the_spec_alone_asks_for_no_right_and_any_other_does_i1(
    server: AdmissionServer,
) -> None:
    """Accounts of the cluster rewrite stored objects, and remove finalizers."""
    request: dict[str, Any] = {"operation": "UPDATE", "namespace": "team", "oldObject": policy()}
    assert ask(server, **request, object=policy() | {"metadata": {"labels": {"a": "b"}}})[0]
    allowed, said = ask(server, **request, object=policy("other"))
    assert (allowed, "does not answer" in said) == (False, True), said
    created = {**request, "operation": "CREATE"}
    assert not ask(server, **created, object=policy())[0]


class CrowdedServer(AwayServer):
    """Has so many policies in every namespace, and answers nothing else."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def list(self, kind: object, **_: object) -> AsyncIterator[object]:
        for number in range(self._count if kind is KeyholePolicy else 0):
            yield number


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_namespace_has_a_bounded_number_of_policies_i12(tmp_path: Path, operation: str) -> None:
    """A change of one that is there passes on to the other checks, and so does one fewer."""
    places = HostPaths(*(tmp_path / name for name in ("home", "config", "state", "runtime")))
    files = PolicyFiles(tmp_path / "cluster", places, FileCatalogue())
    for count in (MAX_NAMESPACE_POLICIES - 1, MAX_NAMESPACE_POLICIES):
        client: Any = CrowdedServer(count)
        server = AdmissionServer(client, files, ())
        _, said = ask(server, operation=operation, namespace="team", object=policy())
        full = operation == "CREATE" and count == MAX_NAMESPACE_POLICIES
        assert ("which is the most" in said) is full, said
