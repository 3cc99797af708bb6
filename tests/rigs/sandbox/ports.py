"""A server for the inside of a sandbox, and a browser's requests to its published port."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import PATIENCE

# `SERVER ADDRESS PORT`: answers with the path; `/flood` never ends; `Upgrade: echo` echoes.
SERVER = """
import socket, sys, threading
def serve(client):
    data = b""
    with client:
        while True:
            while b"\\r\\n\\r\\n" not in data:
                more = client.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\\r\\n\\r\\n")
            path = head.split()[1]
            if b"upgrade: echo" in head.lower():
                client.sendall(b"HTTP/1.1 101 Switching\\r\\nUpgrade: echo\\r\\n\\r\\n" + data)
                while more := client.recv(65536):
                    client.sendall(more)
                return
            if path == b"/flood":
                client.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
                while True:
                    client.sendall(bytes(65536))
            body = b"inside " + path
            head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
            client.sendall(head + body)
address = sys.argv[1]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.create_server((address, int(sys.argv[2])), family=family, backlog=128)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

INNER = 3000


@dataclass
class Publishing:
    """A run that publishes a port."""

    project: Project
    process: subprocess.Popen[bytes]
    session: str
    port: int

    @classmethod
    def start(
        cls, project: Project, *flags: str, address: str = "127.0.0.1", outer: int = 0
    ) -> Publishing:
        """Start one, and wait until its server listens."""
        process = project.start(
            "run",
            "--trust",
            "--publish",
            f"{outer}:{INNER}",
            *flags,
            "--",
            "python3",
            "-I",
            "-S",
            "-c",
            SERVER,
            address,
            str(INNER),
        )
        assert line_of(process.stdout) == "ready"
        said = line_of(process.stderr)
        while "http://" not in said:
            said = line_of(process.stderr)
        found = re.search(r"http://([0-9a-f]{12})\.localhost:(\d+)/", said)
        assert found, said
        return cls(project, process, found[1], int(found[2]))

    @property
    def name(self) -> str:
        """Host of a request that passes."""
        return f"{self.session}.localhost:{self.port}"

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection to the published port."""
        return socket.create_connection((address, self.port), PATIENCE)

    def ask(self, host: str | None = None, path: str = "/", address: str = "127.0.0.1") -> str:
        """The status and body of one request on a connection of its own."""
        with self.connect(address) as made:
            return request(made, self.name if host is None else host, path)

    def events(self) -> list[dict[str, Any]]:
        """The events of its connections."""
        found = json.loads(self.project("log", "--json", "--session", self.session).out)
        return [each for each in found if each["kind"] == "connect"]

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


def request(made: socket.socket, host: str, path: str = "/") -> str:
    """Ask on a connection; the status and the body."""
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return answer_of(made)


def answer_of(made: socket.socket) -> str:
    """The status and the body of one response; empty if the connection ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = made.recv(65536)
        if not more:
            return ""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    size = re.search(rb"(?i)content-length: (\d+)", head)
    assert size, head
    while len(body) < int(size[1]):
        body += made.recv(65536)
    return f"{head.split()[1].decode()} {body.decode().strip()}"
