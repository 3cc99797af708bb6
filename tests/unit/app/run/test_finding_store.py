"""What runs left behind is kept until it is dismissed, gone, or as it was (I11)."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from keyhole.app.run import finding_store
from keyhole.app.run.finding_store import FindingStore, ProjectFindings
from keyhole.app.run.run_findings import RunFindings, refresh_findings, summarise_open_findings
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.sandbox.files.comparison import (
    Comparison,
    Finding,
    Snapshot,
    compare_snapshots,
    take_snapshot,
)
from keyhole.sandbox.files.mount_plan import ComparisonScope, MountPlan
from keyhole.sandbox.files.triggers import SEARCHED
from keyhole.sandbox.first_process import note_process

if TYPE_CHECKING:
    from pathlib import Path


class Ready(Struct, frozen=True):
    """As much of a prepared run as a comparison needs."""

    plan: MountPlan
    before: Snapshot

    def changes(self) -> tuple[Snapshot, Comparison]:
        after = take_snapshot(self.plan.scope)
        return after, compare_snapshots(self.before, after)


class World:
    """A project, and the store of its findings."""

    def __init__(self, top: Path) -> None:
        self.project = top / "project"
        self.project.mkdir()
        self.directory = top / "state/findings"
        self.store = FindingStore(self.directory)
        self.accepted = AcceptanceStore(top / "state/trust")
        self.watched: tuple[tuple[str, str], ...] = ()
        self._runs = 0

    def begin(self) -> RunFindings:
        self._runs += 1
        plan = MountPlan((), (str(self.project),), self.watched)
        ready = Ready(plan, take_snapshot(plan.scope))
        session = f"{self._runs:012x}"
        return RunFindings(self.directory, self.project, ready, session, self.accepted)  # type: ignore[arg-type]

    def run(self, **files: str | None) -> list[str]:
        """A run that writes these files, or removes them: what it tells."""
        run_findings = self.begin()
        run_findings.begin()
        self.write(**files)
        run_findings.look()
        run_findings.done()
        return [
            line.replace(f"{self.project}/", "").partition(" (")[0] for line in run_findings.lines
        ]

    def write(self, **files: str | None) -> None:
        for name, text in files.items():
            path = self.project / f".{name}"
            if text is None:
                path.unlink()
            else:
                path.write_text(text)

    def open(self) -> list[str]:
        scope = self.store.read(self.project).scope
        book = refresh_findings(self.store, self.project, take_snapshot(scope))
        return [os.path.basename(each.finding.path) for each in book.open]

    def dismiss(self) -> None:
        with self.store.changing(self.project) as held:
            held[0] = held[0].without([each.id for each in held[0].open])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_finding_is_repeated_until_it_is_dismissed(world: World) -> None:
    """I11. Control: where nothing was left, nothing is said."""
    assert world.begin().begin() == ""
    assert world.run(envrc="evil") == ["new: .envrc"]
    for _ in range(2):
        assert "1 finding is open" in world.begin().begin()
        assert world.run() == []
        assert world.open() == [".envrc"]
    world.dismiss()
    assert world.begin().begin() == ""
    assert world.open() == []


def test_a_later_change_of_what_was_dismissed_is_told_again(world: World) -> None:
    world.run(envrc="evil")
    world.dismiss()
    assert world.run(envrc="worse") == ["changed: .envrc"]
    assert world.open() == [".envrc"]
    # What was dismissed is known again when it comes back.
    assert world.run(envrc="evil") == []
    assert world.open() == []


@pytest.mark.parametrize("before", [None, "mine"])
def test_a_finding_goes_away_when_the_file_is_gone_or_as_it_was(
    world: World, before: str | None
) -> None:
    if before is not None:
        world.write(envrc=before)
    world.run(envrc="evil")
    world.run(envrc="worse")
    assert world.open() == [".envrc"]
    world.write(envrc=before)
    assert world.open() == []
    world.run(envrc="evil")
    world.write(envrc=None)
    assert world.open() == []


def test_what_a_person_changes_meanwhile_is_still_a_finding_with_another_id(world: World) -> None:
    """I11: nobody dismisses what they have not seen."""
    world.run(envrc="evil")
    (seen,) = world.store.read(world.project).open
    world.write(envrc="worse")
    assert world.open() == [".envrc"]
    (now,) = world.store.read(world.project).open
    assert now.id != seen.id
    with world.store.changing(world.project) as held:
        held[0] = held[0].without([seen.id])
    assert world.open() == [".envrc"]


def test_what_was_not_looked_at_is_not_taken_for_gone(world: World, tmp_path: Path) -> None:
    """I11: another policy of the same project, another PATH, a tree too large to look through."""
    finding = Finding(f"{world.project}/.envrc", "new", "x", now="1")
    on_path = Finding(f"{world.project}/bin", "changed", SEARCHED, now="1")
    book = ProjectFindings(str(world.project)).with_findings((finding, on_path), "s")
    elsewhere = Snapshot({}, (), ComparisonScope((str(tmp_path / "other"),)))
    unseen = Snapshot({}, (str(world.project),), ComparisonScope((str(world.project),)))
    assert book.renewed(elsewhere) == book
    assert book.renewed(unseen) == book
    looked = Snapshot({}, (), ComparisonScope((str(world.project),)))
    assert [each.finding for each in book.renewed(looked).open] == [on_path]
    watched = ComparisonScope((str(world.project),), ((on_path.path, SEARCHED),))
    assert book.renewed(Snapshot({}, (), watched)).open == ()


def test_a_run_that_was_killed_is_compared_by_whoever_comes_next(world: World) -> None:
    """I11. Control: one that still runs is left alone."""
    killed, running = world.begin(), world.begin()
    assert killed.begin() == running.begin() == ""
    world.write(envrc="evil")
    assert world.open() == []
    killed.close()  # as the kernel does
    assert world.open() == [".envrc"]
    assert len(list(world.directory.glob("*.run"))) == 1
    running.done()
    assert not list(world.directory.glob("*.run"))


def test_a_killed_run_is_compared_when_nothing_of_its_sandbox_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: until then, code inside may still write. Control: after its end, it is compared."""
    monkeypatch.setattr("keyhole.app.run.finding_store.ENDING_SECONDS", 0)
    killed = world.begin()
    killed.begin()
    (record,) = world.directory.glob("*.sandbox")
    with subprocess.Popen(["/bin/sleep", "60"]) as sandbox:
        note_process(str(record), sandbox.pid)
        killed.close()
        assert world.open() == []
        world.write(envrc="evil")
        sandbox.kill()
    assert world.open() == [".envrc"]
    assert not list(world.directory.glob("*.sandbox"))


