"""What the host executes later is read-only, and cannot be renamed away (I11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files.mount_plan import Bind, MountKind
from keyhole.sandbox.files.triggers import REPOSITORY
from tests.rigs.sandbox.worlds import World, a_sandbox, binds, masks, text


def protected(world: World) -> set[str]:
    found = binds(world.plan(), writable=False)
    return {
        str(Path(p).relative_to(world.project)) for p in found if p.startswith(f"{world.project}/")
    }


@pytest.mark.parametrize(
    "name",
    ["keyhole.toml", ".envrc", ".vscode/", ".idea/", ".claude/settings.json", ".mcp.json",
     ".claude/settings.local.json", ".claude/hooks/", ".cursor/", ".gemini/settings.json",
     ".codex/config.toml", ".husky/", ".pre-commit-config.yaml", ".devcontainer/", "sub/.envrc",
     "my.code-workspace"],
)  # fmt: skip
def test_an_existing_setting_that_runs_commands_is_read_only(world: World, name: str) -> None:
    world.write(f"{name}file" if name.endswith("/") else name)
    assert name.rstrip("/") in protected(world)


@pytest.mark.parametrize(
    "name", ["settings.json", "hooks/x", "Makefile", ".github/workflows/ci.yml"]
)
def test_an_ordinary_file_stays_writable(world: World, name: str) -> None:
    world.write(name)
    assert protected(world) == set()


def test_a_policy_of_another_name_is_read_only_too(world: World) -> None:
    policy = world.write("conf/strict.toml")
    assert str(policy) in binds(world.plan(policy=policy), writable=False)


def test_the_policy_is_read_only_whatever_it_says_itself(world: World) -> None:
    policy = world.write("keyhole.toml")
    lifted = a_sandbox(writable=(".",), unsafe_paths=("keyhole.toml",))
    assert str(policy) in binds(world.plan(lifted), writable=False)
    named = a_sandbox(writable=(".", "keyhole.toml"), unsafe_paths=("keyhole.toml",))
    with pytest.raises(Refused, match="policy itself"):
        world.plan(named)


def test_a_policy_behind_a_link_in_the_project_is_refused(world: World) -> None:
    real = world.write("conf/strict.toml")
    (world.project / "keyhole.toml").symlink_to(real)
    with pytest.raises(Refused, match=f"--policy {real}"):
        world.plan()


def test_every_directory_above_something_protected_is_a_mount(world: World) -> None:
    world.write("a/b/c/.envrc", "use nix")
    world.write("a/other/file")
    own = str(world.project)
    assert binds(world.plan(), writable=True) == {own, f"{own}/a", f"{own}/a/b", f"{own}/a/b/c"}


def test_a_mount_comes_after_the_directory_that_it_lies_in(world: World) -> None:
    world.git("init", "-q")
    world.write("z/.env")
    world.write("a/b/.envrc", "use nix")
    seen: list[str] = []
    for entry in world.plan().entries:
        assert not any(earlier.startswith(f"{entry.target}/") for earlier in seen)
        seen.append(entry.target)


def test_nothing_is_protected_inside_a_masked_directory(world: World) -> None:
    world.write("../.config/gh/.envrc", "use nix")
    plan = world.plan(a_sandbox(readable=("~/.config",)))
    assert not [e for e in plan.entries if e.target.startswith(f"{world.home}/.config/gh/")]


def test_a_writable_tree_on_top_of_something_protected_is_refused_unless_listed(
    world: World,
) -> None:
    world.write(".vscode/cache/f")
    for path in (".vscode", ".vscode/cache"):
        with pytest.raises(Refused, match="executes"):
            world.plan(a_sandbox(writable=(".", path)))
        plan = world.plan(a_sandbox(writable=(".", path), unsafe_paths=(path,)))
        assert str(world.project / path) in binds(plan, writable=True)


def test_a_readable_tree_inside_a_writable_one_needs_no_protection(world: World) -> None:
    world.write("docs/.vscode/tasks.json")
    plan = world.plan(a_sandbox(writable=(".",), readable=("docs",)))
    assert str(world.project / "docs") in binds(plan, writable=False)
    assert str(world.project / "docs/.vscode") not in binds(plan, writable=False)


def test_a_repository_is_a_mount_with_its_hooks_and_config_read_only(world: World) -> None:
    world.git("init", "-q")
    (world.project / ".git/hooks").mkdir(exist_ok=True)
    world.git("remote", "add", "origin", "https://me:hunter2@forge.example/a/b.git")
    git = world.project / ".git"
    plan = world.plan()
    assert Bind(str(git), str(git), MountKind.DIR, writable=True) in plan.entries
    assert Bind(str(git / "hooks"), str(git / "hooks"), MountKind.DIR) in plan.entries
    config = text(plan, git / "config")
    assert 'url = "https://forge.example/a/b.git"' in config
    assert "hunter2" not in config


def test_the_config_of_a_readable_repository_is_sanitised_too(world: World) -> None:
    library = world.home / "lib"
    library.mkdir()
    world.git("init", "-q", cwd=library)
    world.git("remote", "add", "origin", "https://hunter2@forge.example/a/b.git", cwd=library)
    plan = world.plan(a_sandbox(readable=("~/lib",)))
    assert "hunter2" not in text(plan, library / ".git/config")


def test_submodules_bare_repositories_and_nested_ones_are_covered_alike(world: World) -> None:
    world.git("init", "-q")
    source = world.home / "source"
    source.mkdir()
    world.git("init", "-q", cwd=source)
    world.git("commit", "-q", "--allow-empty", "-m", "x", cwd=source)
    world.git("submodule", "add", "-q", str(source), "sub")
    world.git("init", "-q", "--bare", "mirror")
    world.git("init", "-q", "deep/nested")
    plan = world.plan()
    for name in (".git", ".git/modules/sub", "mirror", "deep/nested/.git"):
        assert text(plan, world.project / name / "config")
        assert str(world.project / name) in binds(plan, writable=True)
    assert str(world.project / "sub/.git") in binds(plan, writable=False)


def test_hooks_that_the_config_keeps_in_the_project_are_read_only_and_watched(world: World) -> None:
    world.git("init", "-q")
    world.git("config", "core.hooksPath", "tools/hooks")
    hooks = world.write("tools/hooks/pre-commit").parent
    plan = world.plan()
    assert str(hooks) in binds(plan, writable=False)
    assert plan.watched == ((str(hooks), REPOSITORY),)
    assert "hookspath" not in text(plan, world.project / ".git/config")


@pytest.mark.parametrize("name", [".git", ".git/hooks", ".git/config"])
def test_a_link_where_git_looks_is_refused(world: World, name: str) -> None:
    world.git("init", "-q")
    path = world.project / name
    if path.exists():
        path.rename(world.home / "moved")
    else:
        (world.home / "moved").mkdir()
    path.symlink_to(world.home / "moved")
    with pytest.raises(Refused, match="symbolic link"):
        world.plan()


def test_a_config_that_git_cannot_read_is_masked_and_said(world: World) -> None:
    world.git("init", "-q")
    world.write(".git/config", "[core\n")
    plan = world.plan()
    assert masks(plan, world.project) == {".git/config"}
    assert any("git could not read" in line for line in plan.notices)


def a_worktree(world: World) -> Path:
    """A repository beside the project, which is a linked worktree of it."""
    main = world.home / "main"
    main.mkdir()
    world.git("init", "-q", cwd=main)
    world.git("commit", "-q", "--allow-empty", "-m", "x", cwd=main)
    world.project.rmdir()
    world.git("worktree", "add", "-q", str(world.project), cwd=main)
    return main / ".git"


def test_a_linked_worktree_brings_its_repository_along(world: World) -> None:
    common = a_worktree(world)
    plan = world.plan()
    assert {str(common), str(common / "worktrees/work")} <= binds(plan, writable=True)
    read_only = binds(plan, writable=False)
    assert str(world.project / ".git") in read_only
    assert {str(common / "worktrees/work" / n) for n in ("commondir", "gitdir")} <= read_only
    assert text(plan, common / "config")
    assert str(common) in plan.writable
    assert str(common.parent) not in binds(plan, writable=True)


@pytest.mark.parametrize("to", ["~/.ssh", "~/other", "/etc"])
def test_a_pointer_that_nothing_leads_back_from_is_refused(world: World, to: str) -> None:
    for name in (".ssh", "other"):
        world.write(f"../{name}/config")
    world.write(".git", f"gitdir: {to.replace('~', str(world.home))}\n")
    with pytest.raises(Refused, match="no worktree"):
        world.plan()


def test_a_pointer_to_the_worktree_of_another_is_refused(world: World) -> None:
    common = a_worktree(world)
    stranger = world.home / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text(f"gitdir: {common}/worktrees/work\n")
    with pytest.raises(Refused, match="no worktree"):
        world.plan(a_sandbox(writable=("~/stranger",)))


def test_a_separate_git_directory_works_when_it_is_named(world: World) -> None:
    world.git("init", "-q", "--separate-git-dir", str(world.home / "separate"))
    with pytest.raises(Refused, match=r"sandbox\.writable"):
        world.plan()
    plan = world.plan(a_sandbox(writable=(".", "~/separate")))
    assert text(plan, world.home / "separate/config")
