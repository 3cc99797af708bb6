"""Writing: batches, chains, rotation, removal, failures, crashes (I8, I9)."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog, LogBounds
from keyhole.audit.log_line import line_digest
from keyhole.model.errors import ResourceUnusable
from tests.rigs.audit.writing import (
    Hands,
    all_lines,
    allowed,
    checked,
    denied,
    files,
    lines,
    only_file,
    session_event,
    write,
)
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE = 20.0


def admits(log: AuditLog) -> bool:
    return log.admitting


# ── the chain ──


def test_every_line_names_the_one_before_it(tmp_path: Path) -> None:
    head = write(tmp_path, 20)
    raw = only_file(tmp_path).read_bytes().split(b"\n")[:-1]
    found = lines(only_file(tmp_path))
    assert [line["seq"] for line in found] == list(range(22))
    assert [line["prev"] for line in found[1:]] == [line_digest(line) for line in raw[:-1]]
    assert head == line_digest(raw[-1])
    assert (found[0]["reason"], found[-1]["reason"]) == ("opened", "closed")
    assert found[0]["prev"] == found[0]["details"]["chain"]


def test_each_writer_has_a_genesis_and_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 1)
    found = list(tmp_path.glob("*.jsonl"))
    assert len({lines(file)[0]["prev"] for file in found}) == 2
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-\d+-[0-9a-f]{8}\.jsonl", f.name) for f in found)


def test_the_writer_writes_by_itself(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        log.record("s", denied())
        until(lambda: len(all_lines(tmp_path)) == 2)
        log.record("s", allowed())
        until(lambda: len(all_lines(tmp_path)) == 3)


def test_counts_are_written_by_themselves_when_they_are_due(tmp_path: Path) -> None:
    with AuditLog(tmp_path, bounds=LogBounds(per_second=1)) as log:
        for _ in range(5):
            log.record("s", denied())
        until(lambda: any("aggregate" in line for line in all_lines(tmp_path)))


def test_many_threads_may_record(tmp_path: Path) -> None:
    with AuditLog(tmp_path, bounds=LogBounds(per_second=10**6)) as log:

        def work(name: str) -> None:
            for _ in range(500):
                log.record(name, denied())

        threads = [threading.Thread(target=work, args=(f"s{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(1 for line in all_lines(tmp_path) if line["session"]) == 4000
    assert checked(tmp_path, log.head()).whole


def test_a_closed_log_takes_nothing_and_closes_once(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.close()
    log.close()
    log.flush()
    assert not admits(log)
    with pytest.raises(RuntimeError, match="closed"):
        log.record("s", denied())


def test_recording_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: the gateway goes on; positive control: what was recorded is there when it wakes."""
    log = AuditLog(tmp_path, bounds=LogBounds(per_second=10**6))
    hanging, awake, real = threading.Event(), threading.Event(), os.write

    def hang(descriptor: int, data: bytes) -> int:
        hanging.set()
        awake.wait(DEADLINE)
        return real(descriptor, data)

    monkeypatch.setattr("keyhole.audit.chain.os.write", hang)
    log.record("s", denied())
    assert hanging.wait(DEADLINE)
    for _ in range(1000):
        log.record("s", denied())
    assert len(all_lines(tmp_path)) == 1
    awake.set()
    log.close()
    assert len(all_lines(tmp_path)) == 1003


# ── rotation and removal ──


def test_a_full_file_names_the_next_and_the_chain_goes_on(tmp_path: Path) -> None:
    head = write(tmp_path, 300, LogBounds(file=1, per_second=10**6))
    found = files(tmp_path)
    assert len(found) >= 3
    for old, new in itertools.pairwise(found):
        assert lines(old)[-1]["reason"] == "rotated"
        assert lines(old)[-1]["details"]["next"] == new.name
        assert lines(new)[0]["details"]["after"] == old.name
        assert lines(new)[0]["prev"] == line_digest(old.read_bytes().split(b"\n")[-2])
    hosts = [line["host"] for file in found for line in lines(file) if line["session"]]
    assert hosts == [f"h{number}.example" for number in range(300)]
    assert max(file.stat().st_size for file in found) <= 32 * 1024
    assert checked(tmp_path, head).whole


def test_the_oldest_files_are_removed_and_their_removal_written_down(tmp_path: Path) -> None:
    """I9; positive control: under the bound nothing is removed."""
    wide = LogBounds(file=1, per_second=10**6)
    heads = [write(tmp_path, 200, wide) for _ in range(4)]
    before = {file.name: file.stat() for file in tmp_path.glob("*.jsonl")}
    assert checked(tmp_path).whole
    head = write(tmp_path, 1, LogBounds(file=1, total=100_000))
    left = {file.name for file in tmp_path.glob("*.jsonl")}
    gone = set(before) - left
    assert sum(file.stat().st_size for file in tmp_path.glob("*.jsonl")) < 110_000
    assert max(before[name].st_mtime_ns for name in gone) <= min(
        before[name].st_mtime_ns for name in left & set(before)
    )
    told = [line for line in all_lines(tmp_path) if line["reason"] == "removed"]
    assert {line["details"]["file"] for line in told} == gone
    assert checked(tmp_path, head).whole
    (problem,) = checked(tmp_path, heads[0]).problems
    assert "removed to keep the log small" in problem.text
    assert problem.file in gone


