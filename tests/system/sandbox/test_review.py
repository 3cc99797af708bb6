"""Changes held for review, from outside: nothing is the person's until they apply it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.run.held_changes import change_store
from keyhole.sandbox.bwrap.helper import FAULT
from keyhole.sandbox.bwrap.overlay_trial import NO_OVERLAY
from keyhole.system.processes import has_ended
from tests.rigs.sandbox.origin import git
from tests.rigs.sandbox.projects import line_of
from tests.rigs.sandbox.screens import Screen
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

POLICY = '[sandbox]\nchanges = "review"\n'
TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"


@pytest.fixture(scope="module")
def one(new_project: Callable[..., Project]) -> Project:
    return new_project(POLICY)


@pytest.fixture
def project(one: Project) -> Project:
    """The same for all tests, with two files and no view."""
    for path in one.directory.iterdir():
        if path.name != "keyhole.toml":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(one.home / "state/keyhole/changes", ignore_errors=True)
    one.write("a", "one\n")
    one.write("d/e", "two\n")
    return one


def listed(project: Project, *words: str) -> dict[str, dict[str, Any]]:
    said = project("changes", "--json", *words)
    assert said.code == 0, said
    top = str(project.directory)
    return {os.path.relpath(each["path"], top): each for each in json.loads(said.out)}


def files(project: Project) -> dict[str, str]:
    return {
        str(path.relative_to(project.directory)): path.read_text()
        for path in sorted(project.directory.rglob("*"))
        if path.is_file() and path.name != "keyhole.toml"
    }


BEFORE = {"a": "one\n", "d/e": "two\n"}


@pytest.mark.by_turns("both")
def test_nothing_changes_until_it_is_applied_and_an_undo_restores_it(project: Project) -> None:
    """Control: with --changes direct the same command changes the files at once."""
    script = "echo more >> a; rm -r d; mkdir n; echo new > n/x"
    after = {"a": "one\nmore\n", "n/x": "new\n"}
    ran = project.shell(f"{script}; cat a n/x; ls")
    assert ran.lines == ["one", "more", "new", "a", "keyhole.toml", "n"], ran
    assert "5 changes held for review" in ran.err
    assert files(project) == BEFORE
    shown = project("changes")
    assert "-two\n" in shown.out
    assert "+more\n" in shown.out
    assert {name: each["change"] for name, each in listed(project).items()} == {
        "a": "changed", "d": "removed", "d/e": "removed", "n": "new", "n/x": "new",
    }  # fmt: skip
    assert list(listed(project, "n")) == ["n", "n/x"]
    assert project("apply").code == 0
    assert files(project) == after
    assert {path.stat().st_uid for path in project.directory.rglob("*")} == {project.person.uid}
    assert listed(project) == {}
    assert project("undo").code == 0
    assert files(project) == BEFORE
    assert len(listed(project)) == 5
    assert project("discard").code == 0
    direct = project.run("sh", "-c", script, flags=("--changes", "direct"))
    assert direct.code == 0, direct
    assert files(project) == after


def test_the_next_run_goes_on_with_what_is_pending_and_a_discard_drops_it(
    project: Project,
) -> None:
    project.shell("echo inside > kept; rm a")
    told = project.shell("cat kept; ls; echo again >> kept")
    assert "the sandbox goes on with 2 changes of earlier runs" in told.err
    assert told.lines == ["inside", "d", "kept", "keyhole.toml"]
    assert project("discard", "a").out == "discarded 1 change\n"
    assert project.shell("cat a kept").lines == ["one", "inside", "again"]
    assert project("discard").code == 0
    assert project.shell("ls").lines == ["a", "d", "keyhole.toml"]
    nothing = project("changes")
    assert (nothing.code, nothing.out) == (0, "no changes are held for review\n")


def test_a_file_that_changed_on_both_sides_is_never_overwritten(project: Project) -> None:
    """Control: another file of the same apply is taken over; and so is this one by its name."""
    project.shell("echo sandbox > a; echo sandbox > d/e")
    project.write("a", "person\n")
    assert listed(project)["a"]["conflict"]
    said = project("apply")
    assert said.code == 1
    assert "not applied: a (you changed it, too" in said.err
    assert files(project) == {"a": "person\n", "d/e": "sandbox\n"}
    assert project("apply", "a").code == 1
    assert project("apply", "--replace").code == 2
    assert project("apply", "--replace", "a").code == 0
    assert files(project)["a"] == "sandbox\n"
    assert project("undo").code == 0
    assert files(project)["a"] == "person\n"


@pytest.mark.by_turns("both")
def test_masks_and_protected_files_stay_covered_in_a_view(project: Project) -> None:
    """I1, I11: a credential is empty inside, and git's config of the host does not change.

    Control: an ordinary file is read and written.
    """
    project.write(".env", f"TOKEN={TOKEN}\n")
    _git(project, "init", "--quiet")
    before = (project.directory / ".git/config").read_text()
    script = "cat .env a; git config core.editor evil; mv .git g || echo refused; rm .env; echo > a"
    ran = project.shell(f"({script}) 2>/dev/null; test -e .env && echo there")
    assert ran.lines == ["one", "refused", "there"], ran
    assert TOKEN not in ran.out
    assert list(listed(project)) == ["a"]
    assert project("apply").code == 0
    assert (project.directory / ".git/config").read_text() == before
    again = project.shell("cat .env; mount | grep -c overlay")
    assert again.lines[0] != "0"
    assert TOKEN not in again.out


def test_commits_made_inside_are_applied_with_their_objects(project: Project) -> None:
    _git(project, "init", "--quiet", "--initial-branch=main")
    _git(project, "add", "a")
    _git(project, "commit", "--quiet", "--message=first")
    who = "git -c user.name=b -c user.email=b@example.org"
    ran = project.shell(f"echo more >> a; {who} commit --quiet --all --message=second && echo done")
    assert ran.lines == ["done"], ran
    assert _git(project, "log", "--format=%s").split() == ["first"]
    # It writes the index anew, which is no conflict.
    status = ("status", "--short", "--untracked-files=no")
    os.utime(project.directory / "a", (0, 0))
    assert _git(project, *status) == ""
    project.write("a", "one\n")
    assert project("apply", ".git").code == 0
    assert _git(project, "log", "--format=%s").split() == ["second", "first"]
    assert project("apply", "--replace", "a").code == 0
    assert _git(project, *status) == ""
    _git(project, "fsck", "--strict")
    assert project("undo").code == 0


def test_a_commit_is_undone_with_its_index_after_a_status(project: Project) -> None:
    _git(project, "init", "--quiet", "--initial-branch=main")
    _git(project, "add", "a")
    _git(project, "commit", "--quiet", "--message=first")
    who = "git -c user.name=b -c user.email=b@example.org"
    project.shell(f"echo more >> a; {who} commit --quiet --all --message=second")
    status = ("status", "--short", "--untracked-files=no")
    index = project.directory / ".git/index"
    assert project("apply").code == 0
    applied = index.read_bytes()
    assert _git(project, *status) == ""
    assert index.read_bytes() != applied
    assert project("undo").code == 0
    assert _git(project, "log", "--format=%s").split() == ["first"]
    assert _git(project, *status) == ""


def _git(project: Project, *words: str) -> str:
    person = project.person
    more = {} if person.uid == os.geteuid() else person.become()
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return git(project.directory, *identity, *words, **more)


def test_what_the_host_would_execute_is_shown_first_and_applied_only_by_its_name(
    project: Project,
) -> None:
    """I11. Without a terminal it needs --yes; on one, a person is asked. Control: a plain file."""
    project.shell("mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x > .envrc; echo x > z")
    rows = project("changes", "--stat").lines
    assert ".envrc" in rows[1]
    assert ".vscode/tasks.json" in rows[2]
    assert "your host may execute it" in rows[1]
    said = project("apply")
    assert said.code == 1
    assert files(project) == BEFORE | {"z": "x\n"}
    assert project("apply", ".vscode").code == 2
    refused = project("apply", ".envrc")
    assert (refused.code, "no terminal to ask on" in refused.err) == (2, True)
    assert ".envrc" not in files(project)
    with Screen(partial(project.start, "apply", ".envrc")) as screen:
        screen.until(r"apply it\? \[y/N\]")
        screen.type("n\n")
        assert screen.wait() == 2
    assert ".envrc" not in files(project)
    with Screen(partial(project.start, "apply", ".envrc")) as screen:
        screen.until(r"apply it\? \[y/N\]")
        screen.type("y\n")
        assert screen.wait() == 0
    assert files(project)[".envrc"] == "x\n"
    assert project("apply", "--yes", ".vscode/tasks.json").code == 0


def test_on_a_terminal_a_discard_of_everything_asks_first(project: Project) -> None:
    """Control: --yes, a PATH and a pipe do not ask."""
    project.shell("echo x > x; echo y > y; echo z > z")
    with Screen(partial(project.start, "discard")) as screen:
        screen.until(r"delete every change that is held \(3\)\? This cannot be undone\. \[y/N\]")
        screen.type("n\n")
        assert screen.wait() == 2
    assert set(listed(project)) == {"x", "y", "z"}
    with Screen(partial(project.start, "discard", "x")) as screen:
        assert screen.wait() == 0
    assert set(listed(project)) == {"y", "z"}
    with Screen(partial(project.start, "discard", "--yes")) as screen:
        assert screen.wait() == 0
    assert listed(project) == {}
    with Screen(partial(project.start, "discard")) as screen:
        assert screen.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_apply_that_is_interrupted_is_taken_back_or_finished_and_said_to_be(
    project: Project, number: signal.Signals
) -> None:
    """Ctrl-C takes it back; after a kill the next command finishes it."""
    project.shell("mkdir n; for i in $(seq 3000); do echo $i > n/$i; done")
    applying = project.start("apply")
    made = project.directory / "n"
    until(lambda: made.is_dir() and len(list(made.iterdir())) > 20)
    applying.send_signal(number)
    _, err = applying.communicate(timeout=PATIENCE)
    if number is signal.SIGINT:
        assert b"nothing was applied: you interrupted it" in err
        assert files(project) == BEFORE
        assert not made.exists()
        assert project("apply").out == "applied 3001 changes; to take them back: keyhole undo\n"
    else:
        assert applying.returncode == -signal.SIGKILL
        said = project("apply")
        assert (said.code, said.out) == (0, "")
        assert "the last apply had been interrupted, and was finished now" in said.err
    assert len(files(project)) == 3002
    assert project("undo").code == 0
    assert files(project) == BEFORE


HOSTILE = r"""
import os
os.symlink("/etc/passwd", "absolute"); os.symlink("../../x", "relative"); os.symlink("a", "inner")
os.mkfifo("pipe"); os.link("a", "second"); os.makedirs("n/m")
open("na\nme\x1b[2J\x1b]0;title\x07", "w").close()
open(b"\xff\xfe", "w").close()
open("script", "w").write("echo evil #\0\n")
with open("sparse", "w") as file: file.truncate(10 << 30)
def attempt(work):
    try: work(); return "done"
    except OSError as error: return "refused"
