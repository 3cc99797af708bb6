"""Nothing that Keyhole executes lies where the sandbox can write (I11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files.trusted_programs import refuse_writable_programs


def a_program(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_program_elsewhere_is_fine_and_one_inside_is_refused(tmp_path: Path) -> None:
    outside = a_program(tmp_path / "bin/tool")
    inside = a_program(tmp_path / "work/bin/tool")
    refuse_writable_programs([outside], [tmp_path / "work"])
    with pytest.raises(Refused, match="sandbox can write"):
        refuse_writable_programs([outside, inside], [tmp_path / "work"])


def test_a_link_through_a_writable_tree_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    outside = a_program(tmp_path / "bin/tool")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/middle").symlink_to(outside)
    (tmp_path / "start").symlink_to(tmp_path / "work/middle")
    with pytest.raises(Refused, match="work, which"):
        refuse_writable_programs([tmp_path / "start"], [tmp_path / "work"])
    refuse_writable_programs([tmp_path / "start"], [tmp_path / "elsewhere"])


def test_a_script_is_as_trusted_as_its_interpreter(tmp_path: Path) -> None:
    interpreter = a_program(tmp_path / "work/python")
    script = a_program(tmp_path / "bin/tool", f"#!{interpreter}\n")
    with pytest.raises(Refused, match="work, which"):
        refuse_writable_programs([script], [tmp_path / "work"])
    refuse_writable_programs(
        [a_program(tmp_path / "bin/other", "#!/bin/sh\n")], [tmp_path / "work"]
    )


def test_a_program_that_is_not_there_yet_could_be_put_there(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        refuse_writable_programs([tmp_path / "work/gone"], [tmp_path / "work"])


def test_a_relative_program_and_a_loop_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for program in (Path("bin/tool"), tmp_path / "a"):
        with pytest.raises(Refused):
            refuse_writable_programs([program], [tmp_path / "work"])


def test_a_tree_that_is_named_through_a_link_is_the_tree(tmp_path: Path) -> None:
    inside = a_program(tmp_path / "work/tool")
    (tmp_path / "alias").symlink_to("work")
    with pytest.raises(Refused):
        refuse_writable_programs([inside], [tmp_path / "alias"])
