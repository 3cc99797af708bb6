"""The view as a copy: what the sandbox did to it becomes the same changes as with an overlay."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from keyhole.changes import copied_tree
from keyhole.changes.copied_tree import CopyLimits
from keyhole.model.errors import Refused
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"a": "one\n", "b": "two\n", "d/e/f": "three\n", "d/g": "four\n"}


class CopiedReview:
    """A project whose view is a copy, and a sandbox that works in it."""

    def __init__(self, top: Path, files: dict[str, str] | None = None) -> None:
        self.review = Review.of(top, FILES if files is None else files)
        self.copy = self.review.upper.parent / "copy"
        self.begin()

    def begin(self, *hidden: str) -> int:
        """A run begins."""
        store, tree = self.review.store, self.review.tree
        with store.holding("a run"):
            paths = {str(tree / name) for name in hidden}
            owner = (os.getuid(), os.getgid())
            return store.open_views([str(tree)], [], owner, "s", paths)[1]

    def end(self) -> None:
        """The run ends, or the next process finds that it was killed."""
        with self.review.store.holding("a run"):
            pass

    def seen(self) -> dict[str, str]:
        """The files that the sandbox sees."""
        return {
            str(path.relative_to(self.copy)): f"-> {path.readlink()}"
            if path.is_symlink()
            else path.read_text()
            for path in sorted(self.copy.rglob("*"))
            if path.is_symlink() or path.is_file()
        }


def worked_on(top: Path) -> CopiedReview:
    """A view in which everything was done at once."""
    made = CopiedReview(top)
    (made.copy / "a").write_text("one and more\n")
    (made.copy / "a").chmod(0o755)
    (made.copy / "b").unlink()
    shutil.rmtree(made.copy / "d")
    (made.copy / "d").mkdir()
    (made.copy / "d/g").write_text("other\n")
    (made.copy / "n/m").mkdir(parents=True)
    (made.copy / "n/m/x").write_text("new\n")
    (made.copy / "n/l").symlink_to("m/x")
    made.end()
    return made


AFTER = {"a": "one and more\n", "d/g": "other\n", "n/l": "-> m/x", "n/m/x": "new\n"}
SAID = {
    "a": "changed", "b": "removed", "d/e/": "removed", "d/e/f": "removed", "d/g": "changed",
    "n/": "new", "n/l": "new", "n/m/": "new", "n/m/x": "new",
}  # fmt: skip


def test_a_copy_has_the_same_changes_apply_and_undo_as_an_overlay(tmp_path: Path) -> None:
    made = worked_on(tmp_path)
    review = made.review
    assert review.said() == SAID
    assert review.files() == FILES
    assert review.apply().left == ()
    assert review.files() == AFTER
    assert review.said() == {}
    assert review.undo().left == ()
    assert review.files() == FILES
    assert review.said() == SAID


def test_the_next_run_sees_the_tree_with_what_is_pending(tmp_path: Path) -> None:
    made = worked_on(tmp_path)
    (made.review.tree / "person").write_text("mine\n")
    assert made.begin() == len(SAID)
    assert made.seen() == AFTER | {"person": "mine\n"}
    (made.copy / "n/m/x").unlink()
    (made.copy / "a").write_text("again\n")
    made.end()
    assert made.review.said() == {k: v for k, v in SAID.items() if k != "n/m/x"}
    assert made.begin() == len(SAID) - 1
    assert made.seen()["a"] == "again\n"
    made.end()
    made.review.discard("a", "d")
    made.begin()
    assert made.seen()["a"] == "one\n"
    assert made.seen()["d/e/f"] == "three\n"
    made.end()
    made.review.discard()
    made.begin()
    assert made.seen() == FILES | {"person": "mine\n"}


def test_an_entry_that_did_not_change_is_not_copied_again(tmp_path: Path) -> None:
    made = CopiedReview(tmp_path)
    before = (made.copy / "a").stat().st_ino
    made.end()
    (made.review.tree / "b").write_text("person\n")
    made.begin()
    assert (made.copy / "a").stat().st_ino == before
    assert made.seen() == FILES | {"b": "person\n"}


def test_a_directory_that_was_removed_and_made_again_hides_the_old_entries(tmp_path: Path) -> None:
    made = CopiedReview(tmp_path)
    shutil.rmtree(made.copy / "d")
    made.end()
    made.begin()
    assert "d/g" not in made.seen()
    (made.copy / "d").mkdir()
    (made.copy / "d/new").write_text("x\n")
    made.end()
    assert made.review.said() == {
        "d/e/": "removed", "d/e/f": "removed", "d/g": "removed", "d/new": "new",
    }  # fmt: skip
    made.begin()
    assert made.seen() == {"a": "one\n", "b": "two\n", "d/new": "x\n"}


def test_kinds_may_change_both_ways(tmp_path: Path) -> None:
    made = CopiedReview(tmp_path)
    shutil.rmtree(made.copy / "d")
    (made.copy / "d").write_text("a file\n")
    (made.copy / "b").unlink()
    (made.copy / "b").mkdir()
    (made.copy / "b/in").write_text("x\n")
    made.end()
    made.begin()
    assert made.seen() == {"a": "one\n", "b/in": "x\n", "d": "a file\n"}
    shutil.rmtree(made.copy / "b")
    (made.copy / "b").write_text("two\n")
    made.end()
    assert "b" not in made.review.said()
    made.review.apply()
    assert made.review.files() == {"a": "one\n", "b": "two\n", "d": "a file\n"}


def test_a_change_behind_an_unchanged_time_and_size_is_seen(tmp_path: Path) -> None:
    """Attack: code inside sets the times back, so that a change would not be listed."""
    made = CopiedReview(tmp_path)
    before = (made.copy / "a").stat()
    (made.copy / "a").write_text("two\n")
    os.utime(made.copy / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    made.end()
    assert made.review.said() == {"a": "changed"}


def test_a_change_on_both_sides_is_a_conflict(tmp_path: Path) -> None:
    made = CopiedReview(tmp_path)
    (made.copy / "a").write_text("sandbox\n")
    (made.copy / "b").write_text("sandbox\n")
    (made.review.tree / "a").write_text("person\n")
    made.end()
    assert made.review.held() == {"a": "conflict"}
    made.review.apply()
    assert made.review.files()["a"] == "person\n"
    assert made.review.files()["b"] == "sandbox\n"


def test_what_a_run_covers_is_not_copied(tmp_path: Path) -> None:
    """I1: a masked credential is not even in Keyhole's own directory. Control: without the mask."""
    made = CopiedReview(tmp_path)
    made.end()
    made.begin("a", "d/g")
    assert made.seen() == FILES | {"a": "", "d/g": ""}
    made.end()
    assert made.review.said() == {}
    made.begin()
    assert made.seen() == FILES


