"""What an apply chooses, what it holds back, and in which order it writes."""

from __future__ import annotations

from keyhole.changes.apply_plan import MAX_UNNAMED, Selection, plan_apply
from keyhole.changes.entry import ChangeKind, EntryKind, ExecutedBy, FileChange

FILE, LINK, DIRECTORY = EntryKind.FILE, EntryKind.LINK, EntryKind.DIRECTORY
NEW, CHANGED, REMOVED = ChangeKind.NEW, ChangeKind.CHANGED, ChangeKind.REMOVED


def change(
    name: str,
    what: ChangeKind = NEW,
    kind: EntryKind = FILE,
    was: EntryKind | None = None,
    *,
    size: int = 1,
    mode: int = 0o644,
    target: str = "",
    conflict: bool = False,
    unreadable: bool = False,
    executed: ExecutedBy | None = None,
) -> FileChange:
    before = was or (EntryKind.ABSENT if what is NEW else kind)
    stamp = "" if what is NEW else "before"
    return FileChange(
        "/p", name, what, kind, before, size, mode, target, stamp,
        conflict=conflict, unreadable=unreadable, executed=executed,
    )  # fmt: skip


def steps(*changes: FileChange, named: tuple[str, ...] = (), replaces: bool = False) -> list[str]:
    plan = plan_apply(changes, Selection(named, replaces))
    return [f"{step.action} {step.name}" for step in plan.steps]


def held(*changes: FileChange, named: tuple[str, ...] = ()) -> dict[str, str]:
    plan = plan_apply(changes, Selection(named))
    return {each.change.name: str(each.reason) for each in plan.held}


EXECUTED = change(".envrc", executed=ExecutedBy("a shell runs it"))
PROGRAM = change("m/.bin/x", executed=ExecutedBy("programs", "/p/m/.bin"))
OUT = change("out", kind=LINK, target="/etc")
LARGE = change("large", size=MAX_UNNAMED + 1)
CONFLICT = change("c", CHANGED, conflict=True)
PIPE = change("pipe", kind=EntryKind.SPECIAL)
CLOSED = change("closed", unreadable=True)


def test_nothing_dangerous_is_applied_without_its_own_name() -> None:
    """I11, I3. Control: plain files are, and so is each of them by its name."""
    every = (change("a"), EXECUTED, PROGRAM, OUT, LARGE, CONFLICT, PIPE, CLOSED)
    assert steps(*every) == ["write a"]
    assert held(*every) == {
        ".envrc": "host-may-execute",
        "m/.bin/x": "host-may-execute",
        "out": "leads-out",
        "large": "large",
        "c": "conflict",
        "pipe": "special",
        "closed": "unreadable",
    }
    for each in (EXECUTED, OUT, LARGE):
        assert len(steps(each, named=(each.path,))) == 1


def test_a_directory_does_not_name_what_the_host_executes_in_it_unless_it_is_its_group() -> None:
    assert held(PROGRAM, named=("/p/m",)) == {"m/.bin/x": "host-may-execute"}
    assert steps(PROGRAM, named=("/p/m/.bin",)) == ["write m/.bin/x"]


def test_special_and_unreadable_files_are_never_applied() -> None:
    for each in (PIPE, CLOSED):
        assert steps(each, named=(each.path,), replaces=True) == []
    assert steps(change("pipe", REMOVED, EntryKind.SPECIAL)) == ["unlink pipe"]


def test_a_conflict_is_replaced_only_by_name_and_if_the_person_says_so() -> None:
    assert held(CONFLICT, named=("/p/c",)) == {"c": "conflict"}
    assert steps(CONFLICT, replaces=True) == []
    assert steps(CONFLICT, named=("/p/c",), replaces=True) == ["write c"]
    marked = change("c", CHANGED, conflict=True, executed=ExecutedBy("x"))
    assert steps(marked, named=("/p",), replaces=True) == []
    assert steps(marked, named=("/p/c",), replaces=True) == ["write c"]


def test_removed_files_go_first_directories_from_below_and_writes_come_last() -> None:
    found = steps(
        change("d", REMOVED, DIRECTORY),
        change("d/e", REMOVED, DIRECTORY),
        change("d/e/f", REMOVED),
        change("n", kind=DIRECTORY),
        change("n/m", kind=DIRECTORY),
        change("n/m/x"),
        change("l", kind=LINK, target="n"),
    )
    assert found == [
        "unlink d/e/f", "rmdir d/e", "rmdir d", "mkdir n", "mkdir n/m", "link l", "write n/m/x",
    ]  # fmt: skip


