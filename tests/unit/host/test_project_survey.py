"""What `keyhole init` sees when it looks around."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.host import project_survey
from tests.rigs.host.building import PASSWORD, needs, write

if TYPE_CHECKING:
    from pathlib import Path


def config(url: str) -> str:
    return f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n\tfetch = +refs/*\n'


# ── git remote ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("https://git.corp.example/acme/widgets.git", "https://git.corp.example/acme/widgets.git"),
        (f"https://me:{PASSWORD}@git.corp.example/a/b", "https://git.corp.example/a/b"),
        (f"https://{PASSWORD}@git.corp.example:8443/a/b", "https://git.corp.example:8443/a/b"),
        (f"https://git.corp.example/a/b?token={PASSWORD}", "https://git.corp.example/a/b"),
        ("git@git.corp.example:acme/widgets.git", "ssh://git.corp.example/acme/widgets.git"),
        ("git.corp.example:/acme/widgets", "ssh://git.corp.example/acme/widgets"),
        ("ssh://git@git.corp.example:2222/a/b", "ssh://git.corp.example:2222/a/b"),
        ("/srv/git/widgets.git", None),
        ("../widgets", None),
        ("file:///srv/git/widgets.git", None),
        (f"ext::sh -c {PASSWORD}", None),
        (f"https://me:{PASSWORD}/x@git.corp.example/a", None),
        ('"https://git.corp.example/a"', None),
        ("https://git.corp.example/a # comment", None),
        ("https://[broken", None),
        ("https://git.corp.example/\x1b[31m", None),
    ],
)
def test_the_remote_is_read_without_userinfo(
    tmp_path: Path, written: str, seen: str | None
) -> None:
    write(tmp_path / ".git" / "config", config(written))
    assert project_survey.remote_url(tmp_path) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('[Remote "origin"] URL=https://a.example/x\n', "https://a.example/x"),
        ('[remote "upstream"]\nurl = https://a.example/x\n', None),
        ('[remote "Origin"]\nurl = https://a.example/x\n', None),
        (
            '[remote "origin"]\npushurl = https://a.example/x\n[core]\nurl = https://b.example/\n',
            None,
        ),
        ("[include]\npath = other\n", None),
        ("nonsense [[[\n", None),
        ("", None),
    ],
)
def test_only_the_url_of_origin_counts(tmp_path: Path, text: str, seen: str | None) -> None:
    write(tmp_path / ".git" / "config", text)
    write(tmp_path / ".git" / "other", config("https://included.example/x"))
    assert project_survey.remote_url(tmp_path) == seen


def test_a_project_without_git_has_no_remote(tmp_path: Path) -> None:
    assert project_survey.remote_url(tmp_path) is None


def test_the_remote_of_a_real_linked_worktree_is_that_of_its_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run([needs("git"), *words], check=True, capture_output=True, cwd=tmp_path)

    git("init", "-q", "main")
    git("-C", "main", "remote", "add", "origin", "https://git.corp.example/acme/widgets")
    git(
        "-C", "main", "-c", "user.name=x", "-c", "user.email=x@example.org",
        "commit", "-q", "--allow-empty", "-m", "x",
    )  # fmt: skip
    git("-C", "main", "worktree", "add", "-q", "../linked")
    assert (tmp_path / "linked" / ".git").is_file()
    assert project_survey.remote_url(tmp_path / "linked") == "https://git.corp.example/acme/widgets"
    assert project_survey.remote_url(tmp_path / "main") == "https://git.corp.example/acme/widgets"


def test_a_git_file_that_points_at_a_repository_of_someone_else_is_not_followed(
    tmp_path: Path,
) -> None:
    """A clone could pass for the user's other repository, and be offered its grants."""
    write(tmp_path / "mine" / ".git" / "config", config("https://git.corp.example/my/secrets"))
    worktree = tmp_path / "mine" / ".git" / "worktrees" / "w"
    write(worktree / "commondir", "../..\n")
    write(worktree / "gitdir", f"{tmp_path}/w/.git\n")
    for project in ("hostile", "w"):
        write(tmp_path / project / ".git", f"gitdir: {worktree}\n")
    assert project_survey.remote_url(tmp_path / "hostile") is None
    assert project_survey.remote_url(tmp_path / "w") == "https://git.corp.example/my/secrets"
    write(tmp_path / "hostile" / ".git", f"gitdir: {tmp_path}/mine/.git\n")
    assert project_survey.remote_url(tmp_path / "hostile") is None
    write(tmp_path / "hostile" / ".git", "nonsense\n")
    assert project_survey.remote_url(tmp_path / "hostile") is None


# ── package managers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("pyproject.toml", "python"),
        ("requirements-dev.txt", "python"),
        ("setup.py", "python"),
        ("package.json", "node"),
        ("Cargo.toml", "cargo"),
        ("go.mod", "go"),
        ("pom.xml", "maven"),
        ("build.gradle", "maven"),
        ("build.gradle.kts", "maven"),
    ],
)
def test_a_file_at_the_top_calls_for_its_preset(tmp_path: Path, name: str, preset: str) -> None:
    assert project_survey.package_managers(tmp_path) == ()
    write(tmp_path / "below" / name, "")
    (tmp_path / "x.mod").mkdir()
    assert project_survey.package_managers(tmp_path) == ()
    write(tmp_path / name, "")
    assert project_survey.package_managers(tmp_path) == (preset,)


def test_several_are_named_once_each(tmp_path: Path) -> None:
    for name in ("go.mod", "setup.py", "pyproject.toml"):
        write(tmp_path / name, "")
    assert project_survey.package_managers(tmp_path) == ("python", "go")
