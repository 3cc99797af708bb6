"""Namespaces, gateways, origins and certificates for the tests of this room."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import Handler, Origin, tls_for
from tests.rigs.gateway.rig import FakeResolver, Rig
from tests.rigs.gateway.stage import AMPLE, Serve, Stage, service, serving, set_up

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import trustme


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace with a door."""
    made = Namespace.make()
    yield made
    made.close()


@pytest.fixture
def neighbour() -> Iterator[Namespace]:
    made = Namespace.make()
    yield made
    made.close()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_bytes(authority.cert_pem.bytes())
    path.parent.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """A server's context for ok.example and its friends."""
    context = tls_for(authority, "ok.example", "*.ok.example", "other.example")
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
    made = Rig(resolver)
    yield made
    made.close()


@pytest.fixture
def stage(authority: trustme.CA) -> Iterator[Stage]:
    """A namespace and an intercepting gateway; the door is still to be opened."""
    with set_up(authority) as made:
        yield made


@pytest.fixture
def served(stage: Stage, tls: ssl.SSLContext) -> Iterator[Serve]:
    """Opens the stage's door with a service behind it, all of which is allowed but `/no`."""
    with contextlib.ExitStack() as stack:

        def serve(handler: Handler, limits: str = AMPLE) -> Origin:
            server = stack.enter_context(serving(handler, tls))
            own = service("own", "ok.example", more='deny = ["* /no"]')
            stage.open(own, limits, ok_example=server)
            return server

        yield serve
        stage.close_talks()
