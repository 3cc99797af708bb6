"""A repository's config for use inside (I1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from keyhole.sandbox.files import git_config
from tests.rigs.sandbox.worlds import GIT


def kept(config: str) -> str:
    settings = git_config.parse(GIT, config.encode())
    assert settings is not None
    return git_config.sanitised(settings)


@pytest.mark.parametrize(
    "config",
    [
        '[http "https://forge.example/"]\n\textraHeader = AUTHORIZATION: basic hunter2',
        "[http]\n\textraheader = AUTHORIZATION: basic hunter2\n\tcookieFile = hunter2",
        "[credential]\n\thelper = !echo hunter2",
        '[url "https://hunter2@forge.example/"]\n\tinsteadOf = https://forge.example/',
        "[core]\n\thooksPath = hunter2\n\tfsmonitor = hunter2\n\tsshCommand = hunter2",
        "[core]\n\teditor = hunter2\n\tpager = hunter2\n\taskPass = hunter2\n\tgitProxy = hunter2",
        "[alias]\n\tx = !hunter2",
        '[filter "x"]\n\tclean = hunter2\n\tsmudge = hunter2',
        '[diff "x"]\n\tcommand = hunter2\n\ttextconv = hunter2',
        '[merge "x"]\n\tdriver = hunter2',
        "[gpg]\n\tprogram = hunter2",
        "[include]\n\tpath = /hunter2",
        '[includeIf "gitdir:/"]\n\tpath = /hunter2',
        '[remote "o"]\n\turl = ext::sh -c hunter2',
        '[remote "o"]\n\tproxy = http://hunter2\n\tuploadpack = hunter2\n\tvcs = hunter2',
        '[submodule "x"]\n\tupdate = !hunter2',
        '[remote "o"]\n\turl = https://forge.example/x?private_token=hunter2',
        '[branch "x"]\n\tdescription = token glpat-hunter2hunter2hunter2',
    ],
)
def test_what_runs_a_command_or_holds_a_credential_does_not_pass(config: str) -> None:
    assert "hunter2" not in kept(f"[user]\n\tname = a\n{config}\n")
    assert 'name = "a"' in kept(f"[user]\n\tname = a\n{config}\n")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://forge.example/a.git", "https://forge.example/a.git"),
        ("https://u:p@forge.example:8443/a.git", "https://forge.example:8443/a.git"),
        ("https://token@forge.example/a.git", "https://forge.example/a.git"),
        ("https://a@b:c@forge.example/", "https://forge.example/"),
        ("ssh://git@forge.example/a.git", "ssh://git@forge.example/a.git"),
        ("ssh://git:pass@forge.example/a", "ssh://git@forge.example/a"),
        ("git@forge.example:a/b.git", "git@forge.example:a/b.git"),
        ("../sibling.git", "../sibling.git"),
        ("ext::sh -c x", None),
    ],
)
def test_a_url_loses_its_userinfo(url: str, shown: str | None) -> None:
    assert git_config.without_credentials(url) == shown


def test_what_git_needs_to_work_is_kept(tmp_path: Path) -> None:
    config = (
        "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tworktree = ../../sub\n"
        "[extensions]\n\tobjectFormat = sha256\n\tworktreeConfig\n"
        '[remote "we\\"ird\\\\ one"]\n\turl = https://forge.example/\n'
        "\tfetch = +refs/heads/*:refs/remotes/o/*\n\tfetch = +refs/tags/*:refs/tags/*\n"
        '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
        '[user]\n\tname = "A # \\" B\\n\\tC"\n\temail = a@example.org\n'
    )
    (tmp_path / "config").write_text(kept(config))
    before = git_config.parse(GIT, config.encode())
    words = [str(GIT), "config", "--file", str(tmp_path / "config"), "--list", "--null"]
    assert git_config.parse(GIT, subprocess.check_output(words)) is None  # a list is no config
    assert git_config.parse(GIT, (tmp_path / "config").read_bytes()) == before


def test_an_include_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[user]\n\tname = hunter2\n")
    assert "hunter2" not in kept(f"[include]\n\tpath = {tmp_path / 'other'}\n")


def test_a_broken_config_is_none() -> None:
    assert git_config.parse(GIT, b"[core\n") is None
    assert git_config.parse(GIT, b'[user]\n\tname = "\xff"\n') is None
    assert git_config.parse(Path("/nonexistent/git"), b"") is None
    assert git_config.parse(GIT, b"") == ()
