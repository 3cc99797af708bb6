"""Changes are applied as a whole, undone, discarded, and survive a kill at any point."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.changes import change_store
from keyhole.changes.transaction import Transaction
from keyhole.model.errors import Refused, ResourceUnusable
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"a": "one\n", "b": "two\n", "d/e/f": "three\n", "d/g": "four\n"}


def worked_on(top: Path) -> Review:
    """A view in which everything was done at once."""
    review = Review.of(top, FILES)
    review.write("a", "one and more\n", 0o755)
    review.remove("b")
    review.replace_directory("d")
    review.write("d/g", "other\n")
    review.write("n/m/x", "new\n")
    review.link("n/l", "m/x")
    return review


AFTER = {
    "a": "one and more\n",
    "d/g": "other\n",
    "n/l": "-> m/x",
    "n/m/x": "new\n",
}


def test_an_apply_takes_everything_over_and_leaves_nothing_pending(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    assert review.apply().left == ()
    assert review.files() == AFTER
    assert review.said() == {}
    assert not (review.tree / "d/e").exists()
    assert stat.S_IMODE((review.tree / "a").stat().st_mode) & 0o111 == 0o111
    assert list(review.upper.iterdir()) == []


def test_an_undo_restores_the_files_and_the_changes_are_pending_again(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    before = review.said()
    numbers = {name: (review.tree / name).stat().st_ino for name in FILES}
    review.apply()
    assert review.undo().left == ()
    assert review.files() == FILES
    assert {name: (review.tree / name).stat().st_ino for name in FILES} == numbers
    assert review.said() == before
    assert not any(change.conflict for change in review.changes().values())
    review.apply()
    assert review.files() == AFTER
    review.undo()
    with pytest.raises(Refused, match="no apply to undo"):
        review.undo()


def test_applies_are_undone_one_after_another_the_last_first(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    states = []
    for name in ("a", "b", "n/m/x"):
        states.append(review.files())
        review.apply(name)
    review.begin_again()
    review.write("a", "once more\n")
    states.append(review.files())
    review.apply("a")
    assert review.files()["a"] == "once more\n"
    for state in reversed(states):
        assert review.store.can_undo
        review.undo()
        assert review.files() == state
    assert review.files() == FILES
    with pytest.raises(Refused, match="there is no apply to undo"):
        review.undo()
    assert review.changes()["a"].conflict is False
    review.apply()
    assert review.files() == AFTER | {"a": "once more\n"}


def test_so_many_applies_can_be_undone_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: each keeps the files that it replaced."""
    monkeypatch.setattr(change_store, "MAX_UNDO", 3)
    review = Review.of(tmp_path, {"a": "0\n"})
    for number in range(1, 6):
        review.write("a", f"{number}\n")
        review.apply()
        review.begin_again()
    for number in (4, 3, 2):
        review.undo()
        assert review.files() == {"a": f"{number}\n"}
    assert not review.store.can_undo


@pytest.mark.parametrize("lost", ["rename", "before"])
def test_an_undo_that_is_killed_at_its_end_leaves_the_applies_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    review = worked_on(tmp_path)
    review.apply("a")
    review.apply("b")
    with monkeypatch.context() as patch:
        patch.setattr(change_store.ChangeStore, "_bring_up", lambda _: None)
        review.undo()
    assert not review.store.can_undo
    if lost == "before":
        review.apply("b")
        review.undo()
    review.begin_again()
    review.undo()
    assert review.files() == FILES


