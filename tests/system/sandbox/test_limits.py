"""What a sandbox may use up is bounded (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

FORKING = """
import json, os, signal, sys
children, said = [], "all"
for _ in range(int(sys.argv[1])):
    try:
        pid = os.fork()
    except BlockingIOError:
        said = "refused"
        break
    if pid == 0:
        signal.pause()
    children.append(pid)
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(json.dumps(said))
"""
TAKING = """
import json, sys
try:
    taken = bytearray(int(sys.argv[1]) << 20)
    print(json.dumps("taken"))
except MemoryError:
    print(json.dumps("refused"))
"""
FILLING = """
import json, os, sys
found = {}
for directory in ("/tmp", "/dev/shm", os.environ["HOME"], "/var/tmp"):
    status = os.statvfs(directory)
    found[directory] = status.f_blocks * status.f_frsize
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def small(new_project: Callable[..., Project]) -> Project:
    return new_project("[limits]\nprocesses = 40\nmemory = '128MiB'\n")


def test_processes_are_bounded(small: Project) -> None:
    assert small.python(FORKING, "10") == "all"
    assert small.python(FORKING, "100") == "refused"


def test_memory_of_a_process_is_bounded(small: Project) -> None:
    assert small.python(TAKING, "32") == "taken"
    assert small.python(TAKING, "512") == "refused"


def test_every_tree_in_memory_has_a_size_of_its_own(small: Project) -> None:
    sizes = small.python(FILLING)
    assert all(0 < size <= 4 << 30 for size in sizes.values()), sizes
