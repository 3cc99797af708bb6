"""What the host may execute is marked, under any name that leads to it (I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.changes.executed_files import is_disguised, is_git_setting
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from pathlib import Path

GIT = {".git/HEAD": "ref: x\n", ".git/config": "", ".git/objects/x": "", ".git/refs/x": ""}


def marked(review: Review) -> set[str]:
    return {name for name, change in review.changes().items() if change.executed is not None}


def test_settings_hooks_and_configs_are_marked_and_other_files_are_not(tmp_path: Path) -> None:
    review = Review.of(tmp_path, GIT)
    for name in (
        ".git/hooks/pre-commit", ".git/config", ".git/objects/aa", ".git/index",
        ".vscode/tasks.json", "sub/.git/config", "sub/.git/HEAD", ".envrc", "src/a.py", "Makefile",
        "venv/bin/x", "venv/pyvenv.cfg", "node_modules/.bin/tool", ".mcp.json",
    ):  # fmt: skip
        review.write(name, "x\n")
    assert marked(review) == {
        ".git/hooks/pre-commit", ".git/config", ".vscode/tasks.json", "sub/.git/config", ".envrc",
        "venv/bin/x", "venv/pyvenv.cfg", "node_modules/.bin/tool", ".mcp.json",
    }  # fmt: skip


def test_a_link_of_the_persons_gives_a_directory_the_name_of_another(tmp_path: Path) -> None:
    """Control: without the link the same file is none that the host executes."""
    review = Review.of(tmp_path, {"conf/x": "", "other/x": ""})
    review.write("conf/tasks.json", "{}")
    review.write("other/tasks.json", "{}")
    assert marked(review) == set()
    review.tree.joinpath(".vscode").symlink_to("conf")
    assert marked(review) == {"conf/tasks.json"}


def test_a_link_that_the_sandbox_made_to_a_place_of_tools_is_marked(tmp_path: Path) -> None:
    review = Review.of(tmp_path, {})
    review.link(".venv", "sub")
    review.link(".tool", "sub")
    review.link("plain", "sub")
    assert marked(review) == {".venv", ".tool"}


def test_removing_a_hook_or_a_whole_repository_is_marked(tmp_path: Path) -> None:
    review = Review.of(tmp_path, GIT | {".envrc": "", "a": ""})
    review.remove(".envrc")
    review.remove(".git")
    review.remove("a")
    assert marked(review) == set(review.changes()) - {"a"}
    assert review.held()[".git/refs/x"] == "host-may-execute"


@pytest.mark.parametrize(
    ("path", "disguised"),
    [
        (".GIT/config", True),
        ("sub/.g\u200cit/hooks/x", True),
        ("GIT~1/x", True),
        (".git./config", True),
        (".VSCode/tasks.json", True),
        (".Envrc", True),
        (".git/config", False),
        ("README", False),
        ("Makefile", False),
        ("src/Main.java", False),
    ],
)
def test_a_name_that_some_file_systems_take_for_another_is_marked(
    path: str, *, disguised: bool
) -> None:
    assert is_disguised(path) is disguised


def test_a_tree_that_is_too_large_to_be_searched_has_every_change_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: what was not looked at is not applied by itself."""
    review = Review.of(tmp_path, {"a": ""})
    review.write("b", "")
    assert marked(review) == set()
    monkeypatch.setattr("keyhole.sandbox.files.tree_walk.WalkBudget.spend", _spent)
    assert marked(review) == {"b"}


def _spent(_budget: object, _entries: int) -> None:
    from keyhole.sandbox.files.tree_walk import TreeTooLarge

    raise TreeTooLarge


def test_a_script_that_a_hook_of_the_persons_leads_to_is_marked(tmp_path: Path) -> None:
    """Attack: the hook itself stays as it is; the script that it links to is the sandbox's to
    write. Control: a script beside it."""
    review = Review.of(tmp_path, GIT | {"scripts/check": "", "scripts/other": "", "conf/x": ""})
    hooks = review.tree / ".git/hooks"
    hooks.mkdir()
    hooks.joinpath("pre-commit").symlink_to("../../scripts/check")
    review.tree.joinpath(".envrc").symlink_to("settings")
    review.tree.joinpath(".vscode").symlink_to("way")
    review.tree.joinpath("way").symlink_to("conf")
    review.begin_again()
    review.write("scripts/check", "evil")
    review.write("scripts/other", "fine")
    review.write("settings", "evil")  # the person's link led to nothing
    review.link("way", "mine")
    review.write("mine/tasks.json", "{}")
    assert marked(review) == {"scripts/check", "settings", "way"}
    review.apply()
    assert review.files()["scripts/check"] == ""
    assert review.files()["scripts/other"] == "fine"


