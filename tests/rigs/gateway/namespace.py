"""A network namespace with a door, as a sandbox has one; needs no root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from keyhole.gateway.door.door import Door

INSIDE = Path(__file__).with_name("inside.py")
PATIENCE = 60.0


@dataclass(slots=True)
class Namespace:
    """The namespace; `door` is taken once, by the gateway under test."""

    holder: subprocess.Popen[bytes]
    control: socket.socket
    door: Door

    @classmethod
    def make(cls) -> Namespace:
        """Make a namespace and take its door."""
        ours, theirs = socket.socketpair()
        unshare = ["unshare", "--net"]
        if os.geteuid() != 0:
            unshare += ["--user", "--map-root-user"]
        holder = subprocess.Popen(
            [*unshare, sys.executable, "-I", "-S", str(INSIDE), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        word, descriptors, _, _ = socket.recv_fds(ours, 16, 4)
        if word != b"door":
            holder.wait()
            ours.close()
            raise RuntimeError("the namespace could not be made; see the error above")
        return cls(holder, ours, Door.of([socket.socket(fileno=fd) for fd in descriptors], {}))

    def command(self, *argv: str) -> list[str]:
        """A command line that runs a program inside."""
        enter = ["nsenter", "--target", str(self.holder.pid), "--net"]
        if os.geteuid() != 0:
            enter += ["--user", "--preserve-credentials"]
        return [*enter, *argv]

    def run(self, *argv: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end."""
        return subprocess.run(
            self.command(*argv), input=text, text=True, capture_output=True, timeout=PATIENCE
        )

    def python(self, code: str, *args: str) -> str:
        """Run Python inside; what it prints, without the last line's end."""
        done = self.run(sys.executable, "-I", "-c", code, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def connect(self, name: str, port: int = 443) -> socket.socket:
        """A connection from inside, to be used by the test itself."""
        self.control.send(f"{name} {port}".encode())
        word, descriptors, _, _ = socket.recv_fds(self.control, 64, 1)
        assert word == b"made", word
        made = socket.socket(fileno=descriptors[0])
        made.settimeout(PATIENCE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def close(self) -> None:
        self.control.close()
        self.holder.wait(PATIENCE)
        self.door.close()
