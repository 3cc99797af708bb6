"""The shipped compose file, end to end, with an image that the shipped Dockerfile made."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.system.compose.conftest import SECRET, USER, Composition, eventually, service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.containers.engines import OwnEngine

pytestmark = pytest.mark.outside

SERVICES = ("gateway", "door", "sandbox", "origin")
ALLOWED = ("curl", "-sS", "-m", "10", "https://origin.example/v1")


def _is_up(composition: Composition) -> bool:
    return (
        composition.health("gateway") == composition.health("door") == "healthy"
        and composition.state("sandbox").get("Running") is True
        and "True" in composition.inside(*ALLOWED, seconds=6)
    )


def _patiently(composition: Composition) -> None:
    """Up again, by whatever the engine restarts and, where it gives up, by a person's `up -d`."""
    if not composition.state("sandbox").get("Running"):
        composition.compose("up", "-d")
    eventually(lambda: _is_up(composition))


def test_a_credential_is_written_outside_and_nothing_else_is_reached(
    composition: Composition,
) -> None:
    """I1, I2, I3. Control: the same client reaches what is allowed."""
    _patiently(composition)
    assert composition.inside(*ALLOWED) == "True"
    script = (
        "env; curl -sS https://other.example/; echo; curl -sS -XPOST https://origin.example/;"
        " echo; curl -sS -m 5 https://elsewhere.example/ && echo reached;"
        " curl -sS -m 5 https://192.0.2.2/ && echo reached;"
        " cat /etc/keyhole/* 2>/dev/null; ls /run/secrets /srv; id -u; tail -n +3 /proc/net/dev"
    )
    said = composition.inside("sh", "-c", script)
    assert "False" in said.splitlines(), "tunnelled, so without a credential"
    assert '"reason": "no-rule"' in said
    assert "Could not resolve host: elsewhere.example" in said
    assert "reached" not in said.splitlines()
    assert re.search("^API_TOKEN=keyhole-", said, re.MULTILINE)
    assert "1000" in said.splitlines()
    assert SECRET not in said
    assert re.findall(r"^ *(\S+): +\d+ +\d+ ", said, re.MULTILINE) == ["lo"]


def test_the_walls_of_each_container_are_those_that_the_file_says(composition: Composition) -> None:
    """I1: no secret is in what the engine tells of any container, image or volume."""
    _patiently(composition)
    told = composition.docker("inspect", *map(composition.name, SERVICES))
    told += composition.docker("image", "inspect", "keyhole")
    told += composition.docker("history", "--no-trunc", "keyhole")
    assert SECRET not in told
    status = json.loads(composition.docker("exec", composition.name("gateway"), "keyhole", "status",
                                           "--json"))  # fmt: skip
    held = {each["id"]: each["on"] for each in status["protections"]}
    # Under the engine's own filter; whether memory is locked is the host's to allow.
    assert {name for name, on in held.items() if not on} <= {"no-swap"}
    assert {"files", "system-calls", "capabilities"} <= set(held)
    seen = composition.docker("exec", composition.name("gateway"), "sh", "-c",
                              "id -u; touch /x /opt/keyhole/x 2>&1; command -v pip gcc apt-get;"
                              " ls /opt/keyhole/lib/*/site-packages", check=False)  # fmt: skip
    assert seen.splitlines()[0] == str(USER)
    assert seen.count("Read-only file system") == 2
    assert not {"pip", "setuptools", "wheel", "hatchling"} & set(seen.split())
    holder = composition.docker("exec", composition.name("door"), "cat", "/proc/1/status")
    assert "Uid:\t60778" in holder
    assert "CapBnd:\t0000000000000000" in holder


def test_health_says_which_origin_is_down_and_the_sandbox_waits_for_it(
    composition: Composition,
) -> None:
    """Control: all is well when it is back."""
    _patiently(composition)
    health = ("exec", composition.name("gateway"), "keyhole", "health")
    assert "no  " not in composition.docker(*health)
    composition.docker("stop", "-t", "0", composition.name("origin"))
    eventually(lambda: "no  origin.example:443: " in composition.docker(*health, check=False))
    said = composition.docker(*health, check=False)
    assert "ok  door" in said
    assert "ok  ca" in said
    composition.docker("start", composition.name("origin"))
    eventually(lambda: "no  " not in composition.docker(*health, check=False))


