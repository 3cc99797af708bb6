"""TLS between two contexts in memory, clients that are as strict as clients get, and a clock."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC).replace(microsecond=0)

    def __call__(self) -> datetime:
        return self.time

    def move(self, by: timedelta) -> None:
        self.time += by


def strict_client(*roots: bytes) -> ssl.SSLContext:
    """What Python 3.13 makes of its default context, with these roots (PEM) and no others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    for each in roots:
        context.load_verify_locations(cadata=each.decode("ascii"))
    return context


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """The client's side after the handshake and a clean goodbye; raises what a side raises."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=name, session=session)
    for _ in range(4):  # flights; no handshake has more
        done = [_goes_on(side) for side in (ours, theirs)]
    assert all(done)
    theirs.write(b"x")
    assert ours.read(1) == b"x"  # tickets of TLS 1.3 come before it
    for side in (theirs, ours, theirs):
        try:
            side.unwrap()
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            continue
    return ours


def _goes_on(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
