"""ClientHellos for tests: built field by field, and real ones from OpenSSL."""

from __future__ import annotations

import ssl


def extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, body)


def vector(size: int, body: bytes) -> bytes:
    return len(body).to_bytes(size, "big") + body


def server_name(name: str) -> bytes:
    """The body of a server name extension."""
    return vector(2, b"\x00" + vector(2, name.encode("latin-1")))


def hello(
    sni: str | None = "ok.example",
    extensions: list[tuple[int, bytes]] | None = None,
    *,
    body: bytes | None = None,
    pieces: int = 1,
) -> bytes:
    """A hello as records; `pieces` is how many it is cut into."""
    if body is None:
        found = [] if sni is None else [extension(0, server_name(sni))]
        found += [extension(kind, value) for kind, value in extensions or []]
        body = plain_body() + vector(2, b"".join(found))
    message = b"\x01" + vector(3, body)
    size = -(-len(message) // pieces)
    return b"".join(
        b"\x16\x03\x01" + vector(2, message[i : i + size]) for i in range(0, len(message), size)
    )


def plain_body() -> bytes:
    """A hello's body before its extensions."""
    return b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\x00")


def openssl_hello(name: str | None, alpn: list[str] | None = None) -> bytes:
    """What Python's OpenSSL sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(alpn)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake cannot end alone")


def with_extension(record: bytes, kind: int, body: bytes) -> bytes:
    """A hello of one record, as OpenSSL sends it, with one extension more."""
    fields = 5 + 4  # the headers of the record and of the message
    at = fields + 2 + 32
    at += 1 + record[at]  # the session id
    at += 2 + int.from_bytes(record[at : at + 2], "big")  # the cipher suites
    at += 1 + record[at]  # the compression methods
    more = vector(2, record[at + 2 :] + extension(kind, body))
    return b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, record[fields:at] + more))
