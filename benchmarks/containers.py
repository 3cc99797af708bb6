"""Containers by an engine: how soon a command runs, and what its traffic costs.

The engine is the bench's own. A start is measured to the command's first instruction, by the
clock that the command itself reads. For traffic the same client runs in two containers of one
image: behind a door, by `keyhole run` with a gateway of its own, and on the engine's bridge, by
`docker run`, where an Envoy with the same duties listens on the host's address. Both reach the
same origin on loopback. What is judged is the proxy's own processor time, as in `intercept.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from benchmarks.intercept import BOUNDED, download, requests
from benchmarks.players import duties, envoy, httpload
from benchmarks.players.boxes import GATE, IMAGE, Boxed, dock
from benchmarks.players.gateway import LIMITS, REQUEST_LIMITS
from benchmarks.players.peer import Peer, cores
from benchmarks.players.project import make_project
from benchmarks.rounds import Row, interleave
from benchmarks.ways import Way, check, is_missing
from tests.rigs.containers.engines import NoEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.intercept import Cost
    from benchmarks.players.boxes import Dock

START_AT_MOST = 2.0
TRAFFIC_AT_LEAST = 0.6
STARTS = 11

_CLOCK = ("date", "+%s%N")
_START = "keyhole run --runtime docker, to the first instruction"
_TRAFFIC = (
    f"requests at {BOUNDED} connections, repeated",
    f"requests at {BOUNDED} connections, varied",
    "bulk down",
)


def measure_start() -> list[Row]:
    """`keyhole run --runtime docker -- date` against `docker run`, both to date's own clock."""
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    try:
        with dock() as engine, tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            project, env = make_project(Path(directory))
            env |= engine.env
            run = [keyhole, "run", "--trust", "-q", "--runtime", "docker", "--image", IMAGE, "--"]
            subjects = {
                "keyhole": _starter([*run, *_CLOCK], project, env),
                "docker": _starter([engine.client, "run", "--rm", IMAGE, *_CLOCK], project, env),
            }
            for start in subjects.values():
                start()  # the first makes what later ones find
            found = interleave(subjects, STARTS)
    except NoEngine as why:
        print(f"  {why}")
        return [Row(_START, "", None, START_AT_MOST)]
    own, rival = found["keyhole"], found["docker"]
    return [
        Row(_START, own.shown("ms", 1e3), own.median / rival.median, START_AT_MOST),
        Row("  docker run --rm", rival.shown("ms", 1e3)),
    ]


def _starter(command: list[str], project: Path, env: Mapping[str, str]) -> Callable[[], float]:
    def run() -> float:
        before = time.time_ns()
        done = subprocess.run(  # noqa: S603 - our own command, or the engine's client
            command,
            cwd=project,
            env=env,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
        return (int(done.stdout) - before) / 1e9

    return run


def measure_traffic() -> list[Row]:
    """Requests and a download, from a container by a door and from one on the engine's bridge."""
    missing = envoy.missing() or (None if httpload.program() else httpload.MISSING)
    try:
        if not is_missing(missing):
            return _traffic()
    except NoEngine as why:
        print(f"  {why}")
    return [_row(name, None) for name in _TRAFFIC]


def _traffic() -> list[Row]:
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        engine = stack.enter_context(dock())
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        roots, forgers = trustme.CA(), trustme.CA()
        for name, authority in (("roots", roots), ("forgers", forgers)):
            authority.cert_pem.write_to_path(desk / f"{name}.pem")
        for name, authority in (("origin", roots), ("leaf", forgers)):
            issued = authority.issue_cert(duties.HOST)
            issued.private_key_and_cert_chain_pem.write_to_path(desk / f"{name}.pem")
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port = origin.ask("port")
        door = stack.enter_context(_by_the_door(engine, desk, port, (proxy_core, other_core)))
        rival = stack.enter_context(
            envoy.running(
                desk, envoy.bound(GATE, duties.PORT), port, desk / "roots.pem", proxy_core
            )
        )
        bridged = stack.enter_context(_by_the_bridge(engine, desk, other_core))
        ways = {"keyhole": Way(door, door.pid), "envoy": Way(bridged, rival.pid)}
        for name, way in ways.items():
            check(name, way, origin)
        rows = []
        for name, varied in zip(_TRAFFIC, (False, True), strict=False):
            cost = requests(origin, ways, BOUNDED, varied=varied)
            rows += [
                _row(name, cost, f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s"),
                *cost.rows("a request", "µs", 1e6, lambda seconds: f"{1 / seconds:6.0f} /s"),
            ]
        cost = download(ways)
        return [
            *rows,
            _row(_TRAFFIC[-1], cost, f"{1 / cost.cpu['keyhole'].median:8.2f} GiB/CPU-s"),
            *cost.rows("a GiB down", "ms", 1e3, lambda seconds: f"{1 / seconds:5.2f} GiB/s"),
        ]


def _row(name: str, cost: Cost | None, figure: str = "") -> Row:
    ratio = cost.per_cpu_second("envoy") if cost else None
    return Row(f"{name}, against Envoy on the bridge", figure, ratio, None, TRAFFIC_AT_LEAST)


def _by_the_door(engine: Dock, desk: Path, port: int, on: tuple[int, int]) -> Boxed:
    """A client behind a door; the command that started it is also its gateway."""
    project, env = make_project(desk)
    proxy_core, other_core = on
    home = Path(env["HOME"])
    (home / "key").write_text(duties.SECRET)
    (home / "key").chmod(0o600)
    allow = ", ".join(f'"{rule}"' for rule in duties.RULES)
    (project / "keyhole.toml").write_text(f"""\
version = 1
[sandbox]
runtime = "docker"
image = "{IMAGE}"
[services.api]
hosts = ["{duties.HOST}"]
allow = [{allow}]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:~/key"
[limits]
{LIMITS}{REQUEST_LIMITS}
[upstream]
ca_file = "{desk / "roots.pem"}"
[upstream.connect]
"{duties.HOST}:{duties.PORT}" = "127.0.0.1:{port}"
""")
    inbox = project / "inbox.py"
    inbox.write_text(_inbox())
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    words = [keyhole, "run", "--trust", "-q", "--", "python3", str(inbox), str(other_core)]
    return Boxed(words, project, env | engine.env, proxy_core)


def _by_the_bridge(engine: Dock, desk: Path, core: int) -> Boxed:
    """The same client on the engine's own network, where the name is the host's address."""
    inbox = desk / "inbox.py"
    inbox.write_text(_inbox())
    words = [
        *(engine.client, "run", "--rm", "-i", "--add-host", f"{duties.HOST}:{GATE}"),
        *("-v", f"{desk}:{desk}:ro", "-e", f"SSL_CERT_FILE={desk / 'forgers.pem'}", IMAGE),
        *("python3", str(inbox), str(core)),
    ]
    return Boxed(words, desk, engine.env | {"PATH": "/usr/bin:/bin", "HOME": str(desk)}, None)


def _inbox() -> str:
    return (Path(__file__).parent / "players" / "inbox.py").read_text("utf-8")
