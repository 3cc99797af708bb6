"""The record of a sandbox's first process: what counts as a sandbox that still lives."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.first_process import (
    has_sandbox_ended,
    note_process,
    open_record,
    prepare_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as started:
        yield started
        started.kill()


def test_a_noted_process_is_waited_for(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    """Control: a record without a process, and no record at all, are of no sandbox."""
    record = tmp_path / "sandbox"
    assert has_sandbox_ended(record, 0)
    prepare_record(record)
    assert has_sandbox_ended(record, 0)
    note_process(str(record), process.pid)
    assert not has_sandbox_ended(record, 0)
    process.kill()
    assert has_sandbox_ended(record, 30)
    process.wait()
    assert has_sandbox_ended(record, 0)


def test_a_number_that_another_process_has_by_now_is_not_waited_for(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    record = tmp_path / "sandbox"
    for written in (f"{process.pid} 1\n", f'{{\n    "child-pid": {process.pid}'):
        prepare_record(record)
        descriptor = open_record(str(record))
        os.write(descriptor, written.encode())
        os.close(descriptor)
        assert has_sandbox_ended(record, 0)


def test_processes_of_an_earlier_boot_have_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    record = tmp_path / "sandbox"
    record.write_text("00000000-0000-0000-0000-000000000000\n")
    note_process(str(record), process.pid)
    assert has_sandbox_ended(record, 0)
