"""Keyhole's own connections verify the origin (I4)."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from keyhole.model.errors import Misuse
from keyhole.model.host import Host
from keyhole.system.dialler import own_dialler
from keyhole.system.tls import insist_on_verifying, verifying_context
from tests.rigs.gateway.origins import Origin, tls_for
from tests.rigs.policies import book

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

NAME = "ok.example"


def unverified() -> ssl.SSLContext:
    context = verifying_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def of_any_name() -> ssl.SSLContext:
    context = verifying_context()
    context.check_hostname = False
    return context


def _wait(sock: socket.socket) -> None:
    sock.recv(1)


@contextmanager
def serving(authority: trustme.CA, *names: str) -> Iterator[int]:
    """An origin that shakes hands and waits."""
    origin = Origin(_wait, tls_for(authority, *names))
    try:
        yield origin.port
    finally:
        origin.close()


def shake(port: int, trust: ssl.SSLContext) -> str:
    """The version that is spoken with the origin."""

    async def dial() -> str:
        policy = book(f'[upstream.connect]\n"{NAME}:443" = "127.0.0.1:{port}"\n')
        stream = await own_dialler().dial_verified(policy, Host(NAME), 443, trust)
        spoken = stream.writer.get_extra_info("ssl_object").version()
        stream.writer.transport.abort()
        return str(spoken)

    return asyncio.run(dial())


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = verifying_context()
    authority.configure_trust(context)
    return context


def test_the_context_verifies_and_trusts_nobody() -> None:
    insist_on_verifying(verifying_context())
    assert verifying_context().get_ca_certs() == []


@pytest.mark.parametrize("make", [unverified, of_any_name])
def test_no_connection_is_made_without_verification(make: object) -> None:
    """Control: with it, there is one."""
    authority = trustme.CA()
    with serving(authority, NAME) as port:
        assert callable(make)
        with pytest.raises(Misuse, match="does not verify"):
            shake(port, make())
        assert shake(port, trusting(authority)).startswith("TLSv1.")


def test_a_certificate_of_another_name_is_refused() -> None:
    authority = trustme.CA()
    with (
        serving(authority, "other.example") as port,
        pytest.raises(ssl.SSLCertVerificationError, match="mismatch"),
    ):
        shake(port, trusting(authority))


def test_a_certificate_of_another_authority_is_refused() -> None:
    with (
        serving(trustme.CA(), NAME) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="verify failed"),
    ):
        shake(port, trusting(trustme.CA()))