def test_hostile_entries_lead_nothing_out_of_the_copy(tmp_path: Path) -> None:
    """Attack: links, closed directories, pipes, thousands of levels. Control: a file beside."""
    made = CopiedReview(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept\n")
    shutil.rmtree(made.copy / "d")
    (made.copy / "d").symlink_to(outside)
    os.mkfifo(made.copy / "pipe")
    (made.copy / "closed").mkdir()
    (made.copy / "closed/x").write_text("x\n")
    (made.copy / "closed").chmod(0)
    deep = os.open(made.copy, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("l", dir_fd=deep)
        below = os.open("l", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    (made.copy / "plain").write_text("x\n")
    made.copy.chmod(0)
    made.end()
    said = made.review.said()
    assert said["closed/x"] == said["plain"] == "new"
    assert (said["d"], said["pipe"], said["l/"]) == ("changed", "new", "new")
    held = made.review.held()
    assert held["d"] == "leads-out"
    assert held["pipe"] == "special"
    made.review.apply()
    assert (made.review.tree / "plain").read_text() == "x\n"
    made.begin()
    assert (made.copy / "d").is_symlink()
    made.end()
    made.review.discard()
    assert (outside / "kept").read_text() == "kept\n"
    assert made.begin() == 0


@pytest.mark.parametrize("limits", [CopyLimits(entries=5), CopyLimits(size=4096)])
def test_a_tree_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: CopyLimits
) -> None:
    """I9. Control: the usual limits. The file system's own sharing of blocks is turned off."""
    monkeypatch.setattr(copied_tree, "_FICLONE", 0)
    monkeypatch.setattr(copied_tree, "CopyLimits", lambda: limits)
    with pytest.raises(Refused, match="would be a copy") as refused:
        CopiedReview(tmp_path)
    assert 'sandbox.changes = "direct"' in str(refused.value.hint)
    monkeypatch.setattr(copied_tree, "CopyLimits", CopyLimits)
    CopiedReview(tmp_path / "other")


def test_a_collection_that_is_interrupted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CopiedReview(tmp_path)
    (made.copy / "a").write_text("sandbox\n")
    (made.copy / "n").mkdir()
    (made.copy / "n/x").write_text("x\n")
    (made.copy / "b").unlink()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copied_tree.CopiedTree, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            made.end()
    assert made.review.store.uncollected
    made.end()
    assert made.review.said() == {"a": "changed", "b": "removed", "n/": "new", "n/x": "new"}
    assert not made.review.store.uncollected
