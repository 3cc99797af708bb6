"""What a run leaves behind that the host may execute (I11)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.files import digests
from keyhole.sandbox.files.comparison import (
    Snapshot,
    compare_snapshots,
    finding_lines,
    take_snapshot,
)
from keyhole.sandbox.files.mount_plan import ComparisonScope
from keyhole.sandbox.files.tree_walk import WalkBudget
from keyhole.sandbox.files.triggers import REPOSITORY

if TYPE_CHECKING:
    from tests.rigs.sandbox.worlds import World


def looked(world: World, budget: WalkBudget | None = None) -> Snapshot:
    return take_snapshot(ComparisonScope((str(world.project),)), budget)


def left(world: World, before: Snapshot) -> list[str]:
    found = finding_lines(compare_snapshots(before, looked(world)))
    return [line.partition(" (")[0].replace(f"{world.project}/", "") for line in found]


@pytest.mark.parametrize(
    "name",
    [".envrc", ".vscode/tasks.json", ".idea/runConfigurations/x.xml", ".claude/settings.json",
     ".mcp.json", ".husky/pre-commit", ".pre-commit-config.yaml", "sub/dir/.envrc", "keyhole.toml"],
)  # fmt: skip
def test_a_setting_that_appears_or_changes_is_reported(world: World, name: str) -> None:
    world.write("README.md")
    before = looked(world)
    assert left(world, before) == []
    world.write(name)
    assert left(world, before) == [f"new: {name}"]
    before = looked(world)
    assert left(world, before) == []
    world.write(name, "other\n")
    assert left(world, before) == [f"changed: {name}"]


@pytest.mark.parametrize("name", ["Makefile", "src/main.py", "node_modules/x/.vscode/tasks.json"])
def test_an_ordinary_file_is_not_reported(world: World, name: str) -> None:
    before = looked(world)
    world.write(name)
    assert left(world, before) == []


@pytest.mark.parametrize("name", ["nested", "node_modules/x"])
def test_a_new_repository_is_one_finding(world: World, name: str) -> None:
    before = looked(world)
    world.git("init", "-q", name)
    world.write(f"{name}/.git/hooks/pre-commit")
    assert left(world, before) == [f"new: {name}/.git"]


def test_a_new_bare_repository_is_found_by_its_looks(world: World) -> None:
    before = looked(world)
    world.write("innocent/HEAD", "ref: refs/heads/main")
    world.write("innocent/config", "[core]\n\tfsmonitor = x")
    for name in ("objects", "refs"):
        (world.project / "innocent" / name).mkdir()
    assert left(world, before) == ["new: innocent"]


@pytest.mark.parametrize(
    "name", ["config", "hooks/pre-commit", "commondir", "config.worktree", "modules/x/config"]
)
def test_what_git_acts_on_is_compared(world: World, name: str) -> None:
    world.git("init", "-q")
    module = world.project / ".git/modules/x"
    for directory in ("objects", "refs"):
        (module / directory).mkdir(parents=True)
    (module / "HEAD").write_text("ref: refs/heads/main")
    before = looked(world)
    world.write("file")
    world.git("add", "file")
    world.git("commit", "-q", "-m", "x")
    assert left(world, before) == []
    world.write(f".git/{name}", "[core]\n\tfsmonitor = x\n")
    assert [line.partition(": ")[2] for line in left(world, before)] == [f".git/{name}"]


@pytest.mark.parametrize("name", ["logs", "logs/vendor", "refs/a", "lfs", "objects"])
@pytest.mark.parametrize("kind", ["modules", "worktrees"])
def test_a_submodule_or_worktree_is_compared_whatever_it_is_called(
    world: World, kind: str, name: str
) -> None:
    """Attack: git keeps data in directories of these names. Control: the data of `.git` itself."""
    world.git("init", "-q", ".")
    module = f".git/{kind}/{name}"
    for each in ("HEAD", "config", "commondir", "objects/x", "refs/x"):
        world.write(f"{module}/{each}")
    before = looked(world)
    world.write(".git/logs/config")
    assert left(world, before) == []
    world.write(f"{module}/hooks/post-checkout")
    world.write(f"{module}/config", "[core]\n\tfsmonitor = evil\n")
    assert any(module in line for line in left(world, before))


def test_a_repository_without_a_head_is_compared_all_the_same(world: World) -> None:
    world.git("init", "-q")
    before = looked(world)
    (world.project / ".git/HEAD").unlink()
    world.write(".git/hooks/pre-commit")
    assert left(world, before) == ["new: .git/hooks/pre-commit"]


def test_a_rebase_left_in_progress_is_reported(world: World) -> None:
    world.git("init", "-q")
    before = looked(world)
    world.write(".git/rebase-merge/git-rebase-todo", "exec evil")
    assert left(world, before) == ["new: .git/rebase-merge/git-rebase-todo"]


def test_a_pointer_to_another_repository_is_reported(world: World) -> None:
    before = looked(world)
    world.write("sub/.git", "gitdir: ../evil")
    assert left(world, before) == ["new: sub/.git"]


def test_a_setting_that_becomes_a_link_is_reported(world: World) -> None:
    world.write(".envrc")
    before = looked(world)
    (world.project / ".envrc").unlink()
    (world.project / ".envrc").symlink_to("evil")
    assert left(world, before) == ["changed: .envrc"]


def test_a_python_environment_is_one_finding(world: World) -> None:
    world.write(".venv/pyvenv.cfg")
    world.write(".venv/bin/activate")
    before = looked(world)
    assert left(world, before) == []
    world.write(".venv/bin/activate", "evil")
    assert left(world, before) == ["changed: .venv"]
    world.write("other/pyvenv.cfg")
    world.write("other/bin/python")
    assert left(world, before) == ["changed: .venv", "new: other"]


def test_hooks_elsewhere_are_watched_when_the_plan_says_so(world: World) -> None:
    world.write("tools/hooks/README")
    scope = ComparisonScope(
        (str(world.project),), ((str(world.project / "tools/hooks"), REPOSITORY),)
    )
    before = take_snapshot(scope)
    world.write("tools/hooks/pre-commit")
    (line,) = finding_lines(compare_snapshots(before, take_snapshot(scope)))
    assert line.startswith(f"new: {world.project}/tools/hooks/pre-commit")


def test_making_a_file_executable_is_a_change(world: World) -> None:
    hook = world.write(".husky/pre-commit")
    before = looked(world)
    hook.chmod(0o755)
    assert left(world, before) == ["changed: .husky/pre-commit"]


def test_a_large_file_cannot_be_changed_and_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests.Digests.__init__, "__defaults__", (4, 1 << 20, 5.0))
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -1.0)
    path = world.write(".envrc", "aaaaaaaa")
    found, before = path.stat(), looked(world)
    assert left(world, before) == []
    path.write_text("bbbbbbbb")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert left(world, before) == ["changed: .envrc"]


def test_a_pipe_left_in_the_way_is_not_waited_for(world: World) -> None:
    before = looked(world)
    world.write(".husky/x")
    os.mkfifo(world.project / ".husky/pre-commit")
    assert left(world, before) == ["new: .husky/x"]


def test_a_flood_of_findings_is_counted(world: World) -> None:
    before = looked(world)
    for index in range(60):
        world.write(f"{index}/.envrc")
    found = left(world, before)
    assert len(found) == 41
    assert found[-1] == "and 20 more"


def test_a_tree_too_large_to_compare_is_said(world: World) -> None:
    before = looked(world)
    for index in range(20):
        world.write(f"f{index}")
    (line,) = finding_lines(compare_snapshots(before, looked(world, WalkBudget(entries=5))))
    assert line == f"not compared: {world.project}"


def test_a_hostile_name_cannot_write_a_line_of_its_own(world: World) -> None:
    before = looked(world)
    world.write("x\nall is well/.envrc")
    (line,) = finding_lines(compare_snapshots(before, looked(world)))
    assert "\n" not in line


@pytest.mark.alone
def test_ten_thousand_files_are_looked_at_in_a_fraction_of_a_second(world: World) -> None:
    for index in range(100):
        directory = world.project / f"src/{index % 10}/{index}"
        directory.mkdir(parents=True)
        for number in range(100):
            (directory / f"module_{number}.py").touch()
    started = time.monotonic()
    looked(world)
    world.plan()
    assert time.monotonic() - started < 2  # a busy machine; some 0.1 s on an idle one
