"""Containers to measure: an engine of our own with a bridge, an image, and clients inside.

The client's own words are in `inbox.py`, which runs in the container. Root's alone: nobody else can
start an engine or make a bridge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.players import duties, httpload
from benchmarks.players.httporigin import BULK
from benchmarks.players.program import dying_with_us
from tests.rigs.containers.engines import ROOTS, WORKBENCH, NoEngine, OwnEngine, make_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BRIDGE, GATE = "khbench0", "198.51.100.1"
"""The bridge, and the host's address on it: of a network that is for documents (RFC 5737)."""
IMAGE = "bench:1"
_ACCOUNTS = {"/etc/passwd": "root:x:0:0::/root:/bin/sh\n", "/etc/group": "root:x:0:\n"}


@dataclass(frozen=True, slots=True)
class Dock:
    """An engine with an image."""

    client: str
    """The engine's own."""
    socket: Path

    @property
    def env(self) -> dict[str, str]:
        """How the engine is found."""
        return {"DOCKER_HOST": f"unix://{self.socket}"}


@contextmanager
def dock() -> Iterator[Dock]:
    """One of our own, with a bridge that no other engine has. NoEngine where there is none."""
    client, ip = shutil.which("docker"), shutil.which("ip")
    if client is None or ip is None:
        raise NoEngine("docker and ip are needed: apt-get install docker.io iproute2")
    if os.geteuid() != 0:
        raise NoEngine("only root can start an engine")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, _bridge(ip):
        engine = OwnEngine(Path(directory), bridge=BRIDGE)
        try:
            tools = (*WORKBENCH, "/bin/date", *filter(None, [httpload.program()]))
            library = f"/usr/lib/python3.{sys.version_info[1]}"
            make_image(engine.engine, IMAGE, tools, _ACCOUNTS | {ROOTS: ""}, trees=[library])
            yield Dock(client, engine.socket)
        finally:
            engine.close()


@contextmanager
def _bridge(ip: str) -> Iterator[None]:
    def run(*words: str) -> bool:
        done = subprocess.run([ip, *words], check=False, capture_output=True)  # noqa: S603 - ip(8)
        return done.returncode == 0

    if not run("link", "add", BRIDGE, "type", "bridge"):
        raise NoEngine(f"no bridge {BRIDGE} can be made")
    try:
        run("address", "add", f"{GATE}/24", "dev", BRIDGE)
        run("link", "set", BRIDGE, "up")
        yield
    finally:
        run("link", "delete", BRIDGE)


class Boxed:
    """A client in a container, asked over its standard streams."""

    def __init__(
        self, command: Sequence[str], directory: Path, env: Mapping[str, str], core: int | None
    ) -> None:
        """`core` is for the command on this host, where that is the proxy itself."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own command, or the engine's client
            [*dying_with_us(), *command],
            cwd=directory,
            env=dict(env),
            stdin=pipe,
            stdout=pipe,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        if core is not None:
            os.sched_setaffinity(self.pid, {core})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin  # noqa: S101 - for the type checker
        assert self._process.stdout  # noqa: S101 - for the type checker
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, verb: str, descriptors: Sequence[int] = (), **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """As a peer is asked, of which this does a part."""
        match verb, arguments:
            case "begin", {"connections": connections, "varied": varied}:
                script = httpload.load_script(duties.HOST, duties.PORT, varied=varied)
                words = [str(httpload.program()), *httpload.load_words(connections)]
                return self._tell("begin", words=words, script=script)
            case "end", {}:
                return httpload.load_result(self._tell("end"))
            case "echo", {}:
                return self._request("status", duties.ECHO)
            case "status", {"target": target}:
                return self._request("status", target)
            case "download", {}:
                return self._request("download", duties.DOWN, size=BULK)
        raise ValueError(verb)

    def _request(self, verb: str, target: str, **more: int) -> Any:  # noqa: ANN401 - JSON
        head = duties.steady(target).decode()
        return self._tell(verb, host=duties.HOST, port=duties.PORT, head=head, **more)

    def _tell(self, verb: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
        assert self._process.stdin  # noqa: S101 - for the type checker
        assert self._process.stdout  # noqa: S101 - for the type checker
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the container ended; its error is above")
        return json.loads(answer)