@pytest.mark.parametrize("name", ["ok", "logs", "logs/vendor", "a/refs/b", "objects", "x/lfs"])
def test_settings_of_a_submodule_are_marked_whatever_it_is_called_i11(
    tmp_path: Path, name: str
) -> None:
    """Attack: git keeps data in directories of these names, which are not searched; or the sandbox
    has the directory above look like a repository. Control: data of the submodule."""
    module = f".git/modules/{name}"
    files = {f"{module}/{each}": "" for each in ("HEAD", "config", "objects/x", "refs/x")}
    review = Review.of(tmp_path, GIT | files)
    review.write(f"{module}/config", "[core]\n\tfsmonitor = evil\n")
    review.write(f"{module}/hooks/post-checkout", "evil", 0o755)
    review.write(f"{module}/refs/heads/main", "0")
    for each in ("HEAD", "objects/y", "refs/y"):
        review.write(f".git/modules/{each}", "")
        review.write(f".git/modules/{name.split('/')[0]}/{each}", "x")
    acting = {f"{module}/config", f"{module}/hooks/post-checkout"}
    assert acting <= marked(review)
    assert f"{module}/refs/heads/main" not in marked(review)
    review.apply()
    assert not {f"{module}/hooks/post-checkout"} & set(review.files())
    assert review.files()[f"{module}/config"] == ""


@pytest.mark.parametrize(
    ("path", "acts"),
    [
        (".git/worktrees/refs/config.worktree", True),
        (".git/worktrees/logs/gitdir", True),
        (".git/modules/a/rebase-merge/git-rebase-todo", True),
        (".git/HOOKS/pre-commit", True),
        ("sub/.git/x/Config", True),
        (".git/refs/heads/hooks/config", False),
        (".git/logs/refs/heads/config", False),
        (".git/hooks/pre-commit.sample", False),
        (".git/modules/a/HEAD", False),
        (".git", False),
        ("hooks/config", False),
    ],
)
def test_a_name_in_a_repository_decides_wherever_it_lies(path: str, *, acts: bool) -> None:
    assert is_git_setting(path) is acts


def test_a_directory_that_is_only_called_like_a_repository_is_searched_i11(tmp_path: Path) -> None:
    """Attack: git keeps data in `logs`, `refs` and `lfs`, which are not searched; here they are
    directories of the project. Control: those of a repository."""
    review = Review.of(tmp_path, GIT)
    for place in ("site.git/logs", "site.git/lfs/deep", ".git/logs"):
        review.write(f"{place}/.envrc", "evil")
    assert marked(review) == {"site.git/logs/.envrc", "site.git/lfs/deep/.envrc"}


def test_files_that_complete_a_repository_around_an_older_config_are_marked(
    tmp_path: Path,
) -> None:
    """Attack: `config` and a hook are applied, since they lie in no repository; a later run adds
    the rest of a bare one. Control: the same files where there is no config."""
    review = Review.of(tmp_path, {})
    review.write("sub/config", "[core]\n\tfsmonitor = evil\n")
    review.write("sub/HEAD", "ref: refs/heads/main\n")
    assert marked(review) == set()
    review.apply()
    review.begin_again()
    for place in ("sub", "other"):
        review.write(f"{place}/HEAD", "ref: refs/heads/x\n")
        review.write(f"{place}/objects/x", "")
        review.write(f"{place}/refs/x", "")
    names = {"HEAD", "objects", "objects/x", "refs", "refs/x"}
    assert marked(review) == {f"sub/{name}" for name in names}
    review.apply()
    assert not review.tree.joinpath("sub/objects").exists()
    assert review.tree.joinpath("other/objects/x").exists()
