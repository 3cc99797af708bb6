"""Doors without sandboxes: one process that makes empty namespaces, many a second.

`Doors` is the test's end. The process makes each namespace by the helper's own code, hands its door
out, and keeps it, so that connections can be made inside, until it is let go of.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.rigs.daemon.estate import HOST, Estate
from tests.rigs.waiting import PATIENCE

NAMES = ("tcp", "udp", "tcp6")
_NEW_NET = 0x40000000
_RESOLVER = "198.51.100.53"
"""Any address is the gateway's inside; this one is of a documentation range."""


class Doors:
    """Makes namespaces."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(PATIENCE)
        before = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
        with theirs:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", "tests.rigs.daemon.doors", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[3],
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._process.wait(PATIENCE)

    def make(self, number: int) -> list[socket.socket]:
        """A namespace of this number, and its door."""
        return self._ask("make", number)

    def again(self, number: int) -> list[socket.socket]:
        """A second door of a namespace that has one."""
        return self._ask("again", number)

    def connect(self, number: int, name: str = HOST, port: int = 443) -> socket.socket:
        """A connection that was made inside; OSError where the gateway refuses it."""
        (made,) = self._ask("connect", number, name, port)
        made.settimeout(PATIENCE)
        return made

    def drop(self, number: int) -> None:
        self._ask("drop", number)

    def _ask(self, *words: object) -> list[socket.socket]:
        self._sock.send(json.dumps(words).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._sock, 4096, len(NAMES))
        if answer != b"done":
            raise ConnectionRefusedError(answer.decode())
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]


class Tenancy:
    """A session with a door and a line, held by this process, as a supervisor holds one."""

    def __init__(self, estate: Estate, doors: Doors, number: int) -> None:
        self._lines = estate.lines
        self._doors = doors
        self._number = number
        opened = estate.client.open_session(estate.opened_as)
        self.id = opened.id
        self.ca = opened.ca
        door = doors.make(number)
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE)
        estate.lines.append(self.line)
        with theirs:
            handed = [*door, theirs]
            names = [*NAMES[: len(door)], "line"]
            estate.client.open_door(self.id, names, [each.fileno() for each in handed])
        for each in door:
            each.close()
        self._context: ssl.SSLContext | None = None

    def connect(self) -> ssl.SSLSocket:
        """A TLS connection to the service, made inside."""
        if self._context is None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.load_verify_locations(cadata=self.ca)
        plain = self._doors.connect(self._number)
        return self._context.wrap_socket(plain, server_hostname=HOST)

    def get(self, path: str = "/v1/x") -> int:
        """Ask the service for something on a connection of its own: HTTP's code."""
        with self.connect() as sock:
            return ask(sock, path)

    def finish(self) -> None:
        """As a run does it: say how it ended, and wait for the last digest."""
        self.line.send(json.dumps({"ended": 0}).encode())
        while b'"head"' not in self.line.recv(65536):
            pass
        self.hang_up()

    def hang_up(self) -> None:
        """As a run that was killed does it."""
        self._lines.remove(self.line)
        self.line.close()
        self._doors.drop(self._number)


def ask(sock: ssl.SSLSocket, path: str = "/v1/x") -> int:
    """One request on an open connection: HTTP's code, when the answer is read."""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        assert more, "the connection was cut"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return int(head.split()[1])


# ── the process ───────────────────────────────────────────────────────────────────────────────────


class _Maker:
    def __init__(self) -> None:
        from keyhole.sandbox.programs import find_programs

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._nft = str(find_programs().nft)
        self._spaces: dict[int, int] = {}

    def make(self, number: int) -> list[socket.socket]:
        from keyhole.sandbox import empty_network

        if self._libc.unshare(_NEW_NET):
            raise OSError(ctypes.get_errno(), "unshare")
        self._spaces[number] = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        empty_network.bring_up_loopback()
        empty_network.make_everything_local()
        empty_network.load_ruleset(self._nft)
        return empty_network.open_door_sockets()

    def again(self, number: int) -> list[socket.socket]:
        self._enter(number)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        return [socket.create_server(("127.0.0.1", 0)), udp]

    def _enter(self, number: int) -> None:
        if self._libc.setns(self._spaces[number], _NEW_NET):
            raise OSError(ctypes.get_errno(), "setns")

    def connect(self, number: int, name: str, port: int) -> list[socket.socket]:
        import dns.message
        import dns.query

        self._enter(number)
        reply = dns.query.udp(dns.message.make_query(name, "A"), _RESOLVER, timeout=PATIENCE)
        if not reply.answer:
            raise ConnectionRefusedError("there is no such name")
        return [socket.create_connection((str(reply.answer[0][0]), port), PATIENCE)]

    def drop(self, number: int) -> list[socket.socket]:
        os.close(self._spaces.pop(number))
        if not self._spaces:
            self._libc.unshare(_NEW_NET)  # it stands in none that anybody made
        return []


def main() -> None:
    """Make what is asked for until nobody asks."""
    control = socket.socket(fileno=int(sys.argv[1]))
    maker = _Maker()
    while question := control.recv(4096):
        verb, *words = json.loads(question)
        made: list[socket.socket] = []
        try:
            made = getattr(maker, verb)(*words)
            said = b"done"
        except Exception as error:  # noqa: BLE001 - told to who asked
            said = f"{type(error).__name__}: {error}".encode()
        rights = array.array("i", [each.fileno() for each in made])
        beside: list[Any] = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if made else []
        control.sendmsg([said], beside)
        for each in made:
            each.close()


if __name__ == "__main__":
    main()