def test_a_removal_is_told_for_as_long_as_it_explains_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 100, LogBounds(file=1, per_second=10**6))
    chain = files(tmp_path)
    assert len(chain) >= 2
    os.utime(chain[0], (1, 1))
    write(tmp_path, 1, LogBounds(files=len(chain)))
    teller = next(f for f in tmp_path.glob("*.jsonl") if f not in chain)
    assert not chain[0].exists()
    os.utime(teller, (2, 2))
    write(tmp_path, 1, LogBounds(files=len(chain)))
    assert not teller.exists()
    assert chain[1].exists()
    assert checked(tmp_path).whole


def test_short_runs_are_bounded_in_number(tmp_path: Path) -> None:
    """I9."""
    for _ in range(8):
        write(tmp_path, 1, LogBounds(files=3))
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    assert checked(tmp_path).whole


def test_the_file_of_a_living_writer_is_not_removed(tmp_path: Path) -> None:
    """I8; positive control: once it is closed it goes."""
    with AuditLog(tmp_path) as living:
        living.record("s", denied())
        living.flush()
        file = only_file(tmp_path)
        os.utime(file, (1, 1))
        write(tmp_path, 1, LogBounds(files=1))
        assert file.exists()
    os.utime(file, (1, 1))
    write(tmp_path, 1, LogBounds(files=1))
    assert not file.exists()


def test_a_file_removed_under_its_writer_is_missed(tmp_path: Path) -> None:
    """I8: what comes after is kept, and the gap shows."""
    with AuditLog(tmp_path) as log:
        log.record("s", denied("gone.example"))
        log.flush()
        only_file(tmp_path).unlink()
        log.record("s", denied("kept.example"))
        log.flush()
        assert admits(log)
    assert [line["host"] for line in all_lines(tmp_path) if line["session"]] == ["kept.example"]
    (problem,) = checked(tmp_path).problems
    assert "the file before it" in problem.text


def test_without_its_directory_nothing_is_admitted(tmp_path: Path) -> None:
    """I8; positive control: it was before."""
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        assert admits(log)
        only_file(path).unlink()
        path.rmdir()
        log.record("s", denied())
        log.flush()
        assert not admits(log)


# ── a disk that refuses ──


@pytest.fixture
def full_disk() -> Iterator[Callable[[int | None], None]]:
    """Limit the size of files of this process; None lifts it. EFBIG stands for ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size: int | None) -> None:
        soft = before[0] if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_refuses_stops_admission_until_it_takes_again(
    tmp_path: Path, full_disk: Callable[[int | None], None]
) -> None:
    """I8; positive control: before and after, it admits and writes."""
    bounds = LogBounds(per_second=10**6, retry_every=0.02)
    with AuditLog(tmp_path, bounds=bounds) as log:
        log.record("s", denied("before.example"))
        log.flush()
        assert admits(log)
        file = only_file(tmp_path)
        size, head = file.stat().st_size, log.head()
        full_disk(size + 100)  # within a line: the write is short, then refused
        for _ in range(7):
            log.record("s", denied("lost.example"))
        log.flush()
        assert not admits(log)
        log.record("s", denied("lost.example"))
        log.flush()
        assert (file.stat().st_size, log.head()) == (size, head)
        full_disk(None)
        until(lambda: admits(log))  # by itself: what is not admitted records nothing
        log.record("s", denied("after.example"))
    found = lines(file)
    assert [line["reason"] for line in found if not line["session"]] == ["opened", "lost", "closed"]
    lost = next(line for line in found if line["reason"] == "lost")
    assert (lost["details"]["count"], lost["verdict"]) == (8, "deny")
    hosts = [line["host"] for line in found if line["session"]]
    assert hosts == ["before.example", "after.example"]
    assert checked(tmp_path, log.head()).problems == checked(tmp_path).notes == ()


def test_folded_events_that_are_lost_are_counted_too(
    tmp_path: Path, full_disk: Callable[[int | None], None]
) -> None:
    """I8."""
    bounds = LogBounds(per_second=1, retry_every=60.0)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        full_disk(only_file(tmp_path).stat().st_size)
        for _ in range(50):
            log.record("s", denied())
        log.flush()
        full_disk(None)
    lost = next(line for line in all_lines(tmp_path) if line["reason"] == "lost")
    assert lost["details"]["count"] == 50


def test_a_rotation_that_is_refused_leaves_no_gap(
    tmp_path: Path, full_disk: Callable[[int | None], None]
) -> None:
    bounds = LogBounds(file=1, per_second=10**6, retry_every=60.0)
    with AuditLog(tmp_path, bounds=bounds) as log:
        full_disk(10_000)
        for _ in range(300):
            log.record("s", denied())
        log.flush()
        assert not admits(log)
        full_disk(None)
        log.flush()
        assert admits(log)
        log.record("s", denied())
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    assert checked(tmp_path, log.head()).problems == checked(tmp_path).notes == ()


def test_a_log_that_cannot_be_begun_is_an_error_with_its_cause(
    tmp_path: Path, full_disk: Callable[[int | None], None]
) -> None:
    full_disk(10)
    with pytest.raises(ResourceUnusable, match="File too large"):
        AuditLog(tmp_path)
    full_disk(None)
    AuditLog(tmp_path).close()


def test_closing_on_a_full_disk_ends(
    tmp_path: Path, full_disk: Callable[[int | None], None]
) -> None:
    log = AuditLog(tmp_path)
    full_disk(only_file(tmp_path).stat().st_size)
    log.record("s", denied())
    log.close()
    assert not admits(log)
    full_disk(None)
    assert "was not closed" in checked(tmp_path).notes[0].text


FULL = """
import sys, time
from pathlib import Path
from tests.rigs.audit.writing import checked, denied
from keyhole.audit.log import AuditLog, LogBounds

