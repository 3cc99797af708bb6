"""Running a program of the host within bounds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.host import program_output
from tests.rigs.host.building import program

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ENV = {"PATH": "/usr/bin:/bin"}


def test_what_it_prints_comes_back_with_how_it_ended(tmp_path: Path) -> None:
    told = program(tmp_path / "tell", 'printf "%s" "$1"; exit 3')
    assert program_output.run_program([str(told), "words"], ENV) == program_output.ProgramOutput(
        "words", 3
    )


def test_a_complaint_is_what_goes_to_stderr(tmp_path: Path) -> None:
    both = program(tmp_path / "both", "echo out; echo err >&2")
    heard = program_output.run_program([str(both)], ENV, complaint=True)
    assert heard is not None
    assert heard.text == "err\n"


def test_it_stands_in_the_root_with_no_stdin_and_only_the_environment_given(tmp_path: Path) -> None:
    look = program(tmp_path / "look", 'pwd; cat; echo "end of stdin"; env | cut -d= -f1')
    heard = program_output.run_program([str(look)], {**ENV, "GIVEN": "1"})
    assert heard is not None
    directory, stdin, *names = heard.text.splitlines()
    assert (directory, stdin) == ("/", "end of stdin")
    assert {"PATH", "GIVEN"} <= set(names) <= {"PATH", "GIVEN", "PWD", "OLDPWD", "SHLVL", "_"}


def test_what_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_output, "MAX_SECONDS", 0.2)
    # The child keeps the pipe open after its parent is gone.
    slow = program(tmp_path / "slow", "sleep 60 & sleep 60")
    begin = time.monotonic()
    assert program_output.run_program([str(slow)], ENV) is None
    assert time.monotonic() - begin < 30


def test_what_says_too_much_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_output, "MAX_OUTPUT", 1000)
    endless = program(tmp_path / "endless", "while :; do echo 0123456789; done")
    enough = program(tmp_path / "enough", 'printf "%01000d" 0')
    assert program_output.run_program([str(endless)], ENV) is None
    assert program_output.run_program([str(enough)], ENV) is not None


def test_what_cannot_be_run_gives_no_answer(tmp_path: Path) -> None:
    assert program_output.run_program([str(tmp_path / "nothing")], ENV) is None
    assert program_output.run_program(["a\0b"], ENV) is None
