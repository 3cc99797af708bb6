"""Every place that a path leads through."""

from __future__ import annotations

from pathlib import Path

from keyhole.host.trail import trail


def test_a_plain_path_is_its_own_steps(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    steps = trail(tmp_path / "a" / "b")
    assert steps is not None
    assert steps[-2:] == (tmp_path / "a", tmp_path / "a" / "b")


def test_a_link_in_the_middle_is_one_of_the_steps(tmp_path: Path) -> None:
    (tmp_path / "end").mkdir()
    (tmp_path / "middle").symlink_to("end")
    (tmp_path / "start").symlink_to(tmp_path / "middle")
    steps = trail(tmp_path / "start" / "file")
    assert steps is not None
    assert [tmp_path / n for n in ("start", "middle", "end")] == [
        s for s in steps if s.parent == tmp_path
    ]
    assert steps[-1] == tmp_path / "end" / "file"


def test_dots_are_taken_as_the_kernel_takes_them(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")
    steps = trail(Path(f"{tmp_path}/link/../here"))
    assert steps is not None
    assert steps[-1] == tmp_path / "far" / "here"


def test_a_loop_has_no_trail(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert trail(tmp_path / "a") is None


def test_a_relative_path_has_no_trail() -> None:
    assert trail(Path("etc/passwd")) is None
