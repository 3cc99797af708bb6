"""I4: the name asked for, the address connected to and the TLS name are one name.

Every refusal has its positive control in the same namespace, so that a broken rig cannot pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.connection import FIRST_WORD
from tests.gateway.clients import CONVERSE, HTTPS_GET, TLS_HELLO
from tests.gateway.origins import Origin, echo, web
from tests.gateway.rig import Rig, Watch, policy
from tests.wire.hellos import hello

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tests.gateway.namespace import Namespace

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


def test_a_foreign_server_name_is_refused_with_an_alert(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    # Domain fronting: both names are allowed, and still the connection is for one of them.
    said = namespace.python(TLS_HELLO, "ok.example", "443", "other.example", str(ca_file))
    assert said == "SSLError TLSV1_UNRECOGNIZED_NAME"
    assert watch.until("sni-mismatch", port=443).host == "ok.example"
    assert server.connections == 0
    assert "denied ok.example:443 (TLS asks for another name than DNS did)" in watch.lines
    assert_works(namespace, ca_file)


def test_a_missing_server_name_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    said = namespace.python(TLS_HELLO, "ok.example", "443", "", str(ca_file))
    assert said == "SSLError TLSV1_UNRECOGNIZED_NAME"
    watch.until("sni-missing", port=443)
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_an_encrypted_hello_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    sealed = hello("ok.example", extensions=[(0xFE0D, bytes(40))]).hex()
    said = namespace.python(CONVERSE, "ok.example", "443", f"hex:{sealed},rest")
    assert said == repr(b"\x15\x03\x03\x00\x02\x02\x31")  # access_denied
    watch.until("ech", port=443)
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_what_is_not_tls_is_reset_on_443(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    said = namespace.python(CONVERSE, "ok.example", "443", "send:SSH-2.0-x\\r\\n,rest")
    assert said == "ConnectionResetError"
    watch.until("not-tls", port=443)
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_a_malformed_hello_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    bad = hello("ok.example\0.evil.example").hex()
    said = namespace.python(CONVERSE, "ok.example", "443", f"hex:{bad},rest")
    assert said == repr(b"\x15\x03\x03\x00\x02\x02\x32")  # decode_error
    watch.until("hello-malformed", port=443)
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_a_server_name_that_is_no_host_name_is_refused(
    namespace: Namespace, watch: Watch, ca_file: Path
) -> None:
    bad = hello("xn--0.example").hex()
    said = namespace.python(CONVERSE, "ok.example", "443", f"hex:{bad},rest")
    assert said == repr(b"\x15\x03\x03\x00\x02\x02\x32")  # decode_error
    watch.until("hello-malformed", port=443)
    assert_works(namespace, ca_file)


def test_a_second_hello_with_another_name_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    # HelloRetryRequest fronting: the first hello has the right name, the retry another.
    both = (hello("ok.example") + hello("other.example")).hex()
    assert "Error" not in namespace.python(CONVERSE, "ok.example", "443", f"hex:{both},rest")
    watch.until("sni-mismatch", port=443)
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
    for address in ("192.0.2.1", "198.18.0.200", "169.254.169.254"):
        said = namespace.python(CONVERSE, address, "443", "read")
        assert said == "ConnectionResetError"
    assert [e.host for e in watch.events if e.reason == "literal-address"] == [
        "192.0.2.1",
        "198.18.0.200",
        "169.254.169.254",
    ]
    assert server.connections == 0
    assert_works(namespace, ca_file)


def test_a_literal_ipv6_address_is_refused(
    namespace: Namespace, watch: Watch, ca_file: Path
) -> None:
    assert namespace.python(CONVERSE, "2001:db8::1", "443", "read") == "ConnectionResetError"
    assert watch.until("literal-address").host == "2001:db8::1"
    assert_works(namespace, ca_file)


def test_a_port_that_is_not_granted_is_refused(
    namespace: Namespace, watch: Watch, server: Origin, ca_file: Path
) -> None:
    assert namespace.python(CONVERSE, "ok.example", "8443", "read") == "ConnectionResetError"
    watch.until("port-not-granted", port=8443)
    assert watch.lines == [
        "denied ok.example:8443 (port not granted); "
        'allow it with egress.allow = ["ok.example:8443"]'
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
    monkeypatch.setattr("keyhole.gateway.handle.namespace_cookie", lambda sock: id(sock))
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
