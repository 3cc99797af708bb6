"""The steps of a login against a slow server (I9), and the port at which it waits."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.errors import Refused
from keyhole.model.https_url import HttpsUrl
from keyhole.vault.callback_listener import CallbackListener
from keyhole.vault.login_flow import LoginFlow, LoginWish
from keyhole.vault.login_provider import EndpointAccess
from tests.rigs.policies import book
from tests.rigs.vault.authserver import RESOURCE, SERVICE, AuthServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    import trustme

    from keyhole.vault.oauth.grants import DeviceCode, WantedGrant

WISH = LoginWish("tracker", (SERVICE,), HttpsUrl.parse(RESOURCE), exact=True)


class Silent:
    """A screen that nobody reads."""

    def show_issuer(self, issuer: str, wanted: WantedGrant) -> None:
        del issuer, wanted

    def show_link(self, link: str) -> None:
        raise AssertionError(link)

    def show_code(self, code: DeviceCode) -> None:
        raise Reached(code.where.text)

    def typed(self) -> Awaitable[str] | None:
        return None


class Reached(Exception):
    """The person would be shown a code."""


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[AuthServer]:
    made = AuthServer(authority)
    yield made
    made.close()


def log_in(server: AuthServer, connect: str, patience: float) -> None:
    reach = EndpointAccess(lambda: book(connect), server.trusting, patience)
    asyncio.run(LoginFlow(WISH, reach, Silent()).by_device())


def test_a_slow_description_is_waited_for_in_bounded_time(server: AuthServer) -> None:
    """I9. Control: the same server, quick enough."""
    with pytest.raises(Reached):
        log_in(server, server.connect, 10.0)

    def slow(path: str, document: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1.5 if "authorization-server" in path else 0)
        return document

    server.bend = slow
    began = time.monotonic()
    with pytest.raises(Refused, match="took too long"):
        log_in(server, server.connect, 0.5)
    assert time.monotonic() - began < 10


def test_a_port_at_which_a_login_waits_is_not_shared() -> None:
    """Attack: another program of this host takes a part of the browser's returns."""
    with CallbackListener() as one:
        with pytest.raises(Refused, match="is in use, and the login needs it"):
            CallbackListener(port=one.port)
        assert one.redirect == f"http://127.0.0.1:{one.port}/callback"
    with CallbackListener(port=one.port):
        pass
