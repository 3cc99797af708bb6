"""The audit log's disk is full: nothing is admitted, `status` says so, and sessions live on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.control.client import Declined
from tests.control.rig import until
from tests.daemon.doors import NAMES, Doors, Tenancy, ask
from tests.daemon.estate import Estate
from tests.sandbox.people import PATIENCE
from tests.sandbox.projects import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.outside

DISK = """
import glob, json, os, subprocess, sys
state, *up = sys.argv[1:]
for name in ("audit", "sessions"):
    os.makedirs(f"{state}/{name}", 0o700, exist_ok=True)
# One disk for both; it is there for this process and those that it starts, and ends with them.
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "small", f"{state}/audit"],
               check=True)
subprocess.run(["mount", "--bind", f"{state}/audit", f"{state}/sessions"], check=True)
print(subprocess.run(up, stdout=subprocess.DEVNULL).returncode, flush=True)
for line in sys.stdin:
    if line == "fill\\n":
        with open(f"{state}/audit/ballast", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError:
                pass
    elif line == "spare\\n":
        os.truncate(f"{state}/audit/ballast", os.path.getsize(f"{state}/audit/ballast") - 16384)
    elif line == "free\\n":
        os.unlink(f"{state}/audit/ballast")
    print("done", flush=True)
    if line == "read\\n":
        files = glob.glob(f"{state}/audit/*.jsonl")
        lines = [json.loads(each) for name in files for each in open(name)]
        print(json.dumps(lines), flush=True)
"""


class Disk:
    """A small disk of the gateway's own, in a mount namespace where it alone is."""

    def __init__(self, estate: Estate) -> None:
        unshare = ["unshare", "--mount"]
        if os.geteuid() != 0:
            unshare += ["--user", "--map-root-user"]
        program = str(estate.project.person.program)
        self._process = subprocess.Popen(
            [*unshare, sys.executable, "-I", "-c", DISK, str(estate.state), program, "up"],
            env=estate.project.env | estate.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert line_of(self._process.stdout) == "0"

    def fill(self) -> None:
        """No byte fits any more."""
        self._say(b"fill\n")

    def spare_a_little(self) -> None:
        """Room for many lines, and for none of what would come behind them."""
        self._say(b"spare\n")

    def make_room(self) -> None:
        """As before."""
        self._say(b"free\n")

    def events(self) -> list[dict[str, Any]]:
        """What is written down there."""
        self._say(b"read\n")
        found: list[dict[str, Any]] = json.loads(line_of(self._process.stdout))
        return found

    def close(self) -> None:
        """The gateway has the namespace to itself."""
        self._process.communicate(timeout=PATIENCE)

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()
        assert line_of(self._process.stdout) == "done"


@pytest.fixture
def estate() -> Iterator[Estate]:
    with Estate() as made:
        yield made


@pytest.fixture
def disk(estate: Estate) -> Iterator[Disk]:
    made = Disk(estate)
    yield made
    with contextlib.suppress(Exception):
        made.make_room()
    made.close()


def test_nothing_passes_while_nothing_can_be_written_down(estate: Estate, disk: Disk) -> None:
    """I8, I3: over open connections and new ones; when there is room, all of it works again."""
    with Doors() as doors:
        tenancy = Tenancy(estate, doors, 1)
        with tenancy.connect() as kept:
            assert (ask(kept), tenancy.get()) == (200, 200)
            assert estate("status").code == 0
            disk.fill()
            # What is already in memory is seen not to fit at the next batch.
            until(lambda: ask(kept) == 503)
            seen = len(estate.service.seen)
            assert (ask(kept), _passes(tenancy)) == (503, False)
            assert len(estate.service.seen) == seen
            assert not estate.client.status().admitting
            # Room for a line, as the end of a block has it, is none: it stays closed.
            disk.spare_a_little()
            said = estate("status")
            assert said.code == 1
            assert "cannot be written" in said.out
            assert [ask(kept) for _ in range(10)] == [503] * 10
            # A session that nobody could clear up after is not taken.
            with pytest.raises(Declined, match="cannot be written"):
                Tenancy(estate, doors, 2)
            assert [each.id for each in estate.client.sessions()] == [tenancy.id]

            disk.make_room()
            until(lambda: estate.client.status().admitting)
            assert (ask(kept), tenancy.get()) == (200, 200)
        assert estate("status").code == 0
        another = Tenancy(estate, doors, 3)
        assert another.get() == 200
        for each in (tenancy, another):
            each.finish()
        estate.until_sessions(0)
    lost = [event for event in disk.events() if event["reason"] == "lost"]
    assert lost
    assert lost[0]["details"]["count"] >= 1
    assert estate("down").code == 0


def test_a_door_that_cannot_be_written_down_is_not_opened(estate: Estate, disk: Disk) -> None:
    """I2: the log has not met the full disk yet, but the next gateway would not know of it."""
    with Doors() as doors:
        opened = estate.client.open_session(estate.opened_as)
        disk.fill()
        door = doors.make(1)
        with pytest.raises(Declined, match="written"):
            estate.client.open_door(opened.id, NAMES, [each.fileno() for each in door])
        for each in door:
            each.close()
        assert estate.client.sessions() == []
        disk.make_room()
        until(lambda: estate.client.status().admitting)
        tenancy = Tenancy(estate, doors, 2)
        assert tenancy.get() == 200
        tenancy.finish()
    assert estate("down").code == 0


def _passes(tenancy: Tenancy) -> bool:
    try:
        return tenancy.get() == 200
    except OSError:
        return False
