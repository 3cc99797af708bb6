"""Environments, package programs, agents' directories and unfinished git operations (I11)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.files.comparison import (
    MAX_ALONE,
    Snapshot,
    compare_snapshots,
    finding_lines,
    take_snapshot,
)
from keyhole.sandbox.files.mount_plan import ComparisonScope
from tests.rigs.sandbox.worlds import a_sandbox, binds

if TYPE_CHECKING:
    from tests.rigs.sandbox.worlds import World

PACKAGES = ".venv/lib/python3.11/site-packages"


def looked(world: World) -> Snapshot:
    return take_snapshot(ComparisonScope((str(world.project),)))


def left(world: World, before: Snapshot) -> list[str]:
    found = finding_lines(compare_snapshots(before, looked(world)))
    return [line.replace(f"{world.project}/", "") for line in found]


def short(world: World, before: Snapshot) -> list[str]:
    return [line.partition(" (")[0] for line in left(world, before)]


def an_environment(world: World) -> None:
    world.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    world.write(".venv/bin/activate")
    world.write(f"{PACKAGES}/requests/__init__.py")
    world.write(f"{PACKAGES}/_virtualenv.pth")


def protected(world: World) -> set[str]:
    own = f"{world.project}/"
    found = binds(world.plan(), writable=False)
    return {path.removeprefix(own) for path in found if path.startswith(own)}


# ── Python environments ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    [".venv/pyvenv.cfg", ".venv/bin/activate", ".venv/bin/evil", f"{PACKAGES}/evil.pth",
     f"{PACKAGES}/_virtualenv.pth", f"{PACKAGES}/sitecustomize.py", f"{PACKAGES}/usercustomize.py",
     f"{PACKAGES}/sitecustomize.cpython-311-x86_64-linux-gnu.so",
     f"{PACKAGES}/sitecustomize/__init__.py",
     f"{PACKAGES}/__pycache__/sitecustomize.cpython-311.pyc"],
)  # fmt: skip
def test_what_python_or_a_shell_runs_of_an_environment_is_reported(world: World, name: str) -> None:
    """I11. Control: a package that is installed there is code of the project."""
    an_environment(world)
    before = looked(world)
    world.write(f"{PACKAGES}/requests/__init__.py", "changed")
    world.write(f"{PACKAGES}/rich/__init__.py")
    assert left(world, before) == []
    world.write(name, "evil")
    assert short(world, before) == ["changed: .venv"]
    assert Path(name).name in left(world, before)[0]


def test_an_environment_is_one_wherever_it_lies_and_whatever_made_it(world: World) -> None:
    before = looked(world)
    world.write("deep/tools/py/pyvenv.cfg")
    world.write("deep/tools/py/bin/python")
    world.write("conda/conda-meta/history")
    world.write("conda/bin/python")
    world.write("loose/lib/site-packages/evil.pth")
    assert short(world, before) == [
        "new: conda", "new: deep/tools/py", "new: loose/lib/site-packages"
    ]  # fmt: skip


def test_bin_of_an_environment_may_be_a_link(world: World) -> None:
    an_environment(world)
    before = looked(world)
    world.write("evil/activate")
    (world.project / ".venv/bin/activate").unlink()
    (world.project / ".venv/bin").rmdir()
    (world.project / ".venv/bin").symlink_to("../evil")
    assert short(world, before) == ["changed: .venv"]


def test_packages_can_be_installed_and_what_that_leaves_is_one_line(world: World) -> None:
    """Daily work: a real environment, and an installation that adds programs and a `.pth`."""
    made = [sys.executable, "-m", "venv", "--without-pip", str(world.project / ".venv")]
    subprocess.run(made, check=True)
    assert protected(world) == set()
    before = looked(world)
    assert left(world, before) == []
    for index in range(12):
        world.write(f".venv/bin/tool{index}")
    (found,) = left(world, before)
    assert found.startswith("changed: .venv (12 new: bin/tool0, bin/tool1, bin/tool10 and 9 more; ")


# ── programs of packages ──────────────────────────────────────────────────────────────────────────


def test_programs_of_packages_are_one_line_for_each_project(world: World) -> None:
    """I11, and an `npm install` is not four hundred lines."""
    before = looked(world)
    for index in range(60):
        script = world.write(f"node_modules/p{index}/cli.js")
        program = world.project / f"node_modules/.bin/p{index}"
        program.parent.mkdir(exist_ok=True)
        program.symlink_to(f"../p{index}/cli.js")
        world.write(f"node_modules/p{index}/node_modules/.bin/inner")
    assert short(world, before) == ["new: node_modules/.bin"]
    assert "120 new" in left(world, before)[0]
    before = looked(world)
    world.write("node_modules/p1/README")
    assert left(world, before) == []
    script.write_text("evil")
    assert short(world, before) == ["changed: node_modules/.bin"]


def test_a_directory_on_the_persons_path_is_watched(world: World) -> None:
    """I11: direnv and its kind put directories of the project there."""
    world.write("tools/bin/x")
    search = (f"{world.project}/tools/bin", "/usr/bin", str(world.project), "relative")
    plan = world.plan(search=search)
    assert [path for path, _ in plan.watched] == [f"{world.project}/tools/bin"]
    before = take_snapshot(plan.scope)
    world.write("tools/other")
    world.write("tools/bin/ls")
    (found,) = finding_lines(compare_snapshots(before, take_snapshot(plan.scope)))
    assert found == f"changed: {world.project}/tools/bin (ls; it is on your PATH)"


def test_a_link_on_the_persons_path_is_watched_too(world: World) -> None:
    world.write("tools/x")
    world.write("evil/x")
    (world.project / "bin").symlink_to("tools")
    plan = world.plan(search=(f"{world.project}/bin",))
    before = take_snapshot(plan.scope)
    (world.project / "bin").unlink()
    (world.project / "bin").symlink_to("evil")
    found = finding_lines(compare_snapshots(before, take_snapshot(plan.scope)))
    assert any(line.startswith(f"changed: {world.project}/bin (") for line in found)


# ── directories of agents and editors ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", [".claude", ".opencode", ".kiro", ".codex", ".gemini", ".qwen"])
def test_an_agents_directory_counts_whole_and_what_exists_in_it_is_read_only(
    world: World, place: str
) -> None:
    """I11. Control: an agent that works inside can still make new files, and is told of."""
    for name in ("settings.json", "anything", "hooks/x", "agents/deep/er/x"):
        world.write(f"{place}/{name}")
    read_only = {f"{place}/{name}" for name in ("settings.json", "anything", "hooks")}
    assert protected(world) == read_only
    assert str(world.project / place) in binds(world.plan(), writable=True)
    before = looked(world)
    world.write(f"{place}/settings.local.json")
    world.write(f"{place}/agents/deep/er/x", "changed")
    assert short(world, before) == [
        f"changed: {place}/agents/deep/er/x", f"new: {place}/settings.local.json"
    ]  # fmt: skip


@pytest.mark.parametrize("place", [".cursor", ".windsurf", ".continue", ".vscode", ".idea", ".zed",
                                   ".devcontainer", ".fleet", ".helix"])  # fmt: skip
def test_an_editors_directory_is_read_only_whole(world: World, place: str) -> None:
    world.write(f"{place}/anything/at/all")
    assert protected(world) == {place}
    before = looked(world)
    world.write(f"{place}/anything/at/all", "changed")
    assert short(world, before) == [f"changed: {place}/anything/at/all"]


def test_what_an_agent_works_in_stays_writable_and_is_compared(world: World) -> None:
    world.write(".kiro/specs/feature/design.md")
    world.write(".claude/worktrees/x/src/main.py")
    world.write(".claude/worktrees/x/.envrc", "use nix")
    assert protected(world) == {".claude/worktrees/x/.envrc"}
    before = looked(world)
    world.write(".kiro/specs/feature/design.md", "changed")
    world.write(".claude/worktrees/x/src/main.py", "changed")
    assert short(world, before) == ["changed: .kiro/specs/feature/design.md"]


def test_unsafe_paths_lifts_an_agents_directory_whole_or_one_entry(world: World) -> None:
    for name in ("settings.json", "other.json"):
        world.write(f".claude/{name}")
    own = str(world.project / ".claude")
    for listed, left_over in ((".claude", set()), (".claude/other.json", {f"{own}/settings.json"})):
        plan = world.plan(a_sandbox(unsafe_paths=(listed,)))
        assert {path for path in binds(plan, writable=False) if path.startswith(own)} == left_over
        assert any("unsafe_paths" in line for line in plan.notices)


def test_many_changes_in_one_directory_are_one_line(world: World) -> None:
    before = looked(world)
    for index in range(MAX_ALONE):
        world.write(f".claude/commands/{index}.md")
    assert len(left(world, before)) == MAX_ALONE
    world.write(".claude/commands/more.md")
    (found,) = left(world, before)
    assert found.startswith(f"new: .claude/commands ({MAX_ALONE + 1} new: 0.md, ")


def test_what_an_envrc_evaluates_is_reported_beside_one(world: World) -> None:
    """I11. Control: without an `.envrc` nothing evaluates it by itself."""
    world.write("a/.envrc", "use flake")
    before = looked(world)
    world.write("a/flake.nix")
    world.write("b/flake.nix")
    assert short(world, before) == ["new: a/flake.nix"]
    assert "a/flake.nix" not in protected(world)


# ── git ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    ["rebase-merge/git-rebase-todo", "rebase-merge/strategy", "rebase-apply/patch",
     "rebase-apply/gpg_sign_opt", "sequencer/todo", "sequencer/opts"],
)  # fmt: skip
@pytest.mark.parametrize("place", [".git", ".git/modules/sub", ".git/worktrees/w"])
def test_an_operation_left_unfinished_is_reported(world: World, name: str, place: str) -> None:
    """I11: the host's `git rebase --continue` runs what it says; in submodules and worktrees too.
    Inside it can be written, since agents rebase."""
    world.git("init", "-q")
    for each in ("modules/sub", "worktrees/w"):
        world.write(f".git/{each}/HEAD", "ref: refs/heads/main")
        world.write(f".git/{each}/commondir", "../..")
    before = looked(world)
    world.write(f"{place}/{name}", "exec evil")
    assert short(world, before) == [f"new: {place}/{name}"]
    assert not any(place.endswith(name.partition("/")[0]) for place in protected(world))


def test_a_real_rebase_that_stopped_is_one_line(world: World) -> None:
    world.git("init", "-q")
    for text in ("one", "two"):
        world.write("file", text)
        world.git("add", "file")
        world.git("commit", "-q", "-m", text)
    before = looked(world)
    world.git("-c", "sequence.editor=sed -i 1ibreak", "rebase", "-q", "-i", "HEAD~1")
    assert short(world, before) == ["new: .git/rebase-merge"]
    world.git("rebase", "--abort")
    assert left(world, before) == []


def test_a_linked_worktree_and_its_repository_are_compared_alike(world: World) -> None:
    main = world.home / "main"
    main.mkdir()
    world.git("init", "-q", cwd=main)
    world.git("commit", "-q", "--allow-empty", "-m", "x", cwd=main)
    world.project.rmdir()
    world.git("worktree", "add", "-q", str(world.project), cwd=main)
    plan = world.plan(a_sandbox())
    before = take_snapshot(plan.scope)
    private = main / ".git/worktrees/work"
    (private / "rebase-merge").mkdir()
    (private / "rebase-merge/git-rebase-todo").write_text("exec evil")
    (main / ".git/sequencer").mkdir()
    (main / ".git/sequencer/opts").write_text("strategy = evil")
    found = compare_snapshots(before, take_snapshot(plan.scope)).findings
    assert {finding.path for finding in found} == {
        str(private / "rebase-merge/git-rebase-todo"), str(main / ".git/sequencer/opts")
    }  # fmt: skip
