"""A gateway under load keeps its secrets: logs, /proc, memory of others and crashes (I1, I8).

The search is done from outside, by whoever runs the suite, in raw and in every encoded form that
answers are searched for. What a sandbox can see is the matter of test_secrecy.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.inject.renderings import renderings
from tests.rigs.clients.errands import Household
from tests.rigs.clients.search import Search, family
from tests.rigs.clients.services import random_text
from tests.rigs.sandbox.people import Person
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import PATIENCE
from tests.system.clients.conftest import inside_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.clients.services import Services

pytestmark = pytest.mark.outside

POLICY = """
[services.anthropic]
secret = "store:anthropic"
[services.openai]
secret = "exec:KEY_PROGRAM --for openai"
[services.billing]
hosts = ["billing.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/git"
allow = ["GET /v1/**"]
"""

LOAD = """
ask() { curl -sS -A load/1 -o /dev/null "https://$1" || true; }
round() { ask billing.example/v1/x; ask api.anthropic.com/v1/models; ask api.openai.com/v1/models;
          ask billing.example/denied; ask nowhere.example/; }
round; round
for _ in 1 2 3 4; do (while :; do round; sleep 0.1; done) & done
echo ready
wait
"""
"""What is allowed and echoes its credential, what is refused, and what does not exist. The pause
leaves the processor to what searches."""

_numbers = itertools.count(1000)


@dataclass
class Loaded:
    """A gateway that is kept busy."""

    person: Person
    household: Household
    process: subprocess.Popen[bytes]
    search: Search

    @property
    def plane(self) -> int:
        """The data plane's process, which uses the secrets that the run's own reads."""
        (lock,) = (self.state / "run" / "runs").glob("*.lock")
        return int(json.loads(lock.read_text())["plane"][0])

    @property
    def state(self) -> Path:
        return self.household.project.home / "state" / "keyhole"


@pytest.fixture(scope="module")
def loaded(somebody: Person, services: Services) -> Iterator[Loaded]:
    """As root, and as an ordinary user."""
    with under_load(somebody, services) as made:
        yield made


@pytest.fixture
def doomed(somebody: Person, services: Services) -> Iterator[Loaded]:
    """One that a test may end."""
    with under_load(somebody, services) as made:
        yield made


@contextlib.contextmanager
def under_load(somebody: Person, services: Services) -> Iterator[Loaded]:
    household = Household(Project.make(somebody, next(_numbers)), services, inside_for(somebody))
    program = household.project.home / "secrets" / "key-program"
    household.policy(POLICY.replace("KEY_PROGRAM", str(program)))
    keys = services.keys
    env = {"PYTHONFAULTHANDLER": "1"}
    with household.project.running("sh", "-c", LOAD, env=env) as process:
        assert line_of(process.stdout).strip() == "ready"
        search = Search((keys.anthropic, keys.openai, keys.git))
        yield Loaded(somebody, household, process, search)


def test_the_load_reaches_the_services_with_the_secrets(loaded: Loaded, services: Services) -> None:
    """The control of all that follows: the gateway has them, and uses them."""
    [*_, seen] = services.requests("billing.example")
    assert dict(seen["headers"])["authorization"] == f"Bearer {services.keys.git}"
    if os.geteuid() == 0:
        assert loaded.search.in_memory(loaded.process.pid)
        assert loaded.search.in_memory(loaded.plane)


def test_no_process_has_a_secret_in_its_environment_arguments_or_files(loaded: Loaded) -> None:
    """I1: the gateway's own included; the store's file is where one is kept."""
    pids = [loaded.process.pid, *family(loaded.process.pid)]
    assert len(pids) > 4
    assert loaded.search.in_proc(*pids) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the memory of these processes")
def test_no_other_process_has_a_secret_in_its_memory(loaded: Loaded) -> None:
    """I1: the helper, bubblewrap, process 1 inside, the command and its clients."""
    searched = 0
    for pid in set(family(loaded.process.pid)) - {loaded.plane}:
        with contextlib.suppress(OSError):  # clients come and go
            assert not loaded.search.in_memory(pid), pid
            searched += 1
    assert searched >= 3


def test_no_file_that_keyhole_writes_has_a_secret_but_the_store(loaded: Loaded) -> None:
    """I8: the audit log has the load in it, and no secret."""
    audit = loaded.state / "audit"
    lines = b"".join(path.read_bytes() for path in audit.glob("*.jsonl"))
    assert b"billing.example" in lines  # the control: it is the log of this load
    assert not loaded.search.holds(lines)
    found = loaded.search.in_files(loaded.state, loaded.household.project.directory)
    assert found == [str(loaded.state / "secrets" / "anthropic.secret")]


def test_another_process_of_the_same_user_cannot_read_the_gateway(loaded: Loaded) -> None:
    """Neither of its processes, nor trace it; root can, and is trusted. The control is a process
    that is not guarded."""
    if loaded.person.is_root:
        pytest.skip("root reads every process")
    other = subprocess.Popen(["/bin/sleep", "60"], env={}, **loaded.person.become())
    try:
        for name in ("environ", "mem", "maps", "fd/0"):
            read = ["/usr/bin/head", "-c", "0"]
            seen = [_may(loaded.person, *read, f"/proc/{pid}/{name}")
                    for pid in (other.pid, loaded.process.pid, loaded.plane)]  # fmt: skip
            assert seen == [True, False, False], name
    finally:
        other.kill()
        other.wait()


def _may(person: Person, *words: str) -> bool:
    done = subprocess.run(words, env={}, capture_output=True, check=False, **person.become())
    return bool(done.returncode == 0)


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    """The control of the search: each place, and each form."""
    text = random_text("planted-")
    search = Search((text,))
    for number, each in enumerate(renderings(text, "stand-in")):
        (tmp_path / str(number)).write_bytes(b"x" + each.needle + b"x")
    assert len(search.in_files(tmp_path)) == len(list(tmp_path.iterdir())) > 5
    script = "x=$1; echo ready; read y"
    with (tmp_path / "0").open("rb") as opened:
        child = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", text],
            env={"PLANTED": text},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=opened,
        )
    try:
        assert line_of(child.stdout).strip() == "ready"
        found = search.in_proc(child.pid)
        assert {place.partition("/")[2] for place in found} >= {"environ", "cmdline", "fd"}
        assert search.in_memory(child.pid)
        assert child.pid in family(os.getpid())
    finally:
        child.communicate(b"\n")


# ── the end of it ─────────────────────────────────────────────────────────────────────────────────


def crash(process: subprocess.Popen[bytes], number: int) -> None:
    """End it as a fault would, with every limit on cores taken away."""
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with contextlib.suppress(PermissionError):  # only root raises a limit again
        resource.prlimit(process.pid, resource.RLIMIT_CORE, limit)
    process.send_signal(number)
    process.wait(PATIENCE)


def cores(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith("core")]


def test_a_crash_leaves_no_core_and_says_no_secret(doomed: Loaded) -> None:
    """I1, I8: although the limit was raised from outside, and Python tells of its threads."""
    project = doomed.household.project
    crash(doomed.process, signal.SIGSEGV)
    assert doomed.process.stderr is not None
    said = _rest(doomed.process.stderr.fileno())
    assert b"Segmentation fault" in said  # the control: it did crash, and did say so
    assert not doomed.search.holds(said)
    assert cores(project.directory) == []
    assert doomed.search.in_files(project.directory) == []


def test_a_crash_of_what_is_not_guarded_leaves_a_core(tmp_path: Path) -> None:
    """The control of the test above, where this host writes cores into files."""
    if Path("/proc/sys/kernel/core_pattern").read_text()[0] in "|/":
        pytest.skip("cores are not written beside the process here")
    child = subprocess.Popen(["/bin/sleep", "60"], cwd=tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if limit == 0 and os.geteuid() != 0:
        pytest.skip("cores are not allowed here")
    crash(child, signal.SIGSEGV)
    assert cores(tmp_path)


def _rest(descriptor: int) -> bytes:
    """What is left to be read; the sandbox, which may hold it open, dies with its parent."""
    os.set_blocking(descriptor, False)
    said, deadline = b"", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not data:
            break
        said += data
    return said