print(attempt(lambda: os.mknod("d/e2", 0o020000, os.makedev(0, 0))))
for mark in ("opaque", "redirect", "metacopy", "whiteout", "origin"):
    attempt(lambda: os.setxattr("n", f"user.overlay.{mark}", b"y"))
    attempt(lambda: os.setxattr("d", f"user.overlay.{mark}", b"y"))
open("n/m/closed", "w").close(); os.chmod("n/m", 0); os.chmod("n", 0o500)
"""


@pytest.mark.by_turns("both")
def test_hostile_entries_lead_nothing_out_and_fake_no_output(project: Project) -> None:
    """I8, I9, I11: links out, pipes and sparse files are held back, marks of overlayfs cannot be
    forged, names are escaped. Control: plain entries are applied."""
    project.write("sub/x", "x\n")
    ran = project.run("python3", "-c", HOSTILE)
    assert ran.lines == ["refused"], ran
    found = listed(project)
    assert "d/e" not in found
    assert {name for name, each in found.items() if each["held"]} == {
        "absolute", "relative", "pipe", "sparse",
    }  # fmt: skip
    shown = project("changes")
    assert "\x1b" not in shown.out
    assert "na\\x0ame\\x1b[2J" in shown.out
    # Attack: a byte 0 in a script, so that its diff is left out without a word.
    assert "+++ script\n(not shown: it is binary" in shown.out
    assert "+++ sparse\n(not shown: it has more than 1MiB)" in shown.out
    begun = time.monotonic()
    said = project("apply")
    assert said.code == 1
    assert "\x1b" not in said.err
    assert time.monotonic() - begun < PATIENCE
    directory = project.directory
    assert not any((directory / name).is_symlink() for name in ("absolute", "relative"))
    assert (directory / "inner").readlink().name == "a"
    assert (directory / "second").read_text() == "one\n"
    assert (directory / "second").stat().st_nlink == 1
    assert not (directory / "pipe").exists()
    # Attack: directories that are closed to their owner, so that the apply fails half-way.
    assert (directory / "n/m/closed").exists()
    assert not any(name.startswith("n/") for name in listed(project))
    assert project("apply", "absolute", "sparse").code == 0
    assert (directory / "absolute").readlink().name == "passwd"
    assert (directory / "sparse").stat().st_blocks < 100
    assert project("apply", "pipe").code == 1


def test_while_a_sandbox_runs_its_changes_are_shown_and_not_applied(project: Project) -> None:
    """Control: after it was killed, they are applied."""
    script = "echo inside > a; echo ready; exec sleep 60"
    with project.running("sh", "-c", script) as process:
        assert line_of(process.stdout) == "ready"
        shown = project("changes", "--stat")
        assert "still runs" in shown.err
        assert "changed  a" in shown.out
        for words in (("apply",), ("discard",), ("run", "--", "true")):
            refused = project(*words)
            assert refused.code in (2, 125), refused
            assert "in use by session" in refused.err
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert project("apply").code == 0
    assert files(project)["a"] == "inside\n"


@pytest.mark.parametrize("fault", ["", NO_OVERLAY], ids=["overlay", "copy"])
def test_changes_of_a_killed_run_wait_until_nothing_of_its_sandbox_lives(
    project: Project, fault: str
) -> None:
    """I11: the lock is free as soon as the run is gone, while code inside may still write.

    Control: the lock itself is free while the sandbox still lives, in one of ten tries at least.
    """
    script = "for n in $(seq 100); do sleep 60 & done; echo ready; while :; do echo x >> a; done"
    store = change_store(project.home / "state/keyhole/changes", project.directory / "keyhole.toml")

    def kill_and_hold() -> bool:
        """Hold the changes as soon as they are free. Returns whether the sandbox lived by then."""
        with project.running("sh", "-c", script, env={FAULT: fault}) as process:
            assert line_of(process.stdout) == "ready"
            first = os.pidfd_open(first_process(process.pid))
            with open(store.directory / "lock") as lock:
                process.send_signal(signal.SIGKILL)
                fcntl.flock(lock, fcntl.LOCK_EX)
                lived = not has_ended(first, 0)
            with store.holding("a test", collects=False):
                assert has_ended(first, 0)
            os.close(first)
        return lived

    assert any(kill_and_hold() for _ in range(10))
    assert project("apply").code == 0


def first_process(run: int) -> int:
    """The first process of the sandbox of a `keyhole run`."""
    return next(
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit() and _parents(name, 2)[-1] == run and _inner_number(name) == "1"
    )


def _parents(pid: str, count: int) -> list[int]:
    found = [int(pid)]
    for _ in range(count):
        try:
            with open(f"/proc/{found[-1]}/stat") as file:
                found.append(int(file.read().rpartition(")")[2].split()[1]))
        except OSError:
            return [0]
    return found


def _inner_number(pid: str) -> str:
    with open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith("NSpid:")).split()[-1]


@pytest.mark.attack
def test_ten_thousand_files_are_applied_in_five_seconds(project: Project) -> None:
    """By the clock, or where other work slows the machine down, in four times what it takes to make
    as many files and rename them."""
    code = "for n in range(10000): open(f'f{n}', 'w').write(str(n))"
    assert project.run("python3", "-c", code).code == 0
    begun = time.monotonic()
    assert project("apply").code == 0
    taken = time.monotonic() - begun
    assert len(files(project)) == 10_002
    top = project.directory / "plain"
    top.mkdir()
    begun = time.monotonic()
    for number in range(10_000):
        (top / f".{number}").write_text(str(number))
        (top / f".{number}").rename(top / str(number))
    assert taken < max(5, 4 * (time.monotonic() - begun)), taken
