"""The view as a copy: what the sandbox did to it becomes the same changes as with an overlay."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.changes import copied_tree
from keyhole.changes.copied_tree import CopyLimits
from keyhole.model.errors import Refused
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {"a": "one\n", "b": "two\n", "d/e/f": "three\n", "d/g": "four\n"}


class CopiedReview:
    """A project whose view is a copy, and a sandbox that works in it."""

    def __init__(self, top: Path, files: dict[str, str] | None = None) -> None:
        self.review = Review.of(top, FILES if files is None else files)
        self.copy = self.review.upper.parent / "copy"
        self.begin()

    def begin(self, *hidden: str, owner: tuple[int, int] | None = None) -> int:
        """A run begins, of this user."""
        store, tree = self.review.store, self.review.tree
        with store.holding("a run"):
            paths = {str(tree / name) for name in hidden}
            owner = owner or (os.getuid(), os.getgid())
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


STRANGER = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="root alone sees files of every user")


@contextlib.contextmanager
def as_an_ordinary_person() -> Iterator[Path]:
    """Root never gets a PermissionError."""
    top = Path(tempfile.mkdtemp()).resolve()
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(top, STRANGER, STRANGER)
            os.seteuid(STRANGER)
        yield top
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(top)


@pytest.mark.parametrize("mode", [0o400, 0o200, 0o100, 0])
def test_a_directory_that_was_closed_by_half_is_read(mode: int) -> None:
    """Attack: `chmod 400 d` inside would keep its owner from `keyhole changes` and the next run."""
    with as_an_ordinary_person() as top:
        made = CopiedReview(top)
        (made.copy / "d/e/f").write_text("sandbox\n")
        (made.copy / "n").mkdir()
        (made.copy / "n/x").write_text("x\n")
        for name in ("d/e", "d", "n", "."):
            (made.copy / name).chmod(mode)
        made.end()
        assert made.review.said() == {"d/e/f": "changed", "n/": "new", "n/x": "new"}
        made.begin()
        assert made.seen() == FILES | {"d/e/f": "sandbox\n", "n/x": "x\n"}


def test_a_directory_of_the_person_is_never_opened_by_force() -> None:
    """Also in a project whose own directory is called `copy`. Control: the file beside it."""
    with as_an_ordinary_person() as top:
        made = CopiedReview(top)
        made.end()
        (made.review.tree / "d").chmod(0o400)
        made.begin()
        assert made.seen() == {"a": "one\n", "b": "two\n"}
        assert (made.review.tree / "d").stat().st_mode & 0o777 == 0o400
        found = copied_tree.survey(str(made.review.tree))
        assert {"a", "d"} <= set(found)
        (made.review.tree / "d").chmod(0o700)


def test_every_change_can_be_discarded_although_the_copy_cannot_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CopiedReview(tmp_path)
    (made.copy / "a").write_text("sandbox\n")

    def fails(*_: object) -> None:
        raise PermissionError("not this one")

    with monkeypatch.context() as patch:
        patch.setattr(copied_tree.CopiedTree, "collect", fails)
        with pytest.raises(PermissionError):
            made.end()
        with made.review.store.holding("discard", collects=False):
            made.review.store.discard(None)
        made.end()
    assert made.review.said() == {}
    assert made.begin() == 0
    assert made.seen() == FILES


def test_a_copy_with_too_many_entries_is_not_read_and_can_be_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: each entry takes memory. Control: one entry fewer."""
    made = CopiedReview(tmp_path)
    (made.copy / "one").touch()
    monkeypatch.setattr(copied_tree, "CopyLimits", lambda: CopyLimits(found=len(FILES) + 3))
    made.end()
    assert made.review.said() == {"one": "new"}
    made.begin()
    (made.copy / "two").touch()
    with pytest.raises(Refused, match="left more than 7 files") as refused:
        made.end()
    assert "`keyhole discard` drops them" in str(refused.value.hint)
    assert (made.copy / "two").exists()
    with made.review.store.holding("discard", collects=False):
        made.review.store.discard(None)
    assert made.begin() == 0
    assert made.seen() == FILES


@root_only
def test_what_the_sandboxs_user_may_not_read_is_not_in_a_copy_of_root(tmp_path: Path) -> None:
    """I11: `mv notes y` inside would make it the sandbox's own. Control: files that it may read."""
    made = CopiedReview(tmp_path, {"notes": "root\n", "rd/f": "root\n", "open": "all\n"})
    made.end()
    tree = made.review.tree
    os.chown(tree, STRANGER, STRANGER)
    (tree / "mine").write_text("own\n")
    (tree / "group").write_text("group\n")
    os.chown(tree / "mine", STRANGER, 0)
    os.chown(tree / "group", 0, STRANGER)
    (tree / "mine").chmod(0o400)
    (tree / "group").chmod(0o640)
    (tree / "notes").chmod(0o600)
    (tree / "rd").chmod(0o700)
    made.begin(owner=(STRANGER, STRANGER))
    assert made.seen() == {"open": "all\n", "mine": "own\n", "group": "group\n"}
    assert not (made.copy / "rd").exists()
    (made.copy / "rd").mkdir()
    (made.copy / "rd/own").write_text("x\n")
    made.end()
    assert made.review.said() == {"rd/own": "new"}
    made.begin("notes", "rd/f", owner=(STRANGER, STRANGER))
    assert made.seen()["notes"] == made.seen()["rd/f"] == ""


@root_only
def test_a_thousand_levels_made_inside_end_no_run_of_root(tmp_path: Path) -> None:
    made = CopiedReview(tmp_path)
    deep = os.open(made.copy, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("l", dir_fd=deep)
        os.chown("l", STRANGER, STRANGER, dir_fd=deep)
        below = os.open("l", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    opened = len(os.listdir("/proc/self/fd"))
    made.end()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert made.review.said()["l/"] == "new"
    assert (made.review.upper / "/".join("l" * 128)).stat().st_uid == 0
    with made.review.store.holding("discard"):
        made.review.store.discard(None)
    made.review.store.empty_trash(None)


def test_a_directory_made_on_both_sides_keeps_what_the_person_put_there(tmp_path: Path) -> None:
    """Control: in one that the sandbox made again, the old entries are removed."""
    made = CopiedReview(tmp_path)
    (made.copy / "both").mkdir()
    (made.copy / "both/theirs").write_text("sandbox\n")
    (made.review.tree / "both").mkdir()
    (made.review.tree / "both/mine").write_text("person\n")
    made.end()
    assert made.review.said() == {"both/theirs": "new"}


def test_a_file_that_vanishes_while_the_copy_is_made_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CopiedReview(tmp_path)
    made.end()
    (made.review.tree / "new").write_text("x\n")
    (made.review.tree / "late").symlink_to("new")
    survey = copied_tree.survey

    def seen_before(tree: str, **how: bool) -> dict[str, os.stat_result]:
        found = survey(tree, **how)
        for name in ("new", "late"):
            (made.review.tree / name).unlink(missing_ok=True)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(copied_tree, "survey", seen_before)
        made.begin()
    assert made.seen() == FILES
    made.end()
    assert made.review.said() == {}


def test_what_lies_in_a_covered_directory_is_not_copied(tmp_path: Path) -> None:
    """I1. Control: without the cover."""
    made = CopiedReview(tmp_path)
    made.end()
    made.begin("d")
    assert made.seen() == {"a": "one\n", "b": "two\n"}
    assert (made.copy / "d").is_dir()
    made.end()
    assert made.review.said() == {}
    made.begin()
    assert made.seen() == FILES
