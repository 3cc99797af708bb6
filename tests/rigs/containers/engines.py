"""An engine of the tests' own, and images for it that are made of this host's programs.

No registry is asked. The engine's files, sockets and processes are its own; it has no bridge and
touches no firewall, and is ended by its process's number.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.sandbox.containers.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

START_SECONDS = 60.0
END_SECONDS = 30.0

ROOTS = "/etc/ssl/certs/ca-certificates.crt"
TOOLS = ("/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep", "/usr/bin/env", "/usr/bin/id")
CURL = ("/usr/bin/curl",)
_GIT = ("/usr/bin/git", "/usr/lib/git-core/git-remote-https")
WORKBENCH = (*TOOLS, *CURL, *_GIT, "/usr/bin/python3")


class NoEngine(Exception):
    """An engine cannot be had on this host, and why."""


class OwnEngine:
    """A `dockerd` in a directory of its own."""

    def __init__(self, directory: Path, *more: str, bridge: str = "none") -> None:
        """`bridge` is one that exists, for containers with a network of the engine's."""
        program = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/usr/local/bin")
        if program is None:
            raise NoEngine("docker.io is not installed")
        if os.geteuid() != 0:
            raise NoEngine("only root can start an engine")
        self.socket = directory / "engine.sock"
        words = {
            "--data-root": directory / "data",
            "--exec-root": directory / "exec",
            "--pidfile": directory / "pid",
            "--host": f"unix://{self.socket}",
            "--bridge": bridge,
            "--iptables": "false",
            "--ip-forward": "false",
            "--log-level": "error",
        }
        self._log = directory / "log"
        self._words = [program, *(f"{name}={value}" for name, value in words.items()), *more]
        self._process = self._started()
        self._directory = directory
        try:
            self._wait()
            self.engine = Engine(str(self.socket))
        except BaseException:
            self.close()
            raise

    def _started(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*self._words, *more],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )  # fmt: skip

    def kill(self) -> None:
        """As the kernel does it when memory is short; its containers' own processes stay."""
        self._process.kill()
        self._process.wait()

    def restart(self, *flags: str) -> None:
        """Start it anew after it was killed, with the same files and users of its socket."""
        before = self.socket.stat()
        self.socket.unlink(missing_ok=True)
        # Whoever has these numbers now, buried or not, is taken for the last one.
        for left in ("pid", "exec/containerd/containerd.pid"):
            (self._directory / left).unlink(missing_ok=True)
        self._process = self._started(*flags)
        self._wait()
        os.chown(self.socket, before.st_uid, before.st_gid)
        os.chmod(self.socket, before.st_mode & 0o777)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(self.socket))
                    client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                    if b" 200 " in client.recv(4096):
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise NoEngine(f"dockerd did not start: {self._log.read_text()[-2000:]}")

    def close(self) -> None:
        """End it, and take its mounts away."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in sorted(points, reverse=True):
            if point.startswith(f"{self._directory}/"):
                subprocess.run(["/bin/umount", "-l", point], check=False, capture_output=True)

    def left(self) -> list[str]:
        """The names of containers of ours that are still there, running or not."""
        return [each.labels["keyhole"] for each in self.engine.containers()]


def make_image(
    engine: Engine,
    name: str,
    programs: Iterable[str],
    texts: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    trees: Iterable[str] = (),
) -> str:
    """An image of these programs, with all that they load, and these files; its name."""
    archive = HostTree()
    for path, to in (links or {}).items():
        archive.link(path, to)
    for program in programs:
        archive.program(program)
    for tree in trees:
        archive.tree(Path(tree))
    for path, text in texts.items():
        archive.put(path, text.encode(), 0o644)
    archive.directory("/tmp", 0o1777)  # noqa: S108 - of the image
    engine.import_image(archive.content(), name, {})
    return name


class HostTree:
    """A tree of this host's own files, as a tar archive."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w")
        self._seen: set[str] = {"", "/"}

    def content(self) -> bytes:
        self._tar.close()
        return self._file.getvalue()

    def directory(self, path: str, mode: int = 0o755) -> None:
        if path in self._seen:
            return
        self.directory(os.path.dirname(path))
        self._seen.add(path)
        entry = tarfile.TarInfo(path[1:])
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def link(self, path: str, to: str) -> None:
        self.directory(os.path.dirname(path))
        self._seen.add(path)
        entry = tarfile.TarInfo(path[1:])
        entry.type, entry.linkname = tarfile.SYMTYPE, to
        self._tar.addfile(entry)

    def put(self, path: str, content: bytes, mode: int = 0o755) -> None:
        if path in self._seen:
            return
        self.directory(os.path.dirname(path))
        self._seen.add(path)
        entry = tarfile.TarInfo(path[1:])
        entry.size, entry.mode = len(content), mode
        self._tar.addfile(entry, io.BytesIO(content))

    def program(self, path: str) -> None:
        self.put(path, Path(path).read_bytes())
        said = subprocess.run(
            ["/usr/bin/ldd", path], capture_output=True, text=True, check=False
        ).stdout
        for line in said.splitlines():
            words = line.split("=> ")[-1].strip().partition(" ")[0]
            if words.startswith("/"):
                self.put(words, Path(words).read_bytes())

    def tree(self, path: Path) -> None:
        for found in sorted(path.rglob("*")):
            parts = found.relative_to(path).parts
            if parts[0] in _UNUSED or "__pycache__" in parts or not found.is_file():
                continue
            if found.suffix == ".so":
                self.program(str(found))
            else:
                self.put(str(found), found.read_bytes(), 0o644)


_UNUSED = ("test", "idlelib", "lib2to3", "dist-packages", "pydoc_data", "ensurepip", "tkinter")
