"""What a sandbox can use up is bounded, and its neighbour does not notice (I9)."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway import refusal_reports
from keyhole.gateway.door import connection
from keyhole.gateway.door.tunnel import Tunnel
from keyhole.policy.budget import GatewayLimits
from tests.rigs.gateway.clients import CONVERSE, ECHO_BULK
from tests.rigs.gateway.origins import Origin, echo
from tests.rigs.gateway.rig import Rig, policy

if TYPE_CHECKING:
    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]

# Opens N connections, says a word on each, prints how many answered within the patience.
MANY = """
import socket, sys
name, port, count, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
address = socket.gethostbyname(name)
clients = []
for _ in range(count):
    client = socket.create_connection((address, port), timeout=20)
    client.sendall(b"x")
    clients.append(client)
answered = 0
for client in clients:
    client.settimeout(patience)
    try:
        answered += client.recv(1) == b"x"
    except OSError:
        pass
print(answered)
for client in clients:
    client.close()
"""

# Connects without end, and keeps what it can.
FLOOD = """
import socket, sys, time
address = socket.gethostbyname(sys.argv[1])
print("flooding", flush=True)
kept = []
while True:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((address, int(sys.argv[2])))
    kept.append(client)
    if len(kept) > 400:
        kept.pop(0).close()
"""

# Times N conversations one after the other; prints milliseconds.
TIMED = """
import socket, sys, time
address = socket.gethostbyname(sys.argv[1])
for _ in range(int(sys.argv[3])):
    begin = time.perf_counter()
    with socket.create_connection((address, int(sys.argv[2])), timeout=20) as client:
        client.sendall(b"x")
        client.recv(1)
    print((time.perf_counter() - begin) * 1000)
