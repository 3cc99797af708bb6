"""The alert is a record that OpenSSL understands."""

from __future__ import annotations

import ssl

import pytest

from keyhole.wire.tls_alert import (
    ACCESS_DENIED,
    NO_APPLICATION_PROTOCOL,
    UNRECOGNIZED_NAME,
    fatal,
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ACCESS_DENIED, "ACCESS_DENIED"),
        (UNRECOGNIZED_NAME, "UNRECOGNIZED_NAME"),
        (NO_APPLICATION_PROTOCOL, "(?i)no.application.protocol"),
    ],
)
def test_a_client_reads_the_alert(code: int, words: str) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="ok.example")
    incoming.write(fatal(code))
    with pytest.raises(ssl.SSLError, match=words):
        client.do_handshake()
