"""What a sandbox costs: to start one, and to have many on one gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.against import VARIABLE
from benchmarks.players import docker
from benchmarks.players.peer import Peer, cores, memory
from benchmarks.players.project import make_project
from benchmarks.rounds import Row, Sample, interleave, sample
from benchmarks.tunnel import PORT, close, inside

if TYPE_CHECKING:
    from collections.abc import Callable

DOCKER_AT_MOST = 0.6
OLDER_AT_MOST = 1.05
"""A start may take as long as that of the checkout which AGAINST names, and noise."""

MANY = 200
MEMORY_AT_MOST = 1 << 20
"""Bytes of the gateway's memory for one more sandbox."""

IDLE_DOORS_AT_MOST = 1.5
REQUESTS = 500

PARTS = (
    ("interpreter, the helper begun, imports", "begun", "imported"),
    ("policy and file plan", "imported", "planned"),
    ("ruleset, files; walls remembered, log open", "planned", "door"),
    ("bwrap, the walls asserted; loop imported", "door", "walls"),
    ("the command, and the end", "walls", "ended"),
    ("exit", "ended", "gone"),
)


def measure_start() -> list[Row]:
    """`keyhole run -- true` and its parts, against `docker run --rm`."""
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    # In /var/tmp: the sandbox has a /tmp of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
        project, env = make_project(Path(directory))
        _run([keyhole, "run", "--trust", "--", "true"], project, env)  # the fuller probe, once
        parts: dict[str, list[float]] = {name: [] for name, _, _ in PARTS}
        subjects = {
            "keyhole": _timer([keyhole, "run", "-q", "--", "true"], project, env),
            "parts": _parts_timer(project, env, parts),
        }
        older = os.environ.get(VARIABLE)
        if older:
            # State of its own: two versions need not understand one another's.
            apart = Path(directory) / "older"
            apart.mkdir()
            place, variables = make_project(apart)
            command = [f"{older}/.venv/bin/keyhole", "run", "-q", "--", "true"]
            _run([*command[:2], "--trust", *command[3:]], place, variables)
            subjects["older"] = _timer(command, place, variables)
        engine = docker.program()
        if engine is None:
            print(f"  {docker.MISSING}")
        else:
            image = stack.enter_context(docker.image(engine))
            command = [engine, "run", "--rm", image, "/bin/true"]
            subjects["docker"] = _timer(command, project, None)
        found = interleave(subjects)
    run, rival = found["keyhole"], found.get("docker")
    ratio = run.median / rival.median if rival else None
    rows = [Row("keyhole run -- true, against docker run", _ms(run), ratio, DOCKER_AT_MOST)]
    if rival:
        rows.append(Row("  docker run --rm", _ms(rival)))
    if before := found.get("older"):
        ratio = run.median / before.median
        rows.append(Row("keyhole run -- true, against the older", _ms(run), ratio, OLDER_AT_MOST))
    return rows + [Row(f"  {name}", _ms(sample(taken))) for name, taken in parts.items()]


def measure_many() -> list[Row]:
    """One gateway with one door, and one with 200 real sandboxes that sleep behind others."""
    proxy_core, other_core = cores()
    # The stack inside: the sandboxes have ended when their project is removed.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
        origin = stack.enter_context(Peer("benchmarks.players.origin", core=other_core))
        port = origin.ask("port")
        gateways, ways = {}, {}
        for name in ("one", "many"):
            gateway = stack.enter_context(Peer("benchmarks.players.gateway", core=proxy_core))
            client, door = inside(stack, other_core)
            gateway.ask("open", door, port=port)
            close(door)
            gateways[name], ways[name] = gateway, client
        many = gateways["many"]
        # One first, so that what is loaded once for all does not count.
        many.ask("sandboxes", directory=str(_made(directory, "first")), count=1)
        before = _settled(many)
        start = time.perf_counter()
        many.ask("sandboxes", directory=str(_made(directory, "rest")), count=MANY - 1)
        took = time.perf_counter() - start
        each = (_settled(many) - before) / (MANY - 1)
        rows = [
            Row(
                f"gateway's memory for one more of {MANY} sandboxes, of 1 MiB",
                f"{each / 1024:8.1f} KiB",
                each / MEMORY_AT_MOST,
                1.0,
            ),
            Row("  time to start one of them", f"{took / (MANY - 1) * 1e3:8.1f} ms"),
        ]
        for what, verb, name in (
            ("new connection and reply", "fresh", "small.example"),
            ("request and reply", "talk", "talk.example"),
        ):
            found = interleave({key: _asker(ways[key], verb, name) for key in ways})
            one, idle = found["one"], found["many"]
            rows += [
                Row(
                    f"{what}, {MANY} idle doors against one",
                    idle.shown("µs", 1e6),
                    idle.median / one.median,
                    IDLE_DOORS_AT_MOST,
                ),
                Row("  with one door", one.shown("µs", 1e6)),
            ]
        return rows


def _made(directory: str, name: str) -> Path:
    path = Path(directory) / name
    path.mkdir()
    return path


def _settled(gateway: Peer) -> int:
    gateway.ask("settle")
    return memory(gateway.pid)


def _asker(client: Peer, verb: str, name: str) -> Callable[[], float]:
    address = client.ask("resolve", name=name)

    def run() -> float:
        return float(client.ask(verb, host=address, port=PORT, count=REQUESTS))

    return run


def _timer(command: list[str], project: Path, env: dict[str, str] | None) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        _run(command, project, env)
        return time.perf_counter() - start

    return run


def _parts_timer(
    project: Path, env: dict[str, str], parts: dict[str, list[float]]
) -> Callable[[], float]:
    root = str(Path(__file__).resolve().parent.parent)

    def run() -> float:
        begun = time.monotonic()
        told = _run(
            [sys.executable, "-m", "benchmarks.players.timeline"],
            project,
            {**env, "PYTHONPATH": root},
        )
        reached: dict[str, float] = {"begun": begun, "gone": time.monotonic(), **json.loads(told)}
        for name, start, end in PARTS:
            parts[name].append(reached[end] - reached[start])
        return reached["gone"] - begun

    return run


def _run(command: list[str], project: Path, env: dict[str, str] | None) -> bytes:
    done = subprocess.run(  # noqa: S603 - our own command, or the engine's
        command, cwd=project, env=env, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _ms(found: Sample) -> str:
    return found.shown("ms", 1e3)