def test_a_file_becomes_a_directory_and_the_other_way_round() -> None:
    found = steps(change("f", CHANGED, DIRECTORY, FILE), change("f/x"))
    assert found == ["unlink f", "mkdir f", "write f/x"]
    found = steps(change("d", CHANGED, FILE, DIRECTORY), change("d/x", REMOVED))
    assert found == ["unlink d/x", "rmdir d", "write d"]


def test_a_file_does_not_replace_a_directory_that_keeps_an_entry() -> None:
    pair = (change("d", CHANGED, FILE, DIRECTORY), change("d/x", REMOVED, conflict=True))
    assert steps(*pair) == []
    assert held(*pair) == {"d": "blocked", "d/x": "conflict"}


def test_a_directory_is_not_emptied_while_what_replaces_it_is_held_back() -> None:
    """Control: by the link's own name all of it is done; and a removal by its own."""
    inside = (change("d/e", REMOVED, DIRECTORY), change("d/e/y", REMOVED), change("d/x", REMOVED))
    out = (change("d", CHANGED, LINK, DIRECTORY, target="/etc"), *inside)
    assert steps(*out) == []
    assert held(*out) == {
        "d": "leads-out", "d/e": "blocked", "d/e/y": "blocked", "d/x": "blocked",
    }  # fmt: skip
    done = ["unlink d/e/y", "unlink d/x", "rmdir d/e", "rmdir d", "link d"]
    assert steps(*out, named=("/p/d",)) == done
    assert steps(*out, named=("/p/d/x",)) == ["unlink d/x"]
    kept = (change("d", CHANGED, FILE, DIRECTORY), change("d/z", REMOVED, conflict=True), *inside)
    assert steps(*kept) == []


def test_refs_and_index_are_applied_together_or_not_at_all() -> None:
    """Attack by accident: a commit with the person's index is undone by their next one. Control:
    objects and other files are applied, and so is another repository."""
    index = change(".git/index", CHANGED, conflict=True)
    others = (
        change(".git/objects/00/x"), change(".git/refs/heads/main", CHANGED), change("file"),
        change(".git/logs/HEAD", CHANGED), change("sub/.git/refs/heads/main", CHANGED),
    )  # fmt: skip
    assert held(index, *others) == {
        ".git/index": "conflict", ".git/refs/heads/main": "repository",
        ".git/logs/HEAD": "repository",
    }  # fmt: skip
    rest = ["write .git/objects/00/x", "write file", "write sub/.git/refs/heads/main"]
    assert steps(index, *others) == rest
    taken = steps(index, *others, named=("/p/.git",), replaces=True)
    assert set(taken) == {
        "write .git/objects/00/x", "write .git/index", "write .git/logs/HEAD",
        "write .git/refs/heads/main",
    }  # fmt: skip
    one = ("/p/.git/index", "/p/.git/refs/heads/main")
    assert "write .git/refs/heads/main" in steps(index, *others, named=one)


def test_an_entry_brings_its_new_directories_along_but_no_other_entry() -> None:
    every = (change("n", kind=DIRECTORY), change("n/a"), change("n/b"))
    assert steps(*every, named=("/p/n/a",)) == ["mkdir n", "write n/a"]


def test_an_entry_of_a_directory_that_is_not_made_is_held_back() -> None:
    every = (change("f", CHANGED, DIRECTORY, LINK), change("f/x"))
    assert steps(*every, named=("/p/f/x",)) == []
    assert held(*every, named=("/p/f/x",)) == {"f/x": "blocked"}


def test_no_directory_is_made_for_entries_that_are_all_held_back() -> None:
    """Control: an empty directory that the sandbox made is, with those that it lies in."""
    held_back = change("n/m/.envrc", executed=ExecutedBy("x"))
    directories = (change("n", kind=DIRECTORY), change("n/m", kind=DIRECTORY))
    assert steps(*directories, held_back) == []
    assert steps(*directories) == ["mkdir n", "mkdir n/m"]
    empty = change("n/e", kind=DIRECTORY)
    assert steps(*directories, held_back, empty) == ["mkdir n", "mkdir n/e"]


def test_git_has_its_objects_before_the_refs_that_name_them() -> None:
    names = [
        ".git/HEAD",
        ".git/index",
        ".git/objects/aa/b",
        ".git/refs/heads/x",
        ".git/info/x",
        "a",
    ]
    assert steps(*map(change, names)) == [
        "write .git/objects/aa/b",
        "write .git/info/x",
        "write a",
        "write .git/HEAD",
        "write .git/index",
        "write .git/refs/heads/x",
    ]


def test_setuid_is_never_in_a_step() -> None:
    plan = plan_apply([change("a", mode=0o106755)], Selection())
    assert plan.steps[0].mode == 0o755
