"""Namespaces, gateways, origins and certificates for the tests of this room."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.gateway.namespace import Namespace
from tests.gateway.origins import Handler, Origin
from tests.gateway.rig import FakeResolver, Rig
from tests.gateway.stage import Stage, set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace with a door."""
    made = Namespace.make()
    yield made
    made.close()


@pytest.fixture
def neighbour() -> Iterator[Namespace]:
    """A second namespace."""
    made = Namespace.make()
    yield made
    made.close()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who signs the origins' certificates."""
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority's certificate."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_bytes(authority.cert_pem.bytes())
    path.parent.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """A server's context for ok.example and its friends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("ok.example", "*.ok.example", "other.example").configure_cert(context)
    return context


@pytest.fixture
def origin() -> Iterator[Callable[..., Origin]]:
    """Makes origins that end with the test."""
    made: list[Origin] = []

    def make(handler: Handler, context: ssl.SSLContext | None = None) -> Origin:
        made.append(Origin(handler, context))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def resolver() -> FakeResolver:
    """A resolver that knows nothing until the test says so."""
    return FakeResolver()


@pytest.fixture
def rig(resolver: FakeResolver) -> Iterator[Rig]:
    """A gateway."""
    made = Rig(resolver)
    yield made
    made.close()


@pytest.fixture
def stage(authority: trustme.CA) -> Iterator[Stage]:
    """A namespace and an intercepting gateway; the door is still to be opened."""
    with set_up(authority) as made:
        yield made
