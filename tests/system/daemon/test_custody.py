"""Processes, files and words of a long-lived gateway under load hold no secret (I1, I8).

The search is tests/system/clients'; its own control is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.search import Search, family
from tests.rigs.clients.services import random_text
from tests.rigs.daemon.homes import ONE, TWO, Agent, Home
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.daemon.origin import Origin
    from tests.rigs.sandbox.people import Person

pytestmark = pytest.mark.outside


@dataclass
class Loaded:
    """A gateway that is kept busy."""

    home: Home
    gateway: subprocess.Popen[bytes]
    agent: Agent
    search: Search
    keys: tuple[str, ...]

    @property
    def workers(self) -> list[dict[str, int]]:
        """The children that have doors."""
        found: list[dict[str, int]] = json.loads(self.home("status", "--json").out)["workers"]
        return found

    @property
    def data_plane(self) -> int:
        """The child that has this session's door."""
        (found,) = [each["pid"] for each in self.workers if each["sessions"]]
        return found

    @property
    def keeper(self) -> int:
        (found,) = set(family(self.gateway.pid)) - {each["pid"] for each in self.workers}
        return found


@pytest.fixture(scope="module")
def loaded(ordinary: Person, origin: Origin) -> Iterator[Loaded]:
    home = Home(ordinary, origin)
    old, one, two = (random_text(prefix) for prefix in ("one-", "one-", "two-"))
    home.keep("secrets/one", old)
    home.store("two", two, "--plain")
    gateway = home.foreground()
    try:
        with home.agent(home.project(ONE, TWO)) as agent:
            assert agent.do("load", "one.example", "two.example") == 2
            home.keep("secrets/one", one)
            until(lambda: origin.credentials("/v1/load").count(f"Bearer {one}") > 1)
            yield Loaded(home, gateway, agent, Search((old, one, two)), (one, two))
    finally:
        gateway.kill()
        gateway.communicate(timeout=PATIENCE)


def test_the_data_plane_and_the_keeper_alone_have_the_secrets(
    loaded: Loaded, origin: Origin
) -> None:
    """I1: they arrive, which is the control; in the control process, in the supervisor and below it
    they never are, nor in a worker that has another session."""
    seen = origin.credentials("/v1/load")
    assert {f"Bearer {key}" for key in loaded.keys} <= set(seen)
    supervisor = loaded.agent.process.pid
    holders = [loaded.data_plane, loaded.keeper]
    idle = [each["pid"] for each in loaded.workers if not each["sessions"]]
    assert idle
    pids = [*holders, loaded.gateway.pid, *idle, supervisor, *family(supervisor)]
    assert len(pids) > 5
    assert loaded.search.in_proc(*pids) == []
    if os.geteuid() == 0:
        holds = {pid: loaded.search.in_memory(pid) for pid in pids}
        assert [pid for pid, held in holds.items() if held] == holders


def test_no_file_and_no_answer_has_a_secret_but_the_store(loaded: Loaded) -> None:
    """I8: the control is that the load is in them."""
    home = loaded.home
    for words in (
        ("ps", "--json"),
        ("status", "--json"),
        ("status", "--metrics"),
        ("secret", "list", "--json"),
        ("log", "--json"),
    ):
        said = home(*words)
        assert said.code == 0, said
        assert len(said.out) > 100
        assert not loaded.search.holds((said.out + said.err).encode()), words
    audit = b"".join(path.read_bytes() for path in (home.state / "audit").glob("*.jsonl"))
    assert b"/v1/load" in audit
    assert b"secret-changed" in audit
    assert loaded.search.in_files(home.state) == [str(home.state / "secrets" / "two.secret")]


def test_the_gateway_is_locked_in_and_no_process_of_it_is_dumped(loaded: Loaded) -> None:
    """I1: facts of the kernel, beside what `keyhole status` says."""
    workers = [each["pid"] for each in loaded.workers]
    assert len(workers) == 2
    for pid in (*workers, loaded.gateway.pid):
        facts = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert facts["NoNewPrivs"] == "1"
        assert facts["Seccomp"] == "2"
        for kind in ("Inh", "Prm", "Eff", "Amb"):
            assert int(facts[f"Cap{kind}"], 16) == 0
    for pid in (loaded.gateway.pid, *workers, loaded.keeper):
        limits = Path(f"/proc/{pid}/limits").read_text()
        (core,) = [line.split()[4:6] for line in limits.splitlines() if "core file" in line]
        assert core == ["0", "0"]
        # What must not be dumped is root's in /proc, whoever runs it.
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0


# ── the end of it: last in this file, since nothing is left afterwards ────────────────────────────


def test_a_crash_leaves_no_core_and_says_no_secret(loaded: Loaded) -> None:
    """I1, I8: of the keeper, and then of the control process; the limit was raised from outside."""
    keeper = loaded.keeper
    for pid in (keeper, loaded.gateway.pid):
        _crash(pid)
        if pid == keeper:
            until(lambda: '"keeper",\n      "on": false' in loaded.home("status", "--json").out)
            # What is open goes on, and what is new is refused with the reason.
            assert loaded.agent.do("get", "one.example", "/v1/x")[0] == 200
            said = loaded.home.second(ONE).run("true")
            assert (said.code, "the gateway's keeper has ended" in said.err) == (125, True), said
    _, status = os.waitpid(loaded.gateway.pid, 0)
    loaded.gateway.returncode = os.waitstatus_to_exitcode(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert not os.WCOREDUMP(status)
    assert loaded.gateway.stderr is not None
    words = loaded.gateway.stderr.read()
    assert b"Segmentation fault" in words  # the control: it did crash, and did say so
    assert not loaded.search.holds(words)
    assert loaded.search.in_files(loaded.home.state, loaded.home.project().directory) == [
        str(loaded.home.state / "secrets" / "two.secret")
    ]


def _crash(pid: int) -> None:
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with contextlib.suppress(PermissionError):  # only root raises a limit again
        resource.prlimit(pid, resource.RLIMIT_CORE, limit)
    os.kill(pid, signal.SIGSEGV)
