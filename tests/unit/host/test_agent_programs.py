"""Agents of this host, told from other programs of their names (I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host.agent_programs import find_agent
from keyhole.inject.agent_profile import parse_profile
from tests.rigs.host.building import host, program

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = parse_profile(
    "goose",
    'title = "goose"\nsure = "tested"\nlooked_at = "2026-11-17"\ninstall = "x"\n'
    'marks = ["/Cellar/goose/"]\ncontents = ["GOOSE_MARK"]\n',
)


def found(tmp_path: Path, *, named: str | None = None, writable: tuple[Path, ...] = ()) -> str:
    env = {"PATH": f"{tmp_path}/first:{tmp_path}/second"}
    trees = find_agent(PROFILE, host(tmp_path, env=env, writable=writable), named)
    return trees.program if trees else ""


def test_an_agent_is_known_by_its_place_or_its_content(tmp_path: Path) -> None:
    place = program(tmp_path / "first/goose", "migrate a database")
    assert found(tmp_path) == ""
    program(place, "echo GOOSE_MARK")
    assert found(tmp_path) == str(place)
    assert found(tmp_path, named="goose") == str(place)
    assert found(tmp_path, named=str(place)) == str(place)
    assert found(tmp_path, named=f"{tmp_path}/gone/goose") == ""
    place.unlink()
    place.symlink_to(program(tmp_path / "brew/Cellar/goose/1/bin/goose", ""))
    assert found(tmp_path) == str(place)


def test_a_program_that_the_sandbox_can_write_is_not_the_agent(tmp_path: Path) -> None:
    program(tmp_path / "first/goose", "GOOSE_MARK")
    second = program(tmp_path / "second/goose", "GOOSE_MARK")
    assert found(tmp_path) == str(tmp_path / "first/goose")
    assert found(tmp_path, writable=(tmp_path / "first",)) == str(second)
    wary = (tmp_path / "first",)
    assert found(tmp_path, named=f"{tmp_path}/first/goose", writable=wary) == ""


def test_a_file_that_cannot_be_searched_is_not_the_agent(tmp_path: Path) -> None:
    place = program(tmp_path / "first/goose", "")
    place.write_bytes(b"")
    assert found(tmp_path) == ""