def test_an_undo_leaves_what_the_person_changed_since(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    review.apply()
    review.tree.joinpath("a").write_text("edited\n")
    review.tree.joinpath("n/mine").write_text("mine\n")
    assert review.undo().left == (str(review.tree / "a"),)
    assert review.files() == FILES | {"a": "edited\n", "n/mine": "mine\n"}


def test_a_part_is_applied_and_the_rest_stays_pending(tmp_path: Path) -> None:
    """Also in a directory that was made anew, whose layer hides all that was in it."""
    review = worked_on(tmp_path)
    review.apply("d/g")
    assert review.files() == FILES | {"d/g": "other\n"}
    assert "d/g" not in review.said()
    assert review.said()["d/e/f"] == "removed"
    review.tree.joinpath("d/g").write_text("edited later\n")
    assert "d/g" not in review.said()
    review.apply("d", "n/m")
    assert review.said() == {"a": "changed", "b": "removed", "n/l": "new"}


def test_a_part_is_discarded_and_the_rest_stays_pending(tmp_path: Path) -> None:
    review = Review.of(tmp_path, FILES)
    review.remove("d")
    review.write("a", "x\n")
    review.discard("d/e/f")
    assert review.said() == {"a": "changed", "d/g": "removed"}
    review.discard("a", "d")
    assert review.said() == {}
    assert review.files() == FILES


def test_all_is_discarded_whatever_hostile_code_made_of_it(tmp_path: Path) -> None:
    """A directory without permissions, and one with thousands of levels."""
    review = worked_on(tmp_path)
    (review.upper / "shut").mkdir(0o000)
    at = os.open(review.upper, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("x", dir_fd=at)
        below = os.open("x", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    review.discard()
    review.store.empty_trash(None)
    assert review.said() == {}
    assert review.files() == FILES
    assert [list(upper.iterdir()) for upper in (tmp_path / "changes").rglob("upper")] == [[]]


def test_a_conflict_is_left_and_replaced_only_if_named(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    review.tree.joinpath("a").write_text("person's\n")
    review.apply()
    assert review.files() == AFTER | {"a": "person's\n"}
    assert review.said() == {"a": "changed"}
    review.apply("a", replaces=True)
    assert review.files() == AFTER
    review.undo()
    assert review.files() == AFTER | {"a": "person's\n"}


def test_a_file_that_is_changed_between_the_plan_and_the_step_is_left(tmp_path: Path) -> None:
    review = worked_on(tmp_path)
    plan = review.plan()
    review.tree.joinpath("a").write_text("at this moment\n")
    with review.store.holding("apply"):
        outcome = review.store.apply(plan)
    assert outcome.left == (str(review.tree / "a"),)
    assert review.files() == AFTER | {"a": "at this moment\n"}
    assert review.changes()["a"].conflict


def test_a_link_in_the_persons_tree_leads_no_write_out(tmp_path: Path) -> None:
    """I11: neither one that was there, nor one that is swapped in before the step.

    Control: the same change goes to a directory.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    review = Review.of(tmp_path, {"d/x": "", "e/x": ""})
    review.write("d/evil", "evil\n")
    review.write("e/evil", "evil\n")
    plan = review.plan()
    review.tree.joinpath("d").rename(review.tree / "moved")
    review.tree.joinpath("d").symlink_to(outside)
    with review.store.holding("apply"):
        outcome = review.store.apply(plan)
    assert outcome.left == (str(review.tree / "d/evil"),)
    assert list(outside.iterdir()) == []
    assert review.tree.joinpath("e/evil").read_text() == "evil\n"
    assert review.apply("d").left == () or list(outside.iterdir()) == []


def test_a_link_in_the_layer_is_written_as_a_link_and_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    review = Review.of(tmp_path, {"a": "one\n"})
    review.link("a", str(secret))
    assert review.held() == {"a": "leads-out"}
    review.apply("a")
    assert (review.tree / "a").readlink() == secret
    review.undo()
    assert review.files() == {"a": "one\n"}


def test_setuid_is_dropped_and_the_persons_mode_is_kept(tmp_path: Path) -> None:
    review = Review.of(tmp_path, {"a": "one\n", "b": "two\n"})
    review.tree.joinpath("a").chmod(0o640)
    assert review.begin_again() == 0
    review.write("a", "changed\n", 0o6777)
    review.write("b", "changed\n", 0o4644)
    review.write("n", "new\n", 0o6777)
    review.apply()
    modes = {name: oct(stat.S_IMODE((review.tree / name).stat().st_mode)) for name in "abn"}
    umask = os.umask(0o022)
    os.umask(umask)
    assert modes == {"a": "0o750", "b": "0o644", "n": oct(0o777 & ~umask)}


def test_an_apply_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. Control: the same apply succeeds afterwards."""
    review = worked_on(tmp_path)
    before = review.said()
    original, calls = Transaction._write, []

    def failing(self: Transaction, number: int, *rest: object) -> str:
        calls.append(number)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return original(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Transaction, "_write", failing)
    named = rf"nothing was applied: .*No space left on device: '{review.tree}/"
    with pytest.raises(ResourceUnusable, match=named):
        review.apply()
    assert review.files() == FILES
    assert review.said() == before
    monkeypatch.setattr(Transaction, "_write", original)
    review.apply()
    assert review.files() == AFTER


@pytest.mark.parametrize("steps", range(7))
def test_an_apply_that_the_person_interrupts_is_taken_back(tmp_path: Path, steps: int) -> None:
    """Control: the same apply succeeds afterwards."""
    review = worked_on(tmp_path)
    before = review.said()
    looks = iter([False] * steps)
    with (
        review.store.holding("apply"),
        pytest.raises(ResourceUnusable, match="nothing was applied: you interrupted it"),
    ):
        review.store.apply(review.plan(), lambda: next(looks, True))
    assert review.files() == FILES
    assert review.said() == before
    review.apply()
    assert review.files() == AFTER


def test_only_one_has_the_changes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_store, "LOCK_SECONDS", 0.05)
    review = worked_on(tmp_path)
    assert review.store.busy == ""
    with review.store.holding("session 1"):
        assert review.store.busy == "session 1"
        with pytest.raises(Refused, match="in use by session 1"):
            review.apply()
    assert review.files() == FILES
    review.apply()
    assert review.files() == AFTER


def test_a_process_that_is_killed_anywhere_in_an_apply_has_it_finished_by_the_next(
    tmp_path: Path,
) -> None:
    """Each file is as before or as after at every moment; the next act finishes it, and an undo
    after that restores everything."""
    seed = random.Random(17)  # noqa: S311 - times of a test
    for turn in range(12):
        review = worked_on(tmp_path / str(turn))
        for number in range(60):
            review.write(f"many/{number}", "x" * number)
        after = AFTER | {f"many/{number}": "x" * number for number in range(60)}
        _kill_soon(review, seed.random() * 0.02)
        now = review.files()
        assert all(
            now.get(name) in (FILES.get(name), after.get(name)) for name in {*FILES, *after}
        ), now
        review.apply()
        assert review.files() == after
        assert review.said() == {}
        assert not list(review.tree.rglob(".keyhole-*"))
        if review.store.can_undo:
            review.undo()
            assert review.files() == FILES


def test_a_process_that_is_killed_anywhere_in_an_undo_has_it_finished_by_the_next(
    tmp_path: Path,
) -> None:
    seed = random.Random(18)  # noqa: S311 - times of a test
    for turn in range(8):
        review = worked_on(tmp_path / str(turn))
        before = review.said()
        review.apply()
        _kill_soon(review, seed.random() * 0.01, undo=True)
        review.begin_again()
        assert review.files() in (FILES, AFTER)
        if review.store.can_undo:
            review.undo()
        assert review.files() == FILES
        assert review.said() == before
        assert not list(review.tree.rglob(".keyhole-*"))


def _kill_soon(review: Review, seconds: float, *, undo: bool = False) -> None:
    """Have another process apply or undo, and kill it after so many seconds."""
    child = os.fork()
    if child == 0:
        try:
            review.undo() if undo else review.apply()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("stop", range(0, 30, 3))
def test_an_apply_that_stops_after_any_number_of_calls_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The same without chance: the process ends just before its n-th change of the disk."""
    review = worked_on(tmp_path)
    child = os.fork()
    if child == 0:
        calls = 0

        def counted(name: str) -> None:
            original = getattr(os, name)

            def call(*words: object, **more: object) -> object:
                nonlocal calls
                calls += 1
                if calls > stop:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*words, **more)

            monkeypatch.setattr(os, name, call)

        try:
            for name in ("rename", "link", "unlink", "mkdir", "rmdir", "symlink", "write"):
                counted(name)
            review.apply()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or stop > 20
    review.apply()
    assert review.files() == AFTER
    assert review.said() == {}
    assert not list(review.tree.rglob(".keyhole-*"))
    if review.store.can_undo:
        review.undo()
        assert review.files() == FILES


def test_an_apply_is_undone_after_a_discard_and_refused_where_the_tree_is_gone(
    tmp_path: Path,
) -> None:
    review = Review.of(tmp_path, FILES)
    review.write("new", "1")
    review.apply()
    review.write("other", "2")
    review.discard()
    assert review.undo().left == ()
    assert review.files() == FILES
    assert review.said() == {"new": "new"}
    review.apply()
    moved = review.tree.rename(tmp_path / "moved")
    with pytest.raises(Refused, match="is no directory any more"):
        review.undo()
    # Nothing is left half done: the next run begins, and the undo can still be had.
    moved.rename(review.tree)
    assert review.begin_again() == 0
    assert review.undo().left == ()
    assert review.files() == FILES


def test_a_killed_undo_does_not_stop_later_runs_when_the_tree_is_gone(tmp_path: Path) -> None:
    review = Review.of(tmp_path, FILES)
    review.write("new", "1")
    review.apply()
    (review.upper.parent.parent / "applied/undoing").touch()
    moved = review.tree.rename(tmp_path / "moved")
    with review.store.holding("a run"):
        pass
    assert not review.store.can_undo
    assert (moved / "new").read_text() == "1"


def test_a_view_whose_top_was_closed_is_read(tmp_path: Path) -> None:
    """Attack: `chmod 0 .` inside. Root could read it all the same, so the mode is what counts."""
    review = Review.of(tmp_path, FILES)
    review.write("new", "1")
    review.upper.chmod(0o055)
    assert review.said() == {"new": "new"}
    assert review.upper.stat().st_mode & 0o777 == 0o755


def test_directories_that_were_closed_are_read_and_applied(tmp_path: Path) -> None:
    """Attack: `chmod 0` on a directory of the view. Root could do it all, so the modes count; the
    tests from outside try it as an ordinary user."""
    review = Review.of(tmp_path, FILES)
    review.write("d/new", "1")
    review.write("own/inner/new", "1")
    for name in ("d", "own/inner", "own"):
        (review.upper / name).chmod(0o050)
    assert set(review.said()) == {"d/new", "own/", "own/inner/", "own/inner/new"}
    modes = [(review.upper / name).stat().st_mode & 0o777 for name in ("d", "own", "own/inner")]
    assert modes == [0o750] * 3
    assert review.apply().left == ()
    assert review.said() == {}


def test_a_tree_of_the_persons_that_is_too_deep_is_not_removed(tmp_path: Path) -> None:
    """Control: the other removal is applied, and the next run begins."""
    review = Review.of(tmp_path, FILES)
    here = os.open(review.tree, os.O_PATH)
    for _ in range(140):
        os.mkdir("n", dir_fd=here)
        below = os.open("n", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    review.begin_again()
    review.remove("n")
    review.remove("a")
    assert str(review.tree / "n") in review.apply().left
    assert review.tree.joinpath(*["n"] * 128).is_dir()
    assert not review.tree.joinpath("a").exists()
    assert review.begin_again() > 0
