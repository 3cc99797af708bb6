"""A layer is read as overlayfs means it, and as the hostile data that it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.changes import layer_reading, tree_directory
from keyhole.changes.upper_layer import UpperLayer
from keyhole.model.errors import Refused
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def review(tmp_path: Path) -> Review:
    return Review.of(tmp_path, {"a": "one\n", "d/e/f": "two\n", "d/g": "three\n", "s": "x\n"})


def test_what_the_sandbox_did_is_said_for_each_entry(review: Review) -> None:
    review.write("a", "more\n")
    review.write("n/m/x", "new\n")
    review.remove("d/e")
    assert review.said() == {
        "a": "changed",
        "d/e/": "removed",
        "d/e/f": "removed",
        "n/": "new",
        "n/m/": "new",
        "n/m/x": "new",
    }


def test_a_directory_that_was_made_anew_hides_what_was_in_it(review: Review) -> None:
    review.replace_directory("d")
    review.write("d/g", "other\n")
    assert review.said() == {"d/e/": "removed", "d/e/f": "removed", "d/g": "changed"}


def test_a_directory_below_a_hiding_one_hides_as_well(review: Review) -> None:
    review.replace_directory("d")
    (review.upper / "d/e").mkdir()
    assert review.said() == {"d/e/f": "removed", "d/g": "removed"}


def test_an_entry_that_is_equal_is_no_change_and_leaves_the_layer_at_the_next_start(
    review: Review,
) -> None:
    """Otherwise a later change of the person's would look like one of the sandbox."""
    review.write("a", "one\n")
    assert review.said() == {}
    assert review.begin_again() == 0
    assert not (review.upper / "a").exists()
    review.tree.joinpath("a").write_text("mine\n")
    assert review.said() == {}


def test_an_executable_bit_is_a_change(review: Review) -> None:
    review.write("a", "one\n", 0o755)
    assert review.said() == {"a": "changed"}


def test_a_file_that_changed_on_both_sides_is_a_conflict(review: Review) -> None:
    """Control: one that changed on one side is none, nor one that is equal now."""
    for name in ("a", "s", "d/g"):
        review.write(name, "sandbox's\n")
    review.tree.joinpath("a").write_text("person's\n")
    review.tree.joinpath("d/g").write_text("sandbox's\n")
    found = review.changes()
    assert {name: change.conflict for name, change in found.items()} == {"a": True, "s": False}


def test_removing_or_making_a_file_on_both_sides_is_a_conflict_too(review: Review) -> None:
    review.write("a", "sandbox's\n")
    review.tree.joinpath("a").unlink()
    review.write("n", "sandbox's\n")
    review.tree.joinpath("n").write_text("person's\n")
    review.remove("d")
    review.tree.joinpath("d/mine").write_text("person's\n")
    review.remove("s")
    review.tree.joinpath("s").unlink()
    conflicts = {name for name, change in review.changes().items() if change.conflict}
    assert conflicts == {"a", "n", "d/mine"}


def test_a_conflict_stays_one_over_later_runs_and_a_new_change_begins_with_its_run(
    review: Review,
) -> None:
    review.write("a", "sandbox's\n")
    review.tree.joinpath("a").write_text("person's\n")
    review.tree.joinpath("s").write_text("person's\n")
    assert review.begin_again() == 1
    review.write("s", "sandbox's, who saw the person's\n")
    assert {n: c.conflict for n, c in review.changes().items()} == {"a": True, "s": False}


def test_links_pipes_and_kinds_that_change_are_told_apart(review: Review) -> None:
    review.link("out", "/etc/passwd")
    os.mkfifo(review.upper / "pipe")
    review.write("d", "a file now\n")
    (review.upper / "a").mkdir()
    found = review.changes()
    assert (found["out"].kind, found["out"].target) == ("link", "/etc/passwd")
    assert found["pipe"].kind == "special"
    assert (found["d"].was, found["d"].kind) == ("directory", "file")
    assert (found["a"].was, found["a"].kind) == ("file", "directory")
    assert found["d/e/f"].change == "removed"


def test_a_directory_that_is_too_deep_is_reported_and_not_entered(review: Review) -> None:
    """I9. Control: the directories above it are read."""
    names = "/".join("x" for _ in range(tree_directory.MAX_DEPTH + 5))
    (review.upper / names).mkdir(parents=True)
    found = review.changes()
    assert len(found) == tree_directory.MAX_DEPTH
    assert [c.name.count("/") for c in found.values() if c.kind == "special"] == [
        tree_directory.MAX_DEPTH - 1
    ]


def test_more_changes_than_can_be_read_are_refused(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9. Control: as many as the bound are read."""
    monkeypatch.setattr(layer_reading, "MAX_CHANGES", 3)
    for name in ("x", "y", "z"):
        review.write(name, "")
    assert len(review.changes()) == 3
    review.write("w", "")
    with pytest.raises(Refused, match="more than 3 changes"):
        review.changes()


def test_a_directory_that_vanishes_while_it_is_read_is_left_out(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox may still run. Control: the others are read."""
    review.write("n/x", "")
    review.write("gone/x", "")

    def vanish(layer: UpperLayer, name: str) -> bool:
        if name == "gone":
            raise FileNotFoundError(2, "No such file or directory", layer.path)
        return False

    monkeypatch.setattr(UpperLayer, "is_opaque", vanish)
    assert review.said() == {"gone/": "new", "n/": "new", "n/x": "new"}


def test_a_huge_file_is_not_read_to_be_compared(review: Review) -> None:
    for side in (review.tree, review.upper):
        with (side / "huge").open("w") as file:
            file.truncate(100 << 30)
    assert review.changes()["huge"].size == 100 << 30