def test_a_run_that_broke_off_is_compared_again(world: World) -> None:
    """I11: a process inside may have written after the comparison."""
    broken = world.begin()
    broken.begin()
    world.write(envrc="evil")
    broken.look()
    world.write(exrc="evil")
    broken.close()
    assert world.open() == [".envrc", ".exrc"]
    world.dismiss()
    assert world.open() == []


def test_what_a_killed_run_left_is_not_lost_with_whoever_compares_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: many files, so that the person interrupts the next run while it looks at them."""
    killed = world.begin()
    killed.begin()
    world.write(envrc="evil")
    killed.close()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ProjectFindings, "with_findings", interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.open()
    assert world.open() == [".envrc"]
    assert not list(world.directory.glob("*.run"))


def test_a_run_that_ends_while_another_looks_is_not_taken_for_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = world.begin()
    ending.begin()
    ending.look()

    def end_first(_: Path) -> bool:
        """It was opened before the run removed it, and locked after the run closed it."""
        ending.done()
        return False

    monkeypatch.setattr(finding_store, "_is_held", end_first)
    world.begin().begin()
    book = world.store.read(world.project)
    assert summarise_open_findings(book) == ""


def test_a_killed_run_whose_start_cannot_be_read_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: nothing is assumed to be unchanged."""
    monkeypatch.setattr(finding_store, "MAX_SIGHTS", 0)
    world.write(exrc="mine")
    killed = world.begin()
    killed.begin()
    killed.close()
    assert world.open() == []
    book = world.store.read(world.project)
    assert book.uncounted == 1
    assert "1 finding is open" in summarise_open_findings(book)


