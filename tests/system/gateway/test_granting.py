"""What a person grants a running session is a tunnel, timed and counted (I3, I4, I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.model.host import Host
from keyhole.policy.grants import Grant
from keyhole.system import clock
from tests.rigs.gateway.clients import CONVERSE
from tests.rigs.gateway.origins import Origin, Service, echo
from tests.rigs.gateway.rig import Rig, policy
from tests.rigs.gateway.stage import Stage, service
from tests.rigs.gateway.talk import Talk

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from keyhole.gateway.door.handle import DoorHandle
    from keyhole.policy.grants import Grant
    from tests.rigs.gateway.namespace import Namespace

    Make = Callable[..., Origin]

HOST = Host("late.example")
PORT = 9000


def grant(rig: Rig, handle: DoorHandle, seconds: float = 60.0, uses: int = 9) -> Grant:
    return rig.call(lambda: handle.grant(HOST, PORT, seconds, uses))


def let_time_pass(rig: Rig, handle: DoorHandle) -> None:
    """The first grant's time is over, without waiting for it."""

    def pass_on() -> None:
        grants = handle._state.grants
        grants.add(replace(grants.views()[0], expires=clock.now()))
        handle._granting._ends()

    rig.call(pass_on)


def talking(namespace: Namespace) -> Talk:
    """A connection that was answered."""
    talk = Talk(namespace.connect(HOST.name, PORT))
    talk.send(b"x")
    assert talk.exactly(1) == b"x"
    return talk


@pytest.fixture
def server(origin: Make) -> Origin:
    return origin(echo)


def text(server: Origin, *hosts: str) -> str:
    return policy(*hosts, **{f"{HOST}:{PORT}": server.address})


def test_a_host_is_reached_once_it_is_granted_and_as_often(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, text(server))
    assert namespace.python(CONVERSE, HOST.name, str(PORT), "read") == "gaierror"
    granted = grant(rig, handle, uses=2)
    assert rig.call(lambda: handle.grants) == (granted,)
    talks = [talking(namespace), talking(namespace)]
    opened = watch.until("granted", port=PORT)
    assert opened.rule == "grants.late.example"
    (left,) = rig.call(lambda: handle.grants)
    assert (left.uses, left.expires) == (0, granted.expires)
    assert namespace.python(CONVERSE, HOST.name, str(PORT), "read") == "ConnectionResetError"
    assert watch.until("grant-spent", port=PORT).rule == "grants.late.example"
    assert any("keyhole allow ID late.example:9000" in line for line in watch.lines)
    for talk in talks:
        talk.close()