"""


@pytest.mark.alone
def test_connections_over_the_limit_wait_for_a_place(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(echo)
    text = policy(
        "ok.example:9000", more="[limits]\nconnections = 5", **{"ok.example:9000": server.address}
    )
    _, watch = rig.open(namespace.door, text)
    assert namespace.python(MANY, "ok.example", "9000", "8", "0.3") == "5"
    assert watch.until("over-limit").rule == "limits.connections"
    # positive control: the places are free again
    assert namespace.python(MANY, "ok.example", "9000", "5", "20") == "5"


def test_connections_over_the_rate_wait_and_come(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(echo)
    more = "[limits]\nconnections_per_second = 10"
    text = policy("ok.example:9000", more=more, **{"ok.example:9000": server.address})
    _, watch = rig.open(namespace.door, text)
    assert namespace.python(MANY, "ok.example", "9000", "15", "20") == "15"
    assert watch.until("over-limit").rule == "limits.connections_per_second"


def test_a_place_that_is_free_again_is_found_after_the_rate_was_reached(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(echo)
    more = "[limits]\nconnections = 5\nconnections_per_second = 4"
    text = policy("ok.example:9000", more=more, **{"ok.example:9000": server.address})
    rig.open(namespace.door, text)
    for _ in range(2):
        namespace.python(MANY, "ok.example", "9000", "8", "0.5")
    assert namespace.python(MANY, "ok.example", "9000", "1", "20") == "1"


def test_nothing_is_left_of_a_connection(namespace: Namespace, rig: Rig, origin: Make) -> None:
    server = origin(echo)
    more = "[limits]\nconnections_per_second = 1000"
    text = policy("ok.example:9000", more=more, **{"ok.example:9000": server.address})
    _, watch = rig.open(namespace.door, text)
    namespace.python(MANY, "ok.example", "9000", "5", "20")
    watch.until("closed")

    def settled_descriptors() -> int:
        while server.open or any(isinstance(o, Tunnel) for o in gc.get_objects()):
            time.sleep(0.01)
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    gc.disable()  # what a cycle keeps would now be kept for ever
    try:
        before = settled_descriptors()
        namespace.python(MANY, "ok.example", "9000", "100", "20")
        assert settled_descriptors() == before
    finally:
        gc.enable()


def test_all_doors_together_have_a_limit_and_a_free_place_goes_to_who_waits(
    namespace: Namespace, neighbour: Namespace, origin: Make
) -> None:
    server = origin(echo)
    rig = Rig(limits=GatewayLimits(connections=4))
    try:
        text = policy("ok.example:9000", **{"ok.example:9000": server.address})
        rig.open(namespace.door, text)
        rig.open(neighbour.door, text)
        hog = subprocess.Popen(
            namespace.command(sys.executable, "-I", "-c", MANY, "ok.example", "9000", "6", "1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert neighbour.python(MANY, "ok.example", "9000", "1", "20") == "1"
        assert hog.communicate(timeout=20)[0] == "4\n"
    finally:
        rig.close()


@pytest.mark.parametrize("limit", ["upload", "download"])
def test_bytes_over_the_sessions_limit_cut_the_connection(
    namespace: Namespace, rig: Rig, origin: Make, limit: str
) -> None:
    server = origin(echo)
    more = f'[limits]\n{limit} = "2MiB"'
    text = policy("ok.example:9000", more=more, **{"ok.example:9000": server.address})
    _, watch = rig.open(namespace.door, text)
    # positive control: within the limit
    said = namespace.python(ECHO_BULK, "ok.example", "9000", str(1 << 20)).split()
    assert said[0] == said[1]
    done = namespace.run(sys.executable, "-I", "-c", ECHO_BULK, "ok.example", "9000", str(4 << 20))
    assert "ConnectionResetError" in done.stderr or "BrokenPipeError" in done.stderr
    assert watch.until("over-limit").rule == f"limits.{limit}"
    key = "up" if limit == "upload" else "down"
    assert int(dict(watch.until("closed", end="over-limit").details)[key]) <= 2 << 20


def test_a_client_that_says_nothing_is_cut(
    namespace: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELLO_TIMEOUT", 0.2)
    _, watch = rig.open(namespace.door, policy("ok.example"))
    said = namespace.python(CONVERSE, "ok.example", "443", "hex:1603,rest")
    assert said == "ConnectionResetError"
    watch.until("client-silent", port=443)


def test_a_client_that_leaves_before_its_hello_is_written_down(
    namespace: Namespace, rig: Rig
) -> None:
    _, watch = rig.open(namespace.door, policy("ok.example"))
    assert namespace.python(CONVERSE, "ok.example", "443", "eof,rest") == ""
    watch.until("client-left", port=443)
    assert watch.lines == []


def test_lines_for_the_person_are_one_per_host_and_bounded(
    namespace: Namespace, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_reports, "MAX_REPORTS", 3)
    _, watch = rig.open(namespace.door, policy("ok.example"))
    for address, port in ("11", "12", "21", "31", "41", "51"):
        namespace.python(CONVERSE, f"192.0.2.{address}", port, "read")
    assert len(watch.events) == 6
    assert [line[:18] for line in watch.lines] == [
        "denied 192.0.2.1:1", "denied 192.0.2.2:1", "denied 192.0.2.3:1", "further refusals a",
    ]  # fmt: skip


@pytest.mark.alone
def test_a_flood_on_one_door_does_not_slow_another_door_much(
    namespace: Namespace, neighbour: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(echo)
    connect = {"ok.example:9000": server.address}
    more = "[limits]\nconnections_per_second = 1000000"
    rig.open(neighbour.door, policy("ok.example:9000", more=more, **connect))
    rig.open(namespace.door, policy("ok.example:9000", **connect))

    def beside_a_flood_of(target: str) -> list[float]:
        flood = subprocess.Popen(
            namespace.command(sys.executable, "-I", "-c", FLOOD, target, "9000"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "flooding\n"
            said = neighbour.python(TIMED, "ok.example", "9000", "100")
        finally:
            flood.kill()
            flood.communicate()
        return [float(line) for line in said.split()]

    # The control floods a port of its own loopback, which no door sees: the same load on the CPUs.
    control, flooded = [], []
    for _ in range(4):
        control += beside_a_flood_of("127.0.0.1")
        flooded += beside_a_flood_of("ok.example")
    ratio = statistics.median(flooded) / statistics.median(control)
    assert ratio < 2