def test_runs_that_were_killed_are_kept_up_to_a_bound_and_those_that_live_always(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(finding_store, "MAX_PROJECTS", 2)
    living = world.store.begin("living", "0" * 12, Snapshot({}))
    for index in range(5):
        os.close(world.store.begin(f"p{index}", "0" * 12, Snapshot({})))
    assert len(list(world.directory.glob("*.run"))) <= 3
    assert world.store.known("living")
    assert world.store.known("p4")
    world.store.end("living", "0" * 12, living)
    assert not world.store.known("living")


def test_nothing_grows_without_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr(finding_store, "MAX_OPEN", 3)
    monkeypatch.setattr(finding_store, "MAX_DISMISSED", 2)
    monkeypatch.setattr(finding_store, "MAX_PROJECTS", 2)
    many = [Finding(f"/p/{n}", "new", "x", now="1") for n in range(5)]
    book = ProjectFindings("/p").with_findings(many, "s")
    assert (len(book.open), book.uncounted) == (3, 2)
    assert "5 findings are open" in summarise_open_findings(book)
    left = book.without([each.id for each in book.open])
    assert (left.open, left.uncounted, len(left.dismissed)) == ((), 0, 2)
    for name in ("a", "b", "c"):
        with world.store.changing(name) as held:
            held[0] = held[0].with_findings(many, "s")
    assert len(list(world.directory.glob("*.json"))) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"project": "x"}', "\0", '{"open": 1}', "[" * 9999]
)
def test_a_file_that_is_no_book_is_an_empty_one(world: World, text: str) -> None:
    world.run(envrc="evil")
    (path,) = world.directory.glob("*.json")
    path.write_text(text)
    assert world.store.read(world.project) == ProjectFindings(str(world.project))
    assert world.store.every() == []


def test_a_name_that_is_no_text_is_kept(world: World) -> None:
    run_findings = world.begin()
    run_findings.begin()
    place = os.fsencode(world.project) + b"/\xff\n"
    os.mkdir(place)
    with open(place + b"/.envrc", "wb") as file:
        file.write(b"evil")
    run_findings.look()
    (line,) = run_findings.lines
    assert line.isprintable()
    assert world.open() == [".envrc"]


def test_a_store_that_cannot_be_written_is_said_and_the_finding_is_told(world: World) -> None:
    world.directory.parent.mkdir()
    world.directory.write_text("no directory")
    run_findings = world.begin()
    run_findings.begin()
    world.write(envrc="evil")
    run_findings.look()
    told = run_findings.lines
    assert told[0].startswith("new: ")
    assert told[1].startswith("not kept for `keyhole findings`")


def test_files_of_the_store_are_the_persons_alone(world: World) -> None:
    world.run(envrc="evil")
    run_findings = world.begin()
    run_findings.begin()
    assert world.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in world.directory.iterdir()} == {0o600}


def test_a_policy_that_the_person_accepted_meanwhile_is_no_finding(tmp_path: Path) -> None:
    """I11: "always" writes and accepts it. Control: another text is told, accepted as it was."""
    world = World(tmp_path)
    policy = world.project / "keyhole.toml"
    policy.write_text("version = 1\n")
    own, other = world.begin(), world.begin()
    for each in (own, other):
        each.begin()
    policy.write_text("version = 1\n# more\n")
    paths = HostPaths(tmp_path, tmp_path, tmp_path, tmp_path)
    examined = examine_policy(open_policy(policy, paths, FileCatalogue()), tmp_path, "")
    world.accepted.accept(examined)
    assert own.look() == ()
    policy.write_text("version = 1\n# and something that nobody looked at\n")
    assert [each.path for each in other.look()] == [str(policy)]
