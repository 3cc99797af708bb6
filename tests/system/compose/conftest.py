"""The image, and compose files that run it, in an own engine."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.compose.image import PACKAGING, build_image, engine_client
from tests.rigs.containers.engines import NoEngine, OwnEngine
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import open_ground
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 90.0
SECRET = "sk-a-credential-that-stays-outside"
USER = 60777
"""As the Dockerfile has it."""

POLICY = """\
version = 1
[egress]
allow = ["other.example"]
[services.api]
hosts = ["origin.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:/run/secrets/credential"
allow = ["GET /**"]
env = ["API_TOKEN"]
[upstream]
private = ["origin.example", "other.example"]
ca_file = "/etc/keyhole/origins.pem"
"""

ORIGIN = """\
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = repr(self.headers.get("Authorization") == "Bearer " + open("/credential").read())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
server = http.server.ThreadingHTTPServer(("", 443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/origin.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""

OVER: dict[str, Any] = {
    "services": {
        "origin": {
            "image": "base:1",
            "entrypoint": ["python3", "-I", "/server.py"],
            "stop_signal": "SIGKILL",
            "volumes": [f"./{n}:/{n}:ro" for n in ("server.py", "origin.pem", "credential")],
            "networks": {"default": {"aliases": ["origin.example", "other.example"]}},
        },
        "gateway": {
            "volumes": ["./origins.pem:/etc/keyhole/origins.pem:ro"],
            "healthcheck": {"interval": "1s", "timeout": "20s", "retries": 60},
        },
        "door": {"healthcheck": {"interval": "1s", "timeout": "20s", "retries": 60}},
    },
    # Nothing leaves this host, whatever is asked.
    "networks": {"default": {"internal": True}},
}


def service(name: str) -> str:
    """The lines of one service of the shipped file."""
    shipped = (PACKAGING / "compose.yaml").read_text("utf-8")
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", shipped, re.MULTILINE)
    assert found
    return found[1]


def eventually(happened: Callable[[], bool]) -> None:
    """Wait for what an engine does by itself; each look starts a few programs."""
    until(happened, PATIENCE, pause=0.2)


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("compose", engine=True) as path:
        yield path


@pytest.fixture(scope="session")
def engine(ground: Path) -> Iterator[OwnEngine]:
    """An engine of our own."""
    directory = ground / "engine"
    directory.mkdir()
    try:
        for program in ("docker", "docker-compose"):
            if shutil.which(program) is None:
                raise NoEngine(f"{program} is not installed")
        made = OwnEngine(directory)
    except NoEngine as error:
        give_up(f"no compose: {error}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def image(engine: OwnEngine, ground: Path) -> str:
    """The gateway's image, as the Dockerfile makes it; and the base of both, for sandboxes."""
    try:
        return build_image(engine, ground)
    except NoEngine as error:
        give_up(f"no compose: {error}")


@dataclass(frozen=True)
class Composition:
    """The compose file as it is shipped, with an origin beside it."""

    engine: OwnEngine
    directory: Path

    @classmethod
    def make(cls, engine: OwnEngine, directory: Path) -> Composition:
        """Put the files in place."""
        directory.mkdir()
        for name in ("compose.yaml", "seccomp.json"):
            shutil.copy(PACKAGING / name, directory)
        (directory / "keyhole.toml").write_text(POLICY)
        (directory / "server.py").write_text(ORIGIN)
        credential = directory / "credential"
        credential.write_text(SECRET)
        credential.chmod(0o600)
        os.chown(credential, USER, USER)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "origins.pem"))
        issued = authority.issue_cert("origin.example", "other.example")
        issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "origin.pem"))
        made = cls(engine, directory)
        made.override(OVER)
        return made

    def override(self, more: dict[str, Any]) -> None:
        """JSON is YAML."""
        (self.directory / "over.json").write_text(json.dumps(more))

    def compose(self, *words: str, check: bool = True, file: str = "compose.yaml") -> str:
        """Run compose; what it said."""
        flags = [word for name in (file, "over.json") for word in ("-f", name)]
        words = ("docker-compose", "--ansi", "never", "-p", self.directory.name, *flags, *words)
        return engine_client(self.engine, *words, cwd=self.directory, check=check)

    def docker(self, *words: str, check: bool = True) -> str:
        """Run the engine's own client."""
        return engine_client(self.engine, "docker", *words, cwd=self.directory, check=check)

    def name(self, service: str) -> str:
        return f"{self.directory.name}_{service}_1"

    def state(self, service: str) -> dict[str, Any]:
        """As the engine knows it; empty where there is none."""
        said = self.docker("inspect", "-f", "{{json .State}}", self.name(service), check=False)
        return dict(json.loads(said)) if said.startswith("{") else {}

    def health(self, service: str) -> str:
        """What the engine makes of its checks."""
        return str(self.state(service).get("Health", {}).get("Status"))

    def inside(self, *command: str, seconds: int = 30) -> str:
        """A command in the sandbox, entered as its first one is; what it said."""
        entrypoint = json.loads(
            self.docker("inspect", "-f", "{{json .Config.Entrypoint}}", self.name("sandbox"))
        )
        # An engine of 20.10 may wait forever for one that ended with its process namespace.
        bounded = ("timeout", "-s", "KILL", str(seconds), "docker", "exec", self.name("sandbox"))
        return engine_client(
            self.engine, *bounded, *entrypoint, *command, cwd=self.directory, check=False
        )

    def remove(self) -> None:
        """All of it at once; volumes go with the engine, networks are bridges of the host."""
        label = f"label=com.docker.compose.project={self.directory.name}"
        for listed, removed in (("ps -aq", "rm -f"), ("network ls -q", "network rm")):
            found = self.docker(*listed.split(), "--filter", label).split()
            self.docker(*removed.split(), *found, check=False)

    def kill_first_process(self, service: str) -> None:
        """As a crash ends it, so that the engine starts it again; by hand it would not."""
        os.kill(int(self.state(service)["Pid"]), 9)


@pytest.fixture(scope="session")
def composition(engine: OwnEngine, image: str, ground: Path) -> Iterator[Composition]:
    """Everything up, the sandbox last."""
    made = Composition.make(engine, ground / "composition")
    made.compose("up", "-d")
    yield made
    made.remove()
