"""The CNI plugin as a runtime runs it: a program with variables and a configuration (I2)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.sandbox.pods.cni_plugin import ANNOTATIONS, STAMP, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "198.51.100.2/24"}]}
STAMPED = {ANNOTATIONS: {STAMP: "agents"}}
UNSTAMPED: dict[str, dict[str, str]] = {ANNOTATIONS: {}}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team;K8S_POD_NAME=one;K8S_POD_UID=1234-ab"


class Agent:
    """An agent that gives one answer to everything."""

    def __init__(self, path: Path, answer: object) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                self.asked.append(json.loads(peer.makefile("rb").readline()))
                peer.sendall(json.dumps(self._answer).encode())

    def close(self) -> None:
        """End it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where an agent would be."""
    return tmp_path / "cni.sock"


@pytest.fixture
def agent(place: Path) -> Iterator[Agent]:
    """One that does everything."""
    made = Agent(place, {"done": True})
    yield made
    made.close()


def run(
    command: str, place: Path, runtime: object = STAMPED, **more: object
) -> tuple[int, dict[str, Any]]:
    """Run the plugin; its exit code and what it printed."""
    given = {"cniVersion": "1.0.0", "name": "pods", "type": "keyhole", "socket": str(place)}
    done = subprocess.run(
        [sys.executable, "-I", "-m", "keyhole.sandbox.pods.cni_plugin"],
        input=json.dumps(given | {"runtimeConfig": runtime} | more),
        env={"CNI_COMMAND": command, "CNI_ARGS": POD, "CNI_NETNS": "/run/netns/cni-1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout or "{}")


def test_a_stamped_pod_gets_its_door_and_the_result_of_the_plugin_before_passes(
    place: Path, agent: Agent
) -> None:
    assert run("ADD", place, prevResult=RESULT) == (0, RESULT)
    (asked,) = agent.asked
    assert asked["command"] == "ADD"
    assert (asked["namespace"], asked["name"], asked["uid"]) == ("team", "one", "1234-ab")
    assert asked["network"] == "/run/netns/cni-1"


def test_without_an_agent_a_stamped_pod_does_not_start_i2(place: Path) -> None:
    code, said = run("ADD", place, prevResult=RESULT)
    assert code == 1
    assert said["code"] == 11
    assert "stays closed" in said["msg"]


def test_without_an_agent_an_unstamped_pod_starts(place: Path) -> None:
    assert run("ADD", place, UNSTAMPED, prevResult=RESULT) == (0, RESULT)


@pytest.mark.parametrize("runtime", [None, {}, {ANNOTATIONS: None}, {ANNOTATIONS: "no"}, []])
def test_a_runtime_that_says_nothing_about_annotations_counts_as_a_stamp_i3(
    place: Path, runtime: object
) -> None:
    assert run("ADD", place, runtime, prevResult=RESULT)[0] == 1


@pytest.mark.parametrize("answer", [{"done": False, "why": "no policy"}, {"done": 1}, [], "yes"])
def test_any_answer_but_done_refuses_i3(place: Path, answer: object) -> None:
    agent = Agent(place, answer)
    try:
        code, said = run("ADD", place, prevResult=RESULT)
    finally:
        agent.close()
    assert code == 1
    assert said["code"] == 11


def test_a_pod_can_be_deleted_without_an_agent(place: Path) -> None:
    assert run("DEL", place) == (0, {})


def test_a_pod_without_a_door_is_found_by_check(place: Path, agent: Agent) -> None:
    assert run("CHECK", place) == (0, {})
    assert agent.asked[0]["command"] == "CHECK"


def test_versions_and_faults_are_those_of_the_specification(place: Path) -> None:
    code, said = run("VERSION", place)
    assert code == 0
    assert said["supportedVersions"] == list(VERSIONS)
    assert run("ADD", place)[1]["code"] == 7, "no plugin before it"
    assert run("EXPLODE", place)[1]["code"] == 4
    assert run("STATUS", place) == (0, {})
