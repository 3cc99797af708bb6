"""The log shows what was done to it (I8). Each test begins with a log that is whole."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog, LogBounds
from tests.rigs.audit.writing import Hands, checked, denied, files, only_file, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROTATING = LogBounds(file=1, per_second=10**6)
"""The smallest file there is: two of the longest lines."""


def tampered(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> list[tuple[int, str]]:
    """Change a whole log of six events; what verification says then."""
    write(path, 6)
    assert checked(path).whole
    file = only_file(path)
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    return [(found.line, found.text) for found in checked(path).problems]


def test_a_log_that_no_one_touched_is_whole(tmp_path: Path) -> None:
    head = write(tmp_path / "audit", 6)
    report = checked(tmp_path / "audit", head)
    assert (report.problems, report.notes) == ((), ())
    assert (report.files, report.lines) == (1, 8)


def test_a_removed_line_is_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: lines[:3] + lines[4:])
    assert [line for line, _ in found] == [4]
    assert "removed" in found[0][1]


def test_a_removed_beginning_is_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: lines[2:])
    assert found == [(1, "is not the beginning: lines before it were removed or moved")]


def test_a_changed_line_is_found(tmp_path: Path) -> None:
    found = tampered(
        tmp_path / "audit",
        lambda lines: [line.replace(b"h2.example", b"ok.example") for line in lines],
    )
    assert found == [(4, "is not what the next line says of it: it was changed")]


def test_a_line_made_into_something_else_is_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: [*lines[:3], b"#\n", *lines[4:]])
    assert found == [(4, "is no event: it was changed or added")]


def test_an_overlong_line_is_found_and_not_held_in_memory(tmp_path: Path) -> None:
    found = tampered(
        tmp_path / "audit", lambda lines: [*lines[:3], b"x" * 2_000_000 + b"\n", *lines[4:]]
    )
    assert found == [(4, "is no event: it was changed or added")]


def test_reordered_lines_are_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]])
    assert [line for line, _ in found] == [4, 5, 6]


def test_a_repeated_line_is_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: [*lines[:4], lines[3], *lines[4:]])
    assert found[0][0] == 5
    assert "repeated" in found[0][1]


def test_lines_after_the_end_are_found(tmp_path: Path) -> None:
    found = tampered(tmp_path / "audit", lambda lines: [*lines, lines[-1]])
    assert {line for line, _ in found} == {9}


def test_a_line_that_was_added_with_the_right_digest_is_found(tmp_path: Path) -> None:
    """A forger who can count and hash still breaks the step to the line after."""

    def add(lines: list[bytes]) -> list[bytes]:
        forged = json.loads(lines[4]) | {"verdict": "allow"}
        return [*lines[:4], json.dumps(forged).encode() + b"\n", *lines[4:]]

    found = tampered(tmp_path / "audit", add)
    assert [line for line, _ in found] == [6]


def test_a_changed_genesis_is_found(tmp_path: Path) -> None:
    def change(lines: list[bytes]) -> list[bytes]:
        chain = json.loads(lines[0])["details"]["chain"].encode()
        return [lines[0].replace(chain, b"0" * 64, 1), *lines[1:]]

    assert (1, "does not begin its chain: it was changed") in tampered(tmp_path / "audit", change)


def test_a_cut_tail_shows_by_the_head_that_the_run_printed(tmp_path: Path) -> None:
    """I8; positive control: before the cut the same head is found."""
    path = tmp_path / "audit"
    head = write(path, 6)
    assert checked(path, head).whole
    file = only_file(path)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    assert checked(path).whole
    assert "was not closed" in checked(path).notes[0].text
    (problem,) = checked(path, head).problems
    assert f"no line has the digest {head}" in problem.text


def test_the_head_of_an_earlier_run_in_a_longer_chain_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        log.record("first", denied())
        log.flush()
        head = log.head()
        log.record("second", denied())
    assert head != log.head()
    assert checked(path, head).whole


def test_a_copied_or_renamed_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    write(path, 1)
    shutil.copy(only_file(path), path / "copy.jsonl")
    problems = checked(path).problems
    assert [(p.file, p.line) for p in problems] == [("copy.jsonl", 1)]
    assert "copied or renamed" in problems[0].text


# ── files of one chain ──


@pytest.fixture
def rotated(tmp_path: Path) -> list[Path]:
    path = tmp_path / "audit"
    head = write(path, 300, ROTATING)
    assert checked(path, head).problems == checked(path).notes == ()
    found = files(path)
    assert len(found) >= 4
    return found


def test_a_missing_file_in_the_middle_is_told_by_both_neighbours(rotated: list[Path]) -> None:
    rotated[1].unlink()
    found = {(p.file, p.text.split(",")[0]) for p in checked(rotated[0].parent).problems}
    assert found == {
        (rotated[0].name, "the file after it"),
        (rotated[2].name, "the file before it"),
    }


def test_a_missing_first_or_last_file_is_found(rotated: list[Path]) -> None:
    rotated[0].unlink()
    rotated[-1].unlink()
    assert {p.file for p in checked(rotated[0].parent).problems} == {
        rotated[1].name,
        rotated[-2].name,
    }


def test_a_cut_tail_of_a_rotated_file_shows_without_a_head(rotated: list[Path]) -> None:
    lines = rotated[1].read_bytes().splitlines(keepends=True)
    rotated[1].write_bytes(b"".join(lines[:-3]))
    (problem,) = checked(rotated[0].parent).problems
    assert (problem.file, problem.line) == (rotated[2].name, 1)
    assert rotated[1].name in problem.text


def test_a_file_that_was_swapped_for_another_chains_is_found(
    rotated: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write(other, 3)
    shutil.copy(only_file(other), rotated[1])
    assert not checked(rotated[0].parent).whole


def test_a_living_writer_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path, Hands().clock(), ROTATING) as log:
        for number in range(300):
            log.record("s", denied(f"h{number}.example"))
        log.flush()
        report = checked(path, log.head())
        assert report.whole
        assert [note.text for note in report.notes] == ["is being written now"]
    assert checked(path).notes == ()


def test_a_flood_of_problems_is_told_in_part(tmp_path: Path) -> None:
    """I9."""
    found = tampered(tmp_path / "audit", lambda lines: [*lines, *[b"#\n"] * 500])
    assert len(found) == 100


def test_a_log_that_another_one_joined_cannot_be_cut(tmp_path: Path) -> None:
    """A run's data plane writes a log of its own; whoever knows the run's head knows both ends."""
    path = tmp_path / "audit"
    first = write(path, 4, session="s1")
    (other,) = path.glob("*.jsonl")
    with AuditLog(path, Hands().clock()) as log:
        log.join(first)
    assert checked(path, log.head()).whole
    whole = other.read_bytes()
    other.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    (found,) = checked(path, log.head()).problems
    assert found.text == f"no file ends with {first}, as it says: one was cut, or is gone"
    other.unlink()
    (found,) = checked(path, log.head()).problems
    assert first in found.text


def test_a_joined_log_may_have_been_removed_to_keep_the_log_small(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    first = write(path, 4)
    with AuditLog(path, Hands().clock()) as log:
        log.join(first)
        log.flush()
        # It is the oldest that nobody writes, and the bound is met by it alone.
        write(path, 1, LogBounds(files=2))
    assert len(list(path.glob("*.jsonl"))) == 2
    assert checked(path, log.head()).whole