def test_connections_that_race_for_a_grant_get_as_many_as_it_has(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    """I9: none is let through between the asking and the taking."""
    handle, watch = rig.open(namespace.door, text(server))
    grant(rig, handle, uses=3)
    code = (
        "import socket, sys\n"
        "socks = [socket.socket() for _ in range(40)]\n"
        "where = (socket.gethostbyname(sys.argv[1]), int(sys.argv[2]))\n"
        "for s in socks: s.setblocking(False); s.connect_ex(where)\n"
        "said = []\n"
        "for s in socks:\n"
        "    s.settimeout(20)\n"
        "    try:\n"
        "        s.sendall(b'x'); said.append(s.recv(1))\n"
        "    except OSError: pass\n"
        "print(said.count(b'x'))\n"
    )
    assert namespace.python(code, HOST.name, str(PORT)) == "3"
    assert watch.reasons("connect").count("grant-spent") == 37
    assert server.connections == 3


def test_what_a_grant_let_in_ends_with_it(namespace: Namespace, rig: Rig, server: Origin) -> None:
    """I3: an open tunnel is not a way to keep what was lent; the control is the policy's own."""
    own = policy(
        "ok.example:9000", **{f"{HOST}:{PORT}": server.address, "ok.example:9000": server.address}
    )
    handle, watch = rig.open(namespace.door, own)
    grant(rig, handle, seconds=600)
    lent = talking(namespace)
    kept = Talk(namespace.connect("ok.example", PORT))
    kept.send(b"x")
    assert kept.exactly(1) == b"x"
    grant(rig, handle, seconds=0.05)  # said again: shorter
    assert lent.cut() == b""
    assert dict(watch.until("closed", end="grant-expired").details)["port"] == PORT
    assert rig.call(lambda: handle.grants) == ()
    kept.send(b"y")
    assert kept.exactly(1) == b"y"
    assert namespace.python(CONVERSE, HOST.name, str(PORT), "read") == "gaierror"
    kept.close()
    lent.close()


def test_a_grant_that_is_given_again_keeps_what_is_open(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, text(server))
    other = Host("other.example")
    rig.call(lambda: handle.grant(other, PORT, 60.0, 1))
    first = grant(rig, handle, seconds=30.0)
    talk = talking(namespace)
    again = grant(rig, handle, seconds=600.0)
    assert again.expires > first.expires + 500
    let_time_pass(rig, handle)
    assert rig.call(lambda: handle.grants) == (again,)
    talk.send(b"y")
    assert talk.exactly(1) == b"y"
    assert "grant-expired" not in str(watch.events)
    talk.close()


def test_the_address_of_a_granted_host_is_judged(namespace: Namespace, rig: Rig) -> None:
    """I4: a person grants a name, and not what its owner points it at."""
    handle, watch = rig.open(namespace.door, policy())
    rig.resolver.table[HOST.name] = [["169.254.169.254"]]
    grant(rig, handle)
    assert namespace.python(CONVERSE, HOST.name, str(PORT), "send:x,read") == "ConnectionResetError"
    watch.until("address-metadata", port=PORT)


def test_a_granted_host_is_the_name_in_tls(namespace: Namespace, rig: Rig, server: Origin) -> None:
    """I4: a grant of one name on 443 is not one of what else is served there."""
    handle, watch = rig.open(namespace.door, text(server))
    rig.call(lambda: handle.grant(HOST, 443, 60.0, 1))
    sock = namespace.connect(HOST.name, 443)
    sock.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    with sock, pytest.raises(ConnectionResetError):
        sock.recv(100)
    watch.until("not-tls", port=443)


def test_a_services_host_is_not_granted_and_a_new_service_takes_it_back(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I3, I6: else a grant would be a way around what its policy says of paths and credentials."""
    plain, secure = origin(echo), origin(Service(), tls)
    stage.open(service("own", "*.ok.example"), late_example__9000=plain)
    handle, rig = stage.handle, stage.rig
    assert handle is not None
    for name in ("a.ok.example", "b.a.ok.example"):
        with pytest.raises(Refused, match=r"services\.own"):
            rig.call(lambda name=name: handle.grant(Host(name), PORT, 60.0, 1))  # type: ignore[misc]
    grant(rig, handle)
    talk = talking(stage.namespace)
    stage.change(service("own", "*.ok.example"), late_example__9000=plain)
    talk.send(b"y")
    assert talk.exactly(1) == b"y"  # the control: a grant outlives a change of the policy
    stage.change(service("own", HOST.name), late_example=secure, late_example__9000=plain)
    assert talk.cut() == b""
    assert rig.call(lambda: handle.grants) == ()
    talk.close()


def test_a_policy_that_comes_to_allow_what_was_granted_keeps_it_open(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, text(server))
    grant(rig, handle)
    talk = talking(namespace)
    session = rig.session(watch, text(server, f"{HOST}:{PORT}"))
    rig.call(lambda: handle.change(session))
    let_time_pass(rig, handle)
    assert rig.call(lambda: handle.grants) == ()
    talk.send(b"y")
    assert talk.exactly(1) == b"y"
    # And one that takes it away again ends it: its grant is over.
    session = rig.session(watch, text(server))
    rig.call(lambda: handle.change(session))
    assert talk.cut() == b""
    talk.close()


def test_a_closed_door_grants_nothing(namespace: Namespace, rig: Rig, server: Origin) -> None:
    handle, _ = rig.open(namespace.door, text(server))
    grant(rig, handle, seconds=60)
    rig.call(handle.close)
    with pytest.raises(Refused, match="over"):
        grant(rig, handle)


def test_what_was_granted_is_over_when_the_host_has_slept(
    namespace: Namespace, rig: Rig, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: the loop's clock stops meanwhile. Control: it lasts while nobody sleeps."""
    handle, watch = rig.open(namespace.door, text(server))
    grant(rig, handle, seconds=600.0)
    talk = talking(namespace)
    slept = clock.now() + 601
    monkeypatch.setattr(clock, "now", lambda: slept)
    assert talk.cut() == b""
    assert rig.call(lambda: handle.grants) == ()
    assert dict(watch.until("closed", end="grant-expired").details)["port"] == PORT
    assert namespace.python(CONVERSE, HOST.name, str(PORT), "read") == "gaierror"
    talk.close()
