"""A hello has one meaning or none: everything ambiguous is malformed (I4)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.wire.client_hello import (
    MAX_HELLO,
    MAX_RECORDS,
    ClientHello,
    HelloIncomplete,
    HelloMalformed,
    HelloNotTls,
    HelloOutcome,
    HelloReader,
)
from tests.rigs.wire.hellos import extension, hello, openssl_hello, plain_body, server_name, vector


def read(data: bytes) -> HelloOutcome:
    """The outcome of a whole stream."""
    return HelloReader().feed(data)


def with_extensions(*extensions: bytes) -> bytes:
    """A hello with these extensions as they are."""
    return hello(body=plain_body() + vector(2, b"".join(extensions)))


def test_a_real_hello_is_read() -> None:
    found = read(openssl_hello("Api.Example.org", ["h2", "http/1.1"]))
    assert isinstance(found, ClientHello)
    assert (found.sni, found.alpn, found.ech) == ("Api.Example.org", (b"h2", b"http/1.1"), False)
    assert 0x0304 in found.versions
    nameless = read(openssl_hello(None))
    assert isinstance(nameless, ClientHello)
    assert nameless.sni is None


@pytest.mark.parametrize(
    "command",
    [
        [
            "curl",
            "-sk",
            "--max-time",
            "5",
            "--connect-to",
            "::127.0.0.1:{port}",
            "https://api.example.org/",
        ],
        ["openssl", "s_client", "-connect", "127.0.0.1:{port}", "-servername", "api.example.org"],
    ],
    ids=["curl", "openssl"],
)
def test_the_hello_of_a_real_program_is_read(command: list[str]) -> None:
    if shutil.which(command[0]) is None and not os.environ.get("CI"):
        pytest.skip(f"{command[0]} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        client = subprocess.Popen(
            [word.replace("{port}", port) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server.settimeout(20)
        accepted, _ = server.accept()
        with accepted:
            reader = HelloReader()
            found: HelloOutcome = HelloIncomplete()
            while isinstance(found, HelloIncomplete):
                found = reader.feed(accepted.recv(65536))
        client.wait(20)
    assert isinstance(found, ClientHello)
    assert found.sni == "api.example.org"


def test_every_prefix_of_a_hello_needs_more() -> None:
    for whole in (openssl_hello("ok.example"), hello(pieces=7)):
        reader = HelloReader()
        for index in range(len(whole) - 1):
            assert read(whole[:index]) == HelloIncomplete()
            assert reader.feed(whole[index : index + 1]) == HelloIncomplete()
        assert isinstance(reader.feed(whole[-1:]), ClientHello)


def test_records_are_joined_and_what_follows_is_kept() -> None:
    reader = HelloReader()
    assert reader.feed(hello(pieces=9) + b"more") == ClientHello("ok.example")
    assert reader.rest == b"more"
    assert reader.feed(b"!") == ClientHello("ok.example")


def test_ech_and_early_data_are_seen() -> None:
    found = read(hello(extensions=[(0xFE0D, b"x"), (42, b"")]))
    assert found == ClientHello("ok.example", ech=True, early_data=True)


def test_a_hello_without_extensions_names_nobody() -> None:
    assert read(hello(body=plain_body())) == ClientHello(None)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1", b"\x80\x2e\x01\x03\x01", b"\x16\x02\x00", b"SSH-2.0", b"\x00"]
)
def test_other_protocols_are_not_tls(data: bytes) -> None:
    assert read(data) == HelloNotTls()


FINE = extension(0, server_name("ok.example"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x05\x00\x01\x01", "record version"),
        (b"\x16\x03\x01\x00\x00", "record length"),
        (b"\x16\x03\x01\x40\x01", "record length"),
        (b"\x16\x03\x01\x00\x01\x02", "not a ClientHello"),
        (b"\x16\x03\x01\x00\x01\x01\x17", "another record inside the hello"),
        (b"\x16\x03\x01\x00\x01\x01\x16\x02", "record version"),
        (hello(extensions=[(21, bytes(MAX_RECORDS))], pieces=1000), "too many records"),
        (b"\x16\x03\x01\x00\x04\x01" + MAX_HELLO.to_bytes(3, "big"), "hello too long"),
        (b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, plain_body()) + b"!"),
         "trailing bytes after the hello"),
        (hello(body=plain_body()[:20]), "length"),
        (hello(body=b"\x02\x00" + plain_body()[2:]), "legacy version"),
        (hello(body=b"\x03\x03" + bytes(32) + vector(1, bytes(33))), "session id"),
        (hello(body=b"\x03\x03" + bytes(33) + vector(2, b"")), "cipher suites"),
        (hello(body=b"\x03\x03" + bytes(33) + vector(2, b"abc")), "cipher suites"),
        (hello(body=b"\x03\x03" + bytes(33) + vector(2, b"ab") + b"\x00"), "compression methods"),
        (hello(body=plain_body() + vector(2, FINE) + b"!"), "trailing bytes in the hello"),
        (with_extensions(FINE, FINE), "duplicate extension"),
        (with_extensions(FINE + b"\x00"), "length"),
        (with_extensions(extension(0, b"")), "length"),
        (with_extensions(extension(0, vector(2, b"\x01" + vector(2, b"a")))), "server name type"),
        (with_extensions(extension(0, vector(2, b"\x00\x00\x01a\x00\x00\x01b"))),
         "several server names"),
        (with_extensions(extension(0, server_name("a") + b"!")), "several server names"),
        (with_extensions(extension(16, vector(2, b"\x00"))), "alpn"),
        (with_extensions(extension(16, vector(2, b"\x01x") + b"!")), "alpn"),
        (with_extensions(extension(43, vector(1, b""))), "supported versions"),
        (with_extensions(extension(43, vector(1, b"abc"))), "supported versions"),
        (with_extensions(extension(43, vector(1, b"ab") + b"!")), "supported versions"),
    ],
)  # fmt: skip
def test_what_has_no_one_meaning_is_malformed(data: bytes, reason: str) -> None:
    assert read(data) == HelloMalformed(reason)


@pytest.mark.parametrize(
    "name",
    ["", "evil\0.ok.example", "ok.example.", ".ok", "-a.example", "ok_.example", "a b", "ö.example",
     "x" * 64 + ".example", ".".join(["a" * 60] * 5), "*.example", "a..b", "[::1]"],
)  # fmt: skip
def test_a_name_that_is_not_letters_digits_and_hyphens_is_malformed(name: str) -> None:
    assert read(hello(name)) == HelloMalformed("server name")


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x16\x03\x01", hello()[:20]]))
def test_no_bytes_make_it_raise(data: bytes, start: bytes) -> None:
    assert isinstance(
        read(start + data), HelloIncomplete | HelloNotTls | HelloMalformed | ClientHello
    )


@given(st.data())
def test_a_damaged_hello_never_raises(data: st.DataObject) -> None:
    whole = bytearray(hello(extensions=[(16, vector(2, b"\x02h2")), (43, vector(1, b"\x03\x04"))]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(
        read(bytes(whole)), HelloIncomplete | HelloNotTls | HelloMalformed | ClientHello
    )
