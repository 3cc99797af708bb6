"""An allowed name is reached, byte for byte, by programs that know nothing of Keyhole (I4, I8)."""

from __future__ import annotations

import hashlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.clients import CONVERSE, ECHO_BULK, HTTPS_GET, READ_BULK_SLOWLY, SEND_BULK
from tests.rigs.gateway.origins import Origin, echo, greet, web
from tests.rigs.gateway.rig import Rig, policy

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]


def test_python_reaches_an_allowed_host_over_tls_and_both_events_are_written(
    namespace: Namespace, rig: Rig, origin: Make, tls: ssl.SSLContext, ca_file: Path
) -> None:
    server = origin(web, tls)
    _, watch = rig.open(namespace.door, policy("ok.example", **{"ok.example:443": server.address}))
    assert namespace.python(HTTPS_GET, "ok.example", str(ca_file)) == "GET / HTTP/1.1|"
    opened = watch.until("rule", port=443)
    assert (opened.host, opened.rule) == ("ok.example", "egress.allow[0]")
    closed = watch.until("closed", port=443)
    details = dict(closed.details)
    assert int(details["up"]) > 300
    assert int(details["down"]) > 500
    assert rig.resolver.asked == []
    assert watch.lines == []


def test_curl_reaches_an_allowed_host_over_tls(
    namespace: Namespace, rig: Rig, origin: Make, tls: ssl.SSLContext, ca_file: Path
) -> None:
    server = origin(web, tls)
    rig.open(namespace.door, policy("ok.example", **{"ok.example:443": server.address}))
    assert shutil.which("curl")
    done = namespace.run("curl", "-sS", "--cacert", str(ca_file), "https://ok.example/hi")
    assert (done.stdout, done.stderr) == ("GET /hi HTTP/1.1|", "")


def test_32_mib_go_both_ways_unchanged(namespace: Namespace, rig: Rig, origin: Make) -> None:
    server = origin(echo)
    _, watch = rig.open(
        namespace.door, policy("ok.example:9000", **{"ok.example:9000": server.address})
    )
    said = namespace.python(ECHO_BULK, "ok.example", "9000", str(32 * 1024 * 1024))
    sent, received = said.split()
    assert sent == received
    assert len(sent) == len(hashlib.sha256().hexdigest())
    closed = watch.until("closed")
    assert dict(closed.details)["up"] == dict(closed.details)["down"] == 32 * 1024 * 1024


@pytest.mark.parametrize("slow", ["origin", "client"])
def test_a_slow_reader_slows_its_writer_and_loses_nothing(
    namespace: Namespace, rig: Rig, origin: Make, slow: str
) -> None:
    go = threading.Event()
    size = 48 * 1024 * 1024
    counted = []

    def patient(sock: socket.socket) -> None:
        go.wait(30)
        total = 0
        while data := sock.recv(1 << 18):
            total += len(data)
        counted.append(total)

    def generous(sock: socket.socket) -> None:
        sock.sendall(bytes(size))

    server = origin(patient if slow == "origin" else generous)
    handle, watch = rig.open(
        namespace.door, policy("ok.example:9000", **{"ok.example:9000": server.address})
    )
    code = SEND_BULK if slow == "origin" else READ_BULK_SLOWLY
    client = subprocess.Popen(
        namespace.command(sys.executable, "-I", "-c", code, "ok.example", "9000", str(size)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watch.until("rule", port=9000)
    moved = settled(lambda: handle.usage)
    # I9: what waits is in the kernel's buffers and one write buffer, not in the gateway's memory.
    assert 0 < moved < size // 2
    go.set()
    said, _ = client.communicate("go\n", timeout=60)
    assert said == f"{size}\n"
    watch.until("closed")
    assert counted == ([size] if slow == "origin" else [])


def settled(measure: Callable[[], tuple[int, int]]) -> int:
    """What a growing number stops at."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = sum(measure())
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.01)
    return last


def test_a_server_that_speaks_first_is_heard_and_half_close_passes_both_ways(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(greet)
    rig.open(namespace.door, policy("ok.example:25", **{"ok.example:25": server.address}))
    # reads the greeting first, then sends, closes its direction, and reads to the end
    said = namespace.python(CONVERSE, "ok.example", "25", "read,send:EHLO,eof,rest")
    assert said == "b'220 ready\\r\\n' b'EHLO'"


def test_a_client_that_only_listens_may_close_its_direction_at_once(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(greet)
    rig.open(namespace.door, policy("ok.example:25", **{"ok.example:25": server.address}))
    assert namespace.python(CONVERSE, "ok.example", "25", "eof,rest") == "b'220 ready\\r\\n'"


def test_a_reset_of_the_origin_arrives_as_a_reset(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    def cut(sock: socket.socket) -> None:
        sock.recv(10)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    server = origin(cut)
    _, watch = rig.open(
        namespace.door, policy("ok.example:25", **{"ok.example:25": server.address})
    )
    said = namespace.python(CONVERSE, "ok.example", "25", "send:x,rest")
    assert said == "ConnectionResetError"
    assert dict(watch.until("closed").details)["end"] == "origin-reset"


def test_a_silent_tunnel_is_cut_after_the_idle_timeout(namespace: Namespace, origin: Make) -> None:
    server = origin(greet)
    rig = Rig(idle_timeout=0.3)
    try:
        _, watch = rig.open(
            namespace.door, policy("ok.example:25", **{"ok.example:25": server.address})
        )
        said = namespace.python(CONVERSE, "ok.example", "25", "read,rest")
        assert said == "b'220 ready\\r\\n' ConnectionResetError"
        assert dict(watch.until("closed").details)["end"] == "idle"
    finally:
        rig.close()
