"""The memory of a process that serves: few collections, and no memory that comes and goes (I12)."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json, resource, sys
from keyhole.system.serving_memory import prepare_memory
from benchmarks.players.modelbodies import agent_body
from keyhole.wire.strict_json import read_json

if sys.argv[1:]:
    prepare_memory()
runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase))
body = agent_body(500 << 10)

def judge():
    copies = [bytes(bytearray(body)) for _ in range(4)]
    return read_json(copies[0])

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(10):
    judge()
runs.clear()
before = faults()
for _ in range(40):
    judge()
print(json.dumps([len(runs) // 2, faults() - before]))
"""


def measure(*words: str) -> tuple[int, int]:
    """Collections and page faults of forty bodies that are read one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    collections, faults = json.loads(done.stdout)
    return collections, faults


def test_bodies_are_read_without_collections_and_without_memory_from_the_kernel() -> None:
    collections, faults = measure("prepared")
    assert (collections, faults < 400) == (0, True)


def test_python_and_the_c_library_would_collect_and_return_memory_for_each_body() -> None:
    """The control: without these numbers."""
    collections, faults = measure()
    assert collections >= 40
    assert faults > 400
