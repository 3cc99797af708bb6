"""An entry that the person saves while it is replaced is never lost."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import pytest

from keyhole.changes import exact_replacement
from keyhole.system.syscalls import exchange_names
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = {"changed": "old\n", "removed": "old\n", "beside": "old\n"}
APPLIED = {"changed": "agent's\n", "new": "agent's\n", "beside": "agent's\n"}
SAVED = "saved at this moment\n"


def worked_on(top: Path) -> Review:
    """A view in which one file was changed, one removed and one made; and one beside them."""
    review = Review.of(top, FILES)
    for name in ("changed", "new", "beside"):
        review.write(name, "agent's\n")
    review.remove("removed")
    return review


def save(review: Review, name: str) -> None:
    """As most editors do: a new file in place of the old one."""
    review.tree.joinpath("draft").write_text(SAVED)
    review.tree.joinpath("draft").rename(review.tree / name)


def saving_first(review: Review, name: str, call: Callable[..., None]) -> Callable[..., None]:
    """The same call, just after the person saved that file; once."""
    own = review.tree / name
    left = [1]

    def saved_first(*words: object, **more: object) -> None:
        if left and name in words:
            left.pop()
            save(review, own.name)
        call(*words, **more)

    return saved_first


def meet(monkeypatch: pytest.MonkeyPatch, review: Review, name: str) -> None:
    """Have the person save a file just before it is replaced or taken away."""
    for call in ("exchange_names", "rename_new"):
        original = getattr(exact_replacement, call)
        monkeypatch.setattr(exact_replacement, call, saving_first(review, name, original))
    if name == "removed":
        monkeypatch.setattr(os, "rename", saving_first(review, name, os.rename))


@pytest.mark.parametrize("name", ["changed", "removed", "new"])
def test_a_file_that_is_saved_while_it_is_applied_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Control: the other files are applied."""
    review = worked_on(tmp_path)
    meet(monkeypatch, review, name)
    outcome = review.apply()
    monkeypatch.undo()
    assert outcome.left == (str(review.tree / name),)
    assert review.files() == APPLIED | {name: SAVED}
    assert review.changes()[name].conflict
    review.undo()
    assert review.files() == FILES | {name: SAVED}


@pytest.mark.parametrize("name", ["changed", "removed", "new"])
def test_a_file_that_is_saved_while_it_is_undone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    review = worked_on(tmp_path)
    review.apply()
    assert review.files() == APPLIED
    meet(monkeypatch, review, name)
    if name == "new":
        monkeypatch.setattr(os, "rename", saving_first(review, name, os.rename))
    outcome = review.undo()
    monkeypatch.undo()
    assert outcome.left == (str(review.tree / name),)
    expected = FILES | {name: SAVED}
    assert review.files() == expected


def test_a_file_that_the_person_saves_again_and_again_is_their_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = worked_on(tmp_path)
    turns: list[str] = []

    def between(where: int, beside: str, own: str) -> None:
        if own == "changed" and len(turns) < 2:
            turns.append(own)
            review.tree.joinpath("draft").write_text(f"{len(turns)} times\n")
            review.tree.joinpath("draft").rename(review.tree / own)
        exchange_names(where, beside, own)

    monkeypatch.setattr(exact_replacement, "exchange_names", between)
    review.apply()
    assert review.files() == APPLIED | {"changed": "2 times\n"}


@pytest.mark.parametrize("undo", [False, True])
def test_a_process_that_is_killed_over_a_saved_file_has_it_put_back_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, undo: bool
) -> None:
    """The exchange has taken the person's newest version away, and the process ends."""
    review = worked_on(tmp_path)
    if undo:
        review.apply()
    child = os.fork()
    if child == 0:

        def killed_after(where: int, beside: str, own: str) -> None:
            save(review, "changed")
            exchange_names(where, beside, own)
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            monkeypatch.setattr(exact_replacement, "exchange_names", killed_after)
            review.undo() if undo else review.apply("changed")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert review.files()["changed"] != SAVED
    review.begin_again()
    assert review.files()["changed"] == SAVED
    assert not [path for path in review.tree.iterdir() if path.name.startswith(".keyhole")]


def test_without_such_renames_a_file_is_replaced_if_it_is_still_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems."""

    def cannot(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    for call in ("exchange_names", "rename_new"):
        monkeypatch.setattr(exact_replacement, call, cannot)
    review = worked_on(tmp_path)
    plan = review.plan()
    save(review, "changed")
    save(review, "new")
    with review.store.holding("apply"):
        outcome = review.store.apply(plan)
    assert {os.path.basename(path) for path in outcome.left} == {"changed", "new"}
    assert review.files() == APPLIED | {"changed": SAVED, "new": SAVED}
    review.undo()
    assert review.files() == FILES | {"changed": SAVED, "new": SAVED}
