"""A Podman of an ordinary user's own: its service, its storage, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.sandbox.containers.engine import Engine
from keyhole.sandbox.containers.engine_client import EngineFailed
from tests.rigs.containers.engines import END_SECONDS, START_SECONDS, NoEngine
from tests.rigs.sandbox.projects import SEARCH

if TYPE_CHECKING:
    from tests.rigs.sandbox.people import Person


class RootlessPodman:
    """`podman system service`, started by a person in a runtime directory of theirs."""

    def __init__(self, person: Person) -> None:
        for name, package in (("podman", "podman"), ("newuidmap", "uidmap")):
            if shutil.which(name, path=SEARCH) is None:
                raise NoEngine(f"{package} is not installed")
        self._person = person
        # Of a short name: Podman refuses one of over 50 characters for what it has below.
        self.runtime = Path(tempfile.mkdtemp(prefix="keyhole-"))
        self.socket = self.runtime / "podman/podman.sock"
        self.socket.parent.mkdir(mode=0o700)
        person.own(self.runtime, self.socket.parent)
        words = ["podman", "--storage-driver=overlay", "--log-level=error"]
        # crun wants one version of control groups; some machines have both.
        words += ["--runtime=runc"] if Path("/sys/fs/cgroup/unified").is_dir() else []
        self._log = person.directory / "podman.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "system", "service", "--time=0", f"unix://{self.socket}"],
                cwd=person.directory, env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, **person.become(),
            )  # fmt: skip
        try:
            self.engine = self._answering()
        except BaseException:
            self.close()
            raise

    @property
    def env(self) -> dict[str, str]:
        """What the person's programs find it by."""
        home = str(self._person.directory)
        return {"PATH": SEARCH, "HOME": home, "XDG_RUNTIME_DIR": str(self.runtime)}

    def _answering(self) -> Engine:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.socket.exists():
                try:
                    return Engine(str(self.socket))
                except EngineFailed:
                    pass
            time.sleep(0.05)
        raise NoEngine(f"podman did not start: {self._log.read_text()[-2000:]}")

    def left(self) -> list[str]:
        """The names of containers of ours that are still there, running or not."""
        return [each.labels["keyhole"] for each in self.engine.containers()]

    def close(self) -> None:
        """End it, and the process that keeps its namespaces; nobody of theirs is left then."""
        number = self._process.pid
        lists = Path(f"/proc/{number}/task").glob("*/children")  # of each thread
        served = [pid for each in lists for pid in each.read_text().split()]
        # The one that serves is a child in a user namespace: it outlives who started it, and asked
        # to end it waits for its clients.
        for pid in (*map(int, served), number):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for file in self.runtime.rglob("pause.pid"):
            os.kill(int(file.read_text()), signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        while self._lives() and time.monotonic() < deadline:
            time.sleep(0.05)  # what sees to a container's end ends by itself
        shutil.rmtree(self.runtime, ignore_errors=True)

    def _lives(self) -> bool:
        uid = f"\nUid:\t{self._person.uid}\t"
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if uid in status.read_text():
                    return True
            except OSError:
                continue
        return False