disk = Path(sys.argv[1])
filler = disk / "filler"
filler.write_bytes(bytes(40 * 1024))
bounds = LogBounds(per_second=10**6, room=16 * 1024, retry_every=0.02)
with AuditLog(disk / "audit", bounds=bounds) as log:
    assert log.admitting
    count = 0
    while log.admitting and count < 1000:
        log.record("s", denied())
        log.flush()
        count += 1
    print("stopped", not log.admitting)
    filler.unlink()
    end = time.monotonic() + 20
    while not log.admitting and time.monotonic() < end:
        time.sleep(0.005)
    print("went on", log.admitting)
print("whole", checked(disk / "audit", log.head()).whole)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own; EFBIG above needs no root")
def test_a_full_disk_stops_admission_and_room_on_it_gives_it_back(tmp_path: Path) -> None:
    """I8, on a real file system without space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=64k,mode=700 none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", str(disk), sys.executable, FULL],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["stopped True", "went on True", "whole True"], done.stderr


# ── writers that are processes ──

WRITER = """
import sys
from pathlib import Path
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

log = AuditLog(Path(sys.argv[1]), bounds=LogBounds(per_second=10**6))
name, count = sys.argv[2], int(sys.argv[3])
event = Event(EventKind.CONNECT, Verdict.DENY, "no-rule", host="evil.example")
n = 0
while count == 0 or n < count:
    log.record(name, event)
    n += 1
    if n % 64 == 0:
        log.flush()
        if not count:
            print(n, flush=True)
log.close()
print(log.head())
"""


def whole_lines(path: Path) -> list[bytes]:
    return only_file(path).read_bytes().split(b"\n")[:-1]


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once_each_its_own_chain(tmp_path: Path) -> None:
    """I8."""
    path = tmp_path / "audit"
    both = [writer(path, name, 2000) for name in ("a", "b")]
    heads = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(list(path.glob("*.jsonl"))) == 2
    for head in heads:
        assert checked(path, head).whole
    for name in ("a", "b"):
        assert sum(1 for line in all_lines(path) if line["session"] == name) == 2000


def test_a_killed_writer_loses_the_last_batch_at_most_and_it_is_said(tmp_path: Path) -> None:
    """I8; positive control: a writer that ends by itself leaves a closed file."""
    path = tmp_path / "audit"
    process = writer(path, "killed", 0)
    said = process.stdout
    assert said is not None
    with process:
        flushed = next(n for n in map(int, said) if n >= 1000)
        process.kill()
        flushed = max([flushed, *map(int, said.read().split())])
    kept = [line for line in whole_lines(path) if b'"killed"' in line]
    assert flushed <= len(kept) <= flushed + 64
    report = checked(path)
    assert report.problems == ()
    assert "killed" in report.notes[0].text
    head = write(path, 1)
    report = checked(path, head)
    assert (report.files, report.whole, len(report.notes)) == (2, True, 1)


def test_a_torn_last_line_is_recognised(tmp_path: Path) -> None:
    write(tmp_path, 3)
    file = only_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-40])
    report = checked(tmp_path)
    assert report.whole
    assert (report.notes[0].line, "last batch was lost" in report.notes[0].text) == (5, True)


def test_a_signal_handler_may_record_while_its_thread_records(tmp_path: Path) -> None:
    with AuditLog(tmp_path) as log:
        with log._lock:
            log.record("s", session_event("stopped"))
        log.flush()
        assert len(all_lines(tmp_path)) == 2
