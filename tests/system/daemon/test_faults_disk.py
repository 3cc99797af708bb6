"""The audit log's disk is full. The log has room that it allocated ahead, of which each session has
a share; when all of that is used up nothing is admitted, `status` says so, and sessions live on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.control.client import RequestDeclined
from tests.rigs.daemon.doors import NAMES, Doors, Tenancy, ask
from tests.rigs.daemon.estate import Estate
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until

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
    elif line == "free\\n" and os.path.exists(f"{state}/audit/ballast"):
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
            [
                *unshare,
                sys.executable,
                "-I",
                "-c",
                DISK,
                str(estate.state),
                program,
                "up",
                "--workers",
                "1",
            ],
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


def test_who_fills_the_disk_does_not_stop_what_others_do(estate: Estate, disk: Disk) -> None:
    """I12, I8: the session that writes much is stopped when it has had its share of the reserve,
    and is counted from then on; the other goes on, and all of it is written down."""
    with Doors() as doors:
        hostile, ordinary = Tenancy(estate, doors, 1), Tenancy(estate, doors, 2)
        with hostile.connect() as flood, ordinary.connect() as kept:
            assert (ask(flood), ask(kept)) == (200, 200)
            disk.fill()
            until(lambda: ask(flood) == 503)
            assert (ask(kept), ordinary.get()) == (200, 200)
            # However often the one is refused, which is not written each time.
            assert {ask(flood) for _ in range(300)} <= {503, 429}
            assert not _passes(hostile)
            assert (ask(kept), ordinary.get()) == (200, 200)
            assert estate.client.status().admitting
            disk.make_room()
            until(lambda: ask(flood) == 200)
        for each in (hostile, ordinary):
            each.finish()
        estate.until_sessions(0)
    events = disk.events()
    own = [event["reason"] for event in events if event["kind"] == "audit"]
    assert [reason for reason in own if reason in {"disk-full", "room-again", "lost"}] == [
        "disk-full", "room-again",
    ]  # fmt: skip
    # Its refusals beyond the share are there as a count.
    counted = [
        event["aggregate"]["count"]
        for event in events
        if event["session"] == hostile.id and event["rule"] == "shares.audit"
    ]
    assert sum(counted) > 250
    assert estate("down").code == 0


def test_nothing_passes_while_nothing_can_be_written_down(estate: Estate, disk: Disk) -> None:
    """I8, I3: over open connections and new ones; when there is room, all of it works again."""
    with Doors() as doors:
        many = [Tenancy(estate, doors, 10 + number) for number in range(10)]
        own_session = Tenancy(estate, doors, 1)
        with own_session.connect() as kept:
            assert (ask(kept), own_session.get()) == (200, 200)
            assert estate("status").code == 0
            disk.fill()
            # Each has a share of the reserve; all of them together have more than there is.
            for each in many:
                with each.connect() as flood:
                    until(lambda flood=flood: ask(flood) == 503)  # type: ignore[misc]
                if not estate.client.status().admitting:
                    break
            until(lambda: ask(kept) == 503)
            seen = len(estate.service.seen)
            assert (ask(kept), _passes(own_session)) == (503, False)
            assert len(estate.service.seen) == seen
            assert not estate.client.status().admitting
            # Room for a line, as the end of a block has it, is none: it stays closed.
            disk.spare_a_little()
            said = estate("status")
            assert said.code == 1
            assert "cannot be written" in said.out
            assert [ask(kept) for _ in range(10)] == [503] * 10
            # A session that nobody could clear up after is not taken.
            with pytest.raises(RequestDeclined, match="cannot be written"):
                Tenancy(estate, doors, 2)
            assert len(estate.client.sessions()) == len(many) + 1

            disk.make_room()
            until(lambda: estate.client.status().admitting)
            assert (ask(kept), own_session.get()) == (200, 200)
        assert estate("status").code == 0
        another = Tenancy(estate, doors, 3)
        assert another.get() == 200
        for each in (*many, own_session, another):
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
        with pytest.raises(RequestDeclined, match="written"):
            estate.client.open_door(opened.id, NAMES, [each.fileno() for each in door])
        for each in door:
            each.close()
        assert estate.client.sessions() == []
        disk.make_room()
        until(lambda: estate.client.status().admitting)
        own_session = Tenancy(estate, doors, 2)
        assert own_session.get() == 200
        own_session.finish()
    assert estate("down").code == 0


def _passes(own_session: Tenancy) -> bool:
    try:
        return own_session.get() == 200
    except OSError:
        return False
