"""git through Keyhole against git beside the same server, in the same run.

git in a sandbox of the installed command → gateway → TLS → nginx, fcgiwrap and git's own backend on
loopback; and the same git outside, straight to nginx. Both have both cores: so has a person's. The
server takes most of a clone's and a push's time on either way, as a forge does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.players.gitdriver import __file__ as driver
from benchmarks.rounds import Row, interleave
from tests.rigs.git.server import GitServer, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.rounds import Sample
    from tests.rigs.git.repositories import Bare

CLONE_AT_LEAST, PUSH_AT_LEAST = 0.5, 0.3
FETCH_AT_MOST, SMALL_PUSH_AT_MOST = 0.030, 0.150
"""Seconds that are added at the median."""

BULK_ROUNDS, SMALL_ROUNDS = 5, 21
FILE = 1 << 20
CLONED, PUSHED = 96, 96
"""Files of a mebibyte that do not compress: so many that a clone and a push take a second."""

BRANCH = "agent/bench"
HOST = "github.com"
REPOSITORIES = ("acme/bulk", "acme/sink", "acme/small")

_POLICY = """version = 1
[sandbox.env]
GIT_AUTHOR_NAME = "Agent"
GIT_AUTHOR_EMAIL = "agent@bench.example"
GIT_COMMITTER_NAME = "Agent"
GIT_COMMITTER_EMAIL = "agent@bench.example"
[services.github]
secret = "file:~/token"
repos = {repos}
push = ["agent/*"]
[limits]
requests_per_second = 100000
connections_per_second = 100000
body = "4GiB"
upload = "900GiB"
download = "900GiB"
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"{host}:443" = "{address}"
"""


class Client:
    """A process that runs git and tells how long it took: inside, or beside the server."""

    def __init__(self, command: list[str], where: Path, env: Mapping[str, str], url: str) -> None:
        self._url = url
        # What a run says of the repositories that it leaves behind is no part of a measurement.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(  # noqa: S603 - our own
            command,
            cwd=where,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)
        self._said.close()

    def ask(self, verb: str, repository: str = "", **words: str) -> float:
        """Have something done; seconds that it took."""
        process = self._process
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        url = f"{self._url}/{repository}.git"
        process.stdin.write(json.dumps({"verb": verb, "url": url, **words}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(self._said.read().decode(errors="replace"))
        told = json.loads(line)
        if "error" in told:
            raise RuntimeError(told["error"])
        return float(told["seconds"])


def measure() -> list[Row]:
    """Bulk both ways, then what is added to the smallest."""
    lacking = missing()
    if lacking:
        print(f"  {lacking}")
        return [
            Row(_CLONE, "", at_least=CLONE_AT_LEAST),
            Row(_PUSH, "", at_least=PUSH_AT_LEAST),
            Row(_FETCH, "", bound=1.0),
            Row(_SMALL_PUSH, "", bound=1.0),
        ]
    with _clients() as (server, clients):
        return [*_bulk(server, clients), *_small(server, clients)]


_CLONE = f"clone of {CLONED} MiB, speed against directly"
_PUSH = f"judged push of {PUSHED} MiB, speed against directly"
_FETCH = "time added to a small fetch, of 30 ms"
_SMALL_PUSH = "time added to a small judged push, of 150 ms"


@contextmanager
def _clients() -> Iterator[tuple[GitServer, dict[str, Client]]]:
    """The server, and a client on each way to it."""
    with ExitStack() as stack:
        # In /var/tmp: the sandbox has a /tmp of its own.
        ground = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        ground.chmod(0o755)
        server = GitServer(ground / "server", HOST)
        stack.callback(server.close)
        project, home, beside = (ground / name for name in ("project", "home", "beside"))
        for path in (project, home, beside):
            path.mkdir()
        for name, text in (("token", server.secret), ("ca.pem", server.ca)):
            (home / name).write_text(text)
            (home / name).chmod(0o600)
        policy = _POLICY.format(repos=json.dumps(REPOSITORIES), host=HOST, address=server.address)
        (project / "keyhole.toml").write_text(policy)
        for path in (project, beside):
            shutil.copy(driver, path / "gitdriver.py")
        places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE")}
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home), **places}
        keyhole = str(Path(sys.executable).with_name("keyhole"))
        words = ["python3", "-I", "-S", "gitdriver.py"]
        inside = Client(
            [keyhole, "run", "-q", "--trust", "--", *words], project, env, f"https://{HOST}"
        )
        url = server.url("x").removesuffix("/x.git")
        direct = Client(["/usr/bin/env", *words], beside, server.client(), url)
        yield (
            server,
            {
                "keyhole": stack.enter_context(inside),
                "direct": stack.enter_context(direct),
            },
        )


def _bulk(server: GitServer, clients: dict[str, Client]) -> list[Row]:
    bulk = server.create("acme/bulk")
    bulk.fill("refs/heads/main", CLONED, FILE)
    bulk.git("repack", "-qad")

    def clone(client: Client) -> Callable[[], float]:
        return lambda: client.ask("clone", "acme/bulk")

    clones = interleave({name: clone(each) for name, each in clients.items()}, BULK_ROUNDS)

    def empty_sink() -> None:
        server.create("acme/sink").commit("main", {"readme": b"x"})

    empty_sink()
    for each in clients.values():
        each.ask("prepare", "acme/sink", name="pushed", files=str(PUSHED))

    def push(client: Client) -> Callable[[], float]:
        def once() -> float:
            empty_sink()
            return client.ask("push", "acme/sink", name="pushed", ref=f"refs/heads/{BRANCH}")

        return once

    pushes = interleave({name: push(each) for name, each in clients.items()}, BULK_ROUNDS)
    return [
        *_speed(_CLONE, CLONED, clones, CLONE_AT_LEAST),
        *_speed(_PUSH, PUSHED, pushes, PUSH_AT_LEAST),
    ]


def _small(server: GitServer, clients: dict[str, Client]) -> list[Row]:
    small = server.create("acme/small")
    base = small.commit("main", {f"f{at}": b"%d\n" % at for at in range(50)})
    small.point(f"refs/heads/{BRANCH}", base)
    for each in clients.values():
        each.ask("clone", "acme/small", name="behind")
        each.ask("prepare", "acme/small", name="ahead", files="1")
    small.commit("main", {"late": b"late\n"})

    def fetch(client: Client) -> Callable[[], float]:
        return lambda: client.ask("fetch", "acme/small", name="behind")

    def push(client: Client) -> Callable[[], float]:
        def once() -> float:
            small.point(f"refs/heads/{BRANCH}", base)
            return client.ask("push", "acme/small", name="ahead", ref=f"refs/heads/{BRANCH}")

        return once

    fetches = interleave({name: fetch(each) for name, each in clients.items()}, SMALL_ROUNDS)
    _forget_pushed(small)
    pushes = interleave({name: push(each) for name, each in clients.items()}, SMALL_ROUNDS)
    return [
        *_added(_FETCH, "fetch", fetches, FETCH_AT_MOST),
        *_added(_SMALL_PUSH, "push", pushes, SMALL_PUSH_AT_MOST),
    ]


def _forget_pushed(bare: Bare) -> None:
    """So that the first push finds the server as the later ones do."""
    bare.git("repack", "-qad")


def _speed(name: str, size: int, found: Mapping[str, Sample], at_least: float) -> list[Row]:
    own, direct = found["keyhole"], found["direct"]
    return [
        Row(name, f"{size / own.median:8.1f} MiB/s", direct.median / own.median, None, at_least),
        *(Row(f"  {way}", each.shown("ms", 1e3)) for way, each in found.items()),
    ]


def _added(name: str, what: str, found: Mapping[str, Sample], at_most: float) -> list[Row]:
    added = found["keyhole"].median - found["direct"].median
    return [
        Row(name, f"{added * 1e3:8.1f} ms", max(added, 0.0) / at_most, 1.0),
        *(Row(f"  {way}, a {what}", each.shown("ms", 1e3)) for way, each in found.items()),
    ]
