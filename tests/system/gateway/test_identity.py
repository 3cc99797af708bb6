"""I4: the name asked for, the address connected to and the TLS name are one name.

Every refusal has its positive control in the same namespace, so that a broken rig cannot pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.door.connection import FIRST_WORD
from tests.rigs.gateway.clients import CONVERSE, HTTPS_GET, TLS_HELLO
from tests.rigs.gateway.origins import Origin, echo, web
from tests.rigs.gateway.rig import Rig, Watch, policy
from tests.rigs.wire.hellos import hello

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]


@pytest.fixture
def server(origin: Make, tls: ssl.SSLContext) -> Origin:
    """An origin behind several names."""
    return origin(web, tls)


@pytest.fixture
def watch(namespace: Namespace, rig: Rig, server: Origin) -> Watch:
    """A door behind which ok.example:443 and, in the clear, ok.example:9000 are allowed."""
    text = policy(
        "ok.example",
        "other.example",
        "ok.example:9000",
        **{"ok.example:443": server.address, "ok.example:9000": server.address},
    )
    return rig.open(namespace.door, text)[1]


def assert_works(namespace: Namespace, ca_file: Path) -> None:
    """The positive control: the same door, the allowed name."""
    assert namespace.python(HTTPS_GET, "ok.example", str(ca_file)) == "GET / HTTP/1.1|"


def by_hex(data: bytes) -> tuple[str, str]:
    return CONVERSE, f"hex:{data.hex()},rest"


UNNAMED = "SSLError TLSV1_UNRECOGNIZED_NAME"
DENIED, UNREADABLE = repr(b"\x15\x03\x03\x00\x02\x02\x31"), repr(b"\x15\x03\x03\x00\x02\x02\x32")
HELLOS = {
    # Domain fronting: both names are allowed, and still the connection is for one of them.
    "another name": ((TLS_HELLO, "other.example"), UNNAMED, "sni-mismatch"),
    "no name": ((TLS_HELLO, ""), UNNAMED, "sni-missing"),
    "a sealed name": (by_hex(hello("ok.example", extensions=[(0xFE0D, bytes(40))])), DENIED, "ech"),
    "no TLS": ((CONVERSE, "send:SSH-2.0-x\\r\\n,rest"), "ConnectionResetError", "not-tls"),
    "NUL": (by_hex(hello("ok.example\0.evil.example")), UNREADABLE, "hello-malformed"),
    "no host name": (by_hex(hello("xn--0.example")), UNREADABLE, "hello-malformed"),
    # HelloRetryRequest fronting: the first hello has the right name, the retry another.
    "another name later": (
        by_hex(hello("ok.example") + hello("other.example")),
        "",
        "sni-mismatch",
    ),
}


@pytest.mark.parametrize("case", HELLOS)
def test_a_hello_that_does_not_plainly_name_this_host_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path, case: str
) -> None:
    """I4: with an alert, if it is TLS."""
    (program, word), expected, reason = HELLOS[case]
    said = namespace.python(program, "ok.example", "443", word, str(ca_file))
    assert said == expected if expected else "Error" not in said
    assert watch.until(reason, port=443).host == "ok.example"
    if case == "another name":
        assert "denied ok.example:443 (TLS asks for another name than DNS did)" in watch.lines
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_tls_shows_itself_on_any_port_and_is_judged_there_even_when_it_comes_late(
    namespace: Namespace, watch: Watch, rig: Rig, ca_file: Path
) -> None:
    # The client is silent for so long that the origin has been dialled without its first word.
    wait = f"    import time; time.sleep({FIRST_WORD * 2})\n    try:\n"
    code = TLS_HELLO.replace("    try:\n", wait, 1)
    said = namespace.python(code, "ok.example", "9000", "other.example", str(ca_file))
    assert said == "SSLError TLSV1_UNRECOGNIZED_NAME"
    watch.until("sni-mismatch", port=9000)
    said = namespace.python(code, "ok.example", "9000", "ok.example", str(ca_file))
    assert said == "connected TLSv1.3"


def test_a_literal_address_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    addresses = ["192.0.2.1", "198.18.0.200", "169.254.169.254", "2001:db8::1"]
    for address in addresses:
        assert namespace.python(CONVERSE, address, "443", "read") == "ConnectionResetError"
    assert [e.host for e in watch.events if e.reason == "literal-address"] == addresses
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_a_port_that_is_not_granted_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    assert namespace.python(CONVERSE, "ok.example", "8443", "read") == "ConnectionResetError"
    watch.until("port-not-granted", port=8443)
    assert watch.lines == [
        "denied ok.example:8443 (the name is allowed, but not at this port); "
        "`keyhole why ok.example:8443` says what allows it"
    ]
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_a_service_is_not_tunnelled(namespace: Namespace, rig: Rig, origin: Make) -> None:
    server = origin(echo)
    _, watch = rig.open(
        namespace.door,
        '[services.model]\nsecret = "store:x"\n[upstream.connect]\n'
        f'"api.model.example:443" = "{server.address}"',
    )
    said = namespace.python(CONVERSE, "api.model.example", "443", "read")
    assert said == "ConnectionResetError"
    assert watch.until("inspection-off", port=443).rule == "services.model"
    assert watch.lines == [
        "denied api.model.example:443 (it belongs to a service, and nothing is inspected in this "
        "session)"
    ]
    assert server.connections == 0


def test_each_session_has_its_own_addresses(
    namespace: Namespace,
    neighbour: Namespace,
    rig: Rig,
    origin: Make,
    tls: ssl.SSLContext,
    ca_file: Path,
) -> None:
    # I5: the same synthetic address is another name behind another door.
    server = origin(web, tls)
    _, mine = rig.open(namespace.door, policy("ok.example", **{"ok.example:443": server.address}))
    _, theirs = rig.open(neighbour.door, policy("other.example"))
    assert_works(namespace, ca_file)
    assert neighbour.python(CONVERSE, "198.18.0.1", "443", "read") == "ConnectionResetError"
    theirs.until("literal-address", port=443)
    assert "literal-address" not in mine.reasons("connect")


def test_a_socket_of_another_namespace_is_dropped(
    namespace: Namespace, neighbour: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # I5: the listener says whose it is; the cookie of what it accepted must agree.
    monkeypatch.setattr("keyhole.gateway.door.handle.namespace_cookie", lambda sock: id(sock))
    _, watch = rig.open(namespace.door, policy("ok.example:9000"))
    assert namespace.python(CONVERSE, "192.0.2.1", "9000", "read") == "ConnectionResetError"
    watch.until("foreign-namespace")


def test_a_closed_door_refuses_at_once_and_cuts_what_was_open(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    # I2: the gateway's end means that nothing works.
    server = origin(echo)
    text = policy("ok.example:9000", **{"ok.example:9000": server.address})
    handle, watch = rig.open(namespace.door, text)
    argv = ("ok.example", "9000", "send:x,read,rest")
    client = subprocess.Popen(
        namespace.command(sys.executable, "-I", "-c", CONVERSE, *argv),
        stdout=subprocess.PIPE,
        text=True,
    )
    watch.until("rule", port=9000)
    rig.call(handle.close)
    said, _ = client.communicate(timeout=20)
    assert said.endswith("ConnectionResetError\n")
    assert dict(watch.until("closed").details)["end"] == "door-closed"
    assert namespace.python(CONVERSE, "198.18.0.1", "9000", "read") == "ConnectionRefusedError"


def test_nothing_is_admitted_while_the_session_says_so(
    namespace: Namespace, rig: Rig, server: Origin, watch: Watch, ca_file: Path
) -> None:
    assert_works(namespace, ca_file)
    watch.admitting = False
    assert namespace.python(CONVERSE, "198.18.0.1", "443", "read") == "ConnectionResetError"
    assert namespace.python(CONVERSE, "ok.example", "443", "read") == "gaierror"
    watch.until("not-admitting", port=443)
    watch.until("not-admitting", type="A")