def test_a_gateway_that_dies_closes_the_sandbox_and_the_next_one_has_it_made_anew(
    composition: Composition,
) -> None:
    """I2: never open. Control: it is served again behind a new door, with a new CA."""
    _patiently(composition)
    before = composition.inside("cat", "/etc/keyhole/ca.pem")
    began = composition.state("sandbox")["StartedAt"]
    composition.docker("kill", composition.name("gateway"))
    eventually(lambda: composition.state("sandbox").get("StartedAt") != began
          or not composition.state("sandbox").get("Running"))  # fmt: skip
    assert "True" not in composition.inside(*ALLOWED, seconds=6)
    composition.docker("start", composition.name("gateway"))
    _patiently(composition)
    assert composition.inside("cat", "/etc/keyhole/ca.pem") != before


def test_a_door_that_dies_takes_the_sandbox_along_and_another_registers(
    composition: Composition,
) -> None:
    """I2, I5: one session for each door, the old one closed first."""
    _patiently(composition)
    ps = ("exec", composition.name("gateway"), "keyhole", "ps", "--json")
    (before,) = json.loads(composition.docker(*ps))
    began = composition.state("sandbox")["StartedAt"]
    composition.kill_first_process("door")
    eventually(lambda: composition.state("sandbox").get("StartedAt") != began
          or not composition.state("sandbox").get("Running"))  # fmt: skip
    _patiently(composition)
    (after,) = json.loads(composition.docker(*ps))
    assert after["id"] != before["id"]


_MOUNT = "      # - ./project:/home/sandbox/project\n"

WRONG = {
    "door": (_MOUNT, "      - door:/innocent:ro\n", "/innocent is mounted and is the gateway's"),
    "secret": (_MOUNT, "      - ./credential:/c:ro\n", "/c is mounted and is the gateway's alone"),
    "engine": (_MOUNT, "      - ENGINE:/engine\n", "/engine is mounted and is a socket of the"),
    "root": ('user: "1000:1000"', 'user: "0:0"', "the user is root"),
    "writable": ("    read_only: true\n", "", "/ is not read-only"),
    "filter": ("seccomp:seccomp.json", "seccomp:unconfined", "no system-call filter is in force"),
    "pid": ("    pid: service:door\n", "", "the processes are not the door's"),
    "net": ("network_mode: service:door", "network_mode: none", "not the one whose door is open"),
}
"""What may be written otherwise, by the name of a service: the text, what is in its place, why."""


def test_a_sandbox_that_is_described_otherwise_runs_nothing(
    composition: Composition, engine: OwnEngine
) -> None:
    """I1, I2, I11. Control: as it is shipped, the same command runs."""
    _patiently(composition)
    once = service("sandbox").replace("[sleep, infinity]", "[id]").replace("on-failure", '"no"')
    blocks = {"as-shipped": once}
    for name, (said, instead, _) in WRONG.items():
        assert said in once
        blocks[name] = once.replace(said, instead.replace("ENGINE", str(engine.socket)))
    blocks = {f"wrong-{name}": text for name, text in blocks.items()}
    head, _, tail = (composition.directory / "compose.yaml").read_text().partition("services:\n")
    described = "".join(f"  {name}:\n{text}" for name, text in blocks.items())
    (composition.directory / "wrong.yaml").write_text(f"{head}services:\n{described}{tail}")
    composition.compose("up", "-d", "--no-deps", *blocks, file="wrong.yaml")
    eventually(lambda: not any(composition.state(name).get("Running") for name in blocks))
    told = {name: composition.docker("logs", composition.name(name)) for name in blocks}
    assert "uid=1000 gid=1000" in told.pop("wrong-as-shipped")
    for name, (_, _, why) in WRONG.items():
        assert "nothing was run: a wall does not stand: " in told[f"wrong-{name}"], name
        assert why in told[f"wrong-{name}"], name
        assert "uid=" not in told[f"wrong-{name}"], name


def test_a_credential_in_a_variable_is_refused_in_a_container(
    engine: OwnEngine, image: str, ground: Path
) -> None:
    """And a sandbox whose gateway is never healthy is never started."""
    made = Composition.make(engine, ground / "variable")
    policy = made.directory / "keyhole.toml"
    policy.write_text(policy.read_text().replace("file:/run/secrets/credential", "unsafe-env:KEY"))
    over = json.loads((made.directory / "over.json").read_text())
    del over["services"]["origin"]
    over["services"]["gateway"]["environment"] = {"KEY": "sk-not-a-good-place-for-this-one"}
    over["services"]["gateway"]["healthcheck"] = {
        "interval": "1s", "retries": 3, "start_period": "1s",
    }  # fmt: skip
    made.override(over)
    try:
        assert "unhealthy" in made.compose("up", "-d", check=False)
        assert made.state("sandbox") == {}
        health = ("exec", made.name("gateway"), "keyhole", "health")
        eventually(lambda: "this is a container (" in made.docker(*health, check=False))
        assert "no  door: " in made.docker(*health, check=False)
    finally:
        made.remove()
