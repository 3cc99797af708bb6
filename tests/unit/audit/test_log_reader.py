"""Reading: one story out of many files, whatever state they are in."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog, LogBounds
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogEntry, LogFilter, LogReader
from keyhole.audit.verify import verify_log
from keyhole.model.errors import ResourceUnusable
from tests.rigs.audit.writing import Hands, allowed, denied, files, only_file, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    opened = LogDirectory.open(tmp_path)
    yield opened
    opened.close()


def hosts(entries: list[LogEntry]) -> list[str]:
    return [entry.record.host for entry in entries if entry.record and entry.record.host]


def test_events_of_writers_at_once_are_merged_by_time(
    tmp_path: Path, directory: LogDirectory
) -> None:
    hands = Hands()
    bounds = LogBounds(file=1, per_second=10**6)
    with (
        AuditLog(tmp_path, hands.clock(), bounds) as one,
        AuditLog(tmp_path, hands.clock(), bounds) as two,
    ):
        for number in range(300):
            (one if number % 2 else two).record("s", denied(f"h{number}.example"))
            hands.now += 0.001
    assert len(list(tmp_path.iterdir())) > 4
    found = list(LogReader(directory).read())
    assert hosts(found) == [f"h{number}.example" for number in range(300)]


def test_within_one_moment_a_chain_keeps_its_order(tmp_path: Path, directory: LogDirectory) -> None:
    write(tmp_path, 300, LogBounds(file=1, per_second=10**6))
    found = list(LogReader(directory).read())
    assert hosts(found) == [f"h{number}.example" for number in range(300)]


def test_a_clock_that_steps_back_does_not_reorder_a_file(
    tmp_path: Path, directory: LogDirectory
) -> None:
    hands = Hands()
    with AuditLog(tmp_path, hands.clock()) as log:
        for number in range(10):
            log.record("s", denied(f"h{number}.example"))
            hands.now -= 100.0
    assert hosts(list(LogReader(directory).read())) == [
        f"h{number}.example" for number in range(10)
    ]


def test_hundreds_of_files_take_one_descriptor(tmp_path: Path, directory: LogDirectory) -> None:
    """I9."""
    write(tmp_path, 2)
    data = only_file(tmp_path).read_bytes()
    for number in range(300):
        (tmp_path / f"{number}.jsonl").write_bytes(data)
    story = LogReader(directory).read()
    next(story)
    before = len(os.listdir("/proc/self/fd"))
    assert len(list(story)) == 301 * 4 - 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_events_are_chosen_by_session_and_verdict(tmp_path: Path, directory: LogDirectory) -> None:
    with AuditLog(tmp_path) as log:
        log.record("aaaa1111", denied("a.example"))
        log.record("aaaa1111", allowed("b.example"))
        log.record("bbbb2222", denied("c.example"))

    def chosen(wanted: LogFilter) -> list[str]:
        return hosts([entry for entry in LogReader(directory).read() if wanted.takes(entry)])

    assert chosen(LogFilter()) == ["a.example", "b.example", "c.example"]
    assert chosen(LogFilter(session="aaaa")) == ["a.example", "b.example"]
    assert chosen(LogFilter(denied=True)) == ["a.example", "c.example"]
    assert chosen(LogFilter("bbbb2222", denied=True)) == ["c.example"]


def test_what_is_no_event_is_handed_on_as_such(tmp_path: Path, directory: LogDirectory) -> None:
    write(tmp_path, 1)
    (tmp_path / "noise.jsonl").write_bytes(b"\x00\xff\n" + b"x" * 100_000 + b"\n\n")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    found = list(LogReader(directory).read())
    assert [(e.file, e.line) for e in found if e.record is None] == [
        ("noise.jsonl", 1),
        ("noise.jsonl", 2),
        ("noise.jsonl", 3),
    ]
    assert hosts(found) == ["h0.example"]


def test_links_pipes_and_other_names_are_not_read(tmp_path: Path, directory: LogDirectory) -> None:
    """I8; positive control: the regular file beside them is."""
    write(tmp_path, 1)
    (tmp_path / "link.jsonl").symlink_to(only_file(tmp_path))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "notes.txt").write_text("x\n")
    assert hosts(list(LogReader(directory).read())) == ["h0.example"]


def test_a_torn_end_is_told_unless_its_writer_lives(
    tmp_path: Path, directory: LogDirectory
) -> None:
    write(tmp_path, 2)
    dead = only_file(tmp_path)
    dead.write_bytes(dead.read_bytes()[:-9])
    with AuditLog(tmp_path) as log:
        log.flush()
        living = next(f for f in tmp_path.iterdir() if f != dead)
        with living.open("ab") as file:
            file.write(b'{"half":')
        story = LogReader(directory)
        assert len(list(story.read())) == 4
        assert story.torn() == [dead.name]


def test_what_is_there_can_be_passed_over_unread(tmp_path: Path, directory: LogDirectory) -> None:
    """Also in the middle of a line that is being written: its end is no event."""
    write(tmp_path, 3)
    file = only_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    story = LogReader(directory)
    story.skip()
    assert story.fresh() == []
    file.write_bytes(whole)
    write(tmp_path, 2)
    found = story.fresh()
    assert hosts(found) == ["h0.example", "h1.example"]
    assert [each.record for each in found if each.file == file.name] == [None]


def test_following_sees_new_lines_and_new_files_once(
    tmp_path: Path, directory: LogDirectory
) -> None:
    hands = Hands()
    bounds = LogBounds(file=1, per_second=10**6)
    write(tmp_path, 1)
    story = LogReader(directory)
    assert hosts(list(story.read())) == ["h0.example"]
    with AuditLog(tmp_path, hands.clock(), bounds) as log:
        seen: list[LogEntry] = []
        waits = 0

        def wait() -> None:
            nonlocal waits
            waits += 1
            assert waits <= 3
            for number in range(100):
                log.record("s", denied(f"w{waits}-{number}.example"))
            log.flush()

        for entry in story.follow(wait):
            seen.append(entry)
            if hosts([entry]) == ["w3-99.example"]:
                break
    assert len(list(tmp_path.glob("*.jsonl"))) > 3
    assert hosts(seen) == [f"w{w}-{n}.example" for w in (1, 2, 3) for n in range(100)]


def test_following_waits_for_the_rest_of_a_line(tmp_path: Path, directory: LogDirectory) -> None:
    write(tmp_path, 1)
    data = only_file(tmp_path).read_bytes()
    only_file(tmp_path).write_bytes(data[:-20])
    story = LogReader(directory)
    assert len(list(story.read())) == 2

    def mend() -> None:
        only_file(tmp_path).write_bytes(data)

    follower = story.follow(mend)
    assert next(follower).data == data.split(b"\n")[2]


def test_a_file_removed_meanwhile_is_no_error(tmp_path: Path, directory: LogDirectory) -> None:
    hands = Hands()
    with AuditLog(tmp_path, hands.clock(), LogBounds(file=1, per_second=10**6)) as log:
        for _ in range(1000):
            log.record("s", denied())
            hands.now += 0.001
    chain = files(tmp_path)
    story = LogReader(directory).read()
    next(story)
    for file in chain[2:]:
        file.unlink()
    assert 50 < len(list(story)) < 1000


def test_a_file_that_cannot_be_read_is_said_not_skipped(
    tmp_path: Path, directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8; positive control: before, it is read and verified."""
    write(tmp_path, 1)
    assert len(list(LogReader(directory).read())) == 3
    assert verify_log(directory).whole

    def refuse(_: object, name: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(LogDirectory, "read", refuse)
    with pytest.raises(ResourceUnusable, match="Permission denied"):
        list(LogReader(directory).read())
    with pytest.raises(ResourceUnusable, match="Permission denied"):
        verify_log(directory)
