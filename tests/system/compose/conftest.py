"""The image, built for real from the Dockerfile, and compose files that run it, in an own engine.

No registry is asked: bases are this host's packages, wheels come through this host's own pip, once
for each lock file, and the build has no network. The address of an index is in nothing of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.compose.bases import BUILDER, RUNTIME, base
from tests.rigs.containers.engines import NoEngine, OwnEngine
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import open_ground
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging" / "container"
LOCK = ROOT / "requirements" / "runtime.lock"
SECONDS = 180
"""For one command of an engine's, on a host that is busy."""
PATIENCE = 90.0
SECRET = "sk-a-credential-that-stays-outside"
USER = 60777
"""As the Dockerfile has it."""
PYTHON = "/usr/bin/python3"

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


def _run(engine: OwnEngine, *words: str, cwd: Path, check: bool = True) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "DOCKER_HOST": f"unix://{engine.socket}",
        "DOCKER_BUILDKIT": "0",
        "SANDBOX_IMAGE": "base:1",
    }
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=SECONDS, text=True, errors="replace", check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def wheels() -> Path:
    """What the lock file names, by this host's own pip; kept from one run to the next."""
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    place = ROOT / ".pytest_cache" / "wheels" / key
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent))
        pip = [PYTHON, "-m", "pip", "download", "-qq", "--no-input", "--no-deps"]
        words = [*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK), "-d"]
        done = subprocess.run([*words, str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(made)
            give_up(f"no compose: {done.stderr.strip().splitlines()[-1:]}")
        made.chmod(0o755)
        with contextlib.suppress(OSError):  # another was quicker
            made.rename(place)
    return place


@pytest.fixture(scope="session")
def image(engine: OwnEngine, wheels: Path, ground: Path) -> str:
    """The gateway's image, as the Dockerfile makes it; and the base of both, for sandboxes."""
    try:
        engine.engine.import_image(base(RUNTIME), "base:1", {})
        more = ground / "builder"
        more.mkdir()
        (more / "more.tar").write_bytes(base(BUILDER, RUNTIME))
        (more / "Dockerfile").write_text("FROM base:1\nADD more.tar /\n")
        _run(engine, "docker", "build", "-q", "-t", "builder:1", ".", cwd=more)
    except NoEngine as error:
        give_up(f"no compose: {error}")
    context = ground / "context"
    shutil.copytree(ROOT / "src", context / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", context / "requirements")
    shutil.copytree(wheels, context / "wheels")
    arguments = ("BASE=base:1", "BUILDER=builder:1", "PIP_NO_INDEX=1")
    _run(
        engine, "docker", "build", "--network", "none", "-t", "keyhole",
        "-f", str(PACKAGING / "Dockerfile"),
        *(word for each in arguments for word in ("--build-arg", each)), ".",
        cwd=context,
    )  # fmt: skip
    return "keyhole"


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
        return _run(self.engine, *words, cwd=self.directory, check=check)

    def docker(self, *words: str, check: bool = True) -> str:
        """Run the engine's own client."""
        return _run(self.engine, "docker", *words, cwd=self.directory, check=check)

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
        return _run(self.engine, *bounded, *entrypoint, *command, cwd=self.directory, check=False)

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
