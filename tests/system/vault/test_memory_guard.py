"""What guards the memory of a process that holds secrets, tried in processes of their own (I1)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.vault import memory_guard

GUARD = """
import json, resource, subprocess, sys
from keyhole.vault.memory_guard import guard_memory
if sys.argv[1:] == ["without the capability"]:
    import keyhole.vault.memory_guard as memory
    memory._may_lock = lambda: False
guard = guard_memory()
grown = [bytearray(1 << 20) for _ in range(64)]
with open("/proc/self/status") as file:
    status = dict(line.partition(":")[::2] for line in file)
child = subprocess.run(["/bin/cat", "/proc/self/environ"], env={"A": "b"}, capture_output=True)
print(json.dumps({
    "hidden": guard.hidden, "locked": guard.locked, "core": resource.getrlimit(resource.RLIMIT_CORE),
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK), "kilobytes": int(status["VmLck"].split()[0]),
    "child": child.stdout.decode(),
}))
"""  # noqa: E501


def guarded(limit: int | None = None, *words: str) -> dict[str, Any]:
    """A process that guards itself, under a limit on locked memory."""

    def lower() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (min(limit, 65536), limit))

    done = subprocess.run(
        [sys.executable, "-c", GUARD, *words],
        capture_output=True, text=True, check=False, preexec_fn=lower,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_no_core_is_written_and_nothing_is_dumped() -> None:
    found = guarded()
    assert found["hidden"]
    assert found["core"] == [0, 0]


def test_programs_that_it_starts_work_as_ever() -> None:
    """A process that is not dumpable could not even read its own environment in /proc."""
    assert guarded()["child"] == "A=b\0"


def test_memory_is_not_locked_where_a_limit_would_refuse_more_of_it() -> None:
    """The process goes on to grow beyond its limit."""
    found = guarded(8 << 20, "without the capability")
    assert not found["locked"]
    assert found["kilobytes"] == 0


def test_memory_is_locked_where_nothing_limits_it() -> None:
    """The control: by a capability or without a limit, and it goes on to grow."""
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY
    if os.geteuid() != 0 and not unlimited:
        pytest.skip("this user may lock little")
    found = guarded()
    assert found["locked"]
    assert found["kilobytes"] > 64 << 10


def test_without_the_capability_it_takes_a_hard_limit_that_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the soft one is raised to it, so that memory is not refused later."""
    infinite = resource.RLIM_INFINITY
    raised: list[tuple[int, int]] = []
    libc = SimpleNamespace(mlockall=lambda flags: 0)
    monkeypatch.setattr(memory_guard, "_may_lock", lambda: False)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for limits in ((65536, infinite), (infinite, infinite)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=limits: found)
        assert memory_guard._lock(libc)  # type: ignore[arg-type]
    assert raised == [(infinite, infinite)]


def test_what_is_read_by_descriptor_is_still_read(tmp_path: Path) -> None:
    """/proc/self belongs to root from then on; a process may look at its own all the same."""
    program = (
        "import sys; from pathlib import Path\n"
        "from keyhole.vault.memory_guard import guard_memory\n"
        "from tests.rigs.vault.rig import VALUE, World, ref\n"
        "guard_memory(); world = World(Path(sys.argv[1])); world.write('home/key')\n"
        "print(world.vault().fetch(ref('file:~/key')).secret.reveal() == VALUE)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=root,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
