"""What git is told in a sandbox, from a policy, a file plan and a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.setup import client_setup
from keyhole.app.setup.git_settings import (
    ENVIRONMENT,
    HOOKS,
    MAX_MODULES,
    OTHERS,
    SYSTEM,
    GitHostSettings,
    GitSettings,
    git_settings,
)
from keyhole.host.git_config import parse
from keyhole.model.errors import Refused
from keyhole.sandbox.files.mount_plan import Bind, Entry, MountKind, MountPlan, TextFile, Tmpfs
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from keyhole.host.git_config import GitSetting

ADA = "[user]\nname = Ada\nemail = ada@home.example\n"
MODULES = '[submodule "lib"]\n\tpath = lib\n\turl = https://git.example/acme/lib\n'


class Ground:
    """A host with a project that is a repository."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.home = top / "home"
        self.project = self.home / "work/widgets"
        self.git = self.project / ".git"
        self.root = top / "root"
        for directory in (self.git, self.root):
            directory.mkdir(parents=True)
        self.write(self.home / ".gitconfig", ADA)
        self.write(self.git / "config", "[core]\nbare = false\n")
        self.entries: list[Entry] = [TextFile(f"{self.git}/config", "[core]\nbare = false\n")]

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def settings(self, policy: str = "", *interpreter: str) -> GitSettings:
        plan = MountPlan(tuple(self.entries), (str(self.project),))
        host = GitHostSettings({}, self.home, self.project, self.root, interpreter)
        return git_settings(loaded(policy).policy, plan, host)

    def has_lfs(self) -> None:
        self.write(self.root / "usr/bin/git-lfs", "")
        (self.root / "usr/bin/git-lfs").chmod(0o755)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def values(text: str, section: str, name: str) -> list[tuple[str | None, str | None]]:
    found: tuple[GitSetting, ...] = parse(text)
    return [(s.subsection, s.value) for s in found if (s.section, s.name) == (section, name)]


def included(found: GitSettings, directory: Path | str) -> str:
    """What holds in the repository with this directory alone."""
    paths = values(found.system, "includeif", "path")
    names = [path for condition, path in paths if condition == f"gitdir:{directory}"]
    return "".join(found.files[name].content for name in names if name)


def test_the_hosts_person_commits_and_the_policy_can_name_another(ground: Ground) -> None:
    assert values(ground.settings().system, "user", "email") == [(None, "ada@home.example")]
    named = ground.settings('[sandbox]\ngit_user = "Bot <bot@corp.example>"\n')
    assert values(named.system, "user", "name") == [(None, "Bot")]
    assert "ada@" not in named.system


def test_a_repository_for_which_the_person_has_another_name_is_told_so(ground: Ground) -> None:
    """Control: one for which there is none has no file of its own."""
    other = ground.home / "private/.git"
    ground.write(other / "config", "")
    ground.entries.append(TextFile(f"{other}/config", ""))
    ground.write(ground.home / "private.inc", "[user]\nname = A.\nemail = a@private.example\n")
    more = f'[includeIf "gitdir:{ground.home}/private/"]\n\tpath = private.inc\n'
    ground.write(ground.home / ".gitconfig", ADA + more)
    found = ground.settings()
    assert values(found.system, "user", "name") == [(None, "Ada")]
    assert values(included(found, other), "user", "email") == [(None, "a@private.example")]
    assert values(included(found, ground.git), "user", "email") == []


def test_of_the_hosts_settings_nothing_but_the_person_comes_in(ground: Ground) -> None:
    """I1. Control: the person does."""
    secret = (
        '[credential]\nhelper = "!echo hunter2"\n[http]\nextraHeader = "Authorization: hunter2"\n'
    )
    ground.write(ground.home / ".gitconfig", ADA + secret)
    ground.write(ground.root / "etc/gitconfig", secret)
    found = ground.settings()
    everything = found.system + "".join(file.content for file in found.files.values())
    assert "hunter2" not in everything
    assert "ada@home.example" in everything


def test_hooks_are_off_unless_the_policy_wants_them(ground: Ground) -> None:
    assert values(ground.settings().system, "core", "hookspath") == [(None, "/dev/null")]
    on = ground.settings("[sandbox]\ngit_hooks = true\n")
    assert values(on.system, "core", "hookspath") == []


def test_hooks_that_are_kept_elsewhere_are_found_when_they_are_on(ground: Ground) -> None:
    """The copy of the config inside does not say where: the host's git would run them."""
    ground.write(ground.git / "config", "[core]\nhooksPath = gone\nhooksPath = .husky\n")
    on = ground.settings("[sandbox]\ngit_hooks = true\n")
    assert values(included(on, ground.git), "core", "hookspath") == [(None, ".husky")]
    assert values(included(on, f"{ground.git}/worktrees/"), "core", "hookspath")
    assert not values(included(ground.settings(), ground.git), "core", "hookspath")


def test_large_files_are_pushed_although_hooks_are_off(ground: Ground) -> None:
    """Control: without git-lfs there is neither a hook nor a filter."""
    assert not values(ground.settings().system, "filter", "process")
    ground.has_lfs()
    found = ground.settings()
    assert values(found.system, "core", "hookspath") == [(None, HOOKS)]
    assert found.files[f"{HOOKS}/pre-push"].mode == 0o555
    assert values(found.system, "filter", "required") == [("lfs", "true")]
    assert f"{HOOKS}/pre-push" not in ground.settings("[sandbox]\ngit_hooks = true\n").files


def test_repositories_whose_config_is_covered_are_not_asked_to_write_it(ground: Ground) -> None:
    """Control: a file of that name that is no repository's is passed over."""
    ground.write(ground.project / ".cargo/config", "")
    ground.entries.append(TextFile(f"{ground.project}/.cargo/config", ""))
    ground.entries.append(Tmpfs(f"{ground.top}/config", 1))
    ground.entries.append(TextFile("/nowhere/config", ""))
    found = ground.settings()
    for directory in (ground.git, f"{ground.git}/"):
        assert values(included(found, directory), "push", "default") == [(None, "current")]
    assert "cargo" not in found.system
    assert "nowhere" not in found.system
    ground.entries.clear()
    assert not ground.settings().files


def test_a_config_that_is_a_copy_may_be_written(ground: Ground) -> None:
    """Control: a read-only one is not asked for the upstream of a new branch."""
    read_only = included(ground.settings(), ground.git)
    assert values(read_only, "branch", "autosetupmerge") == [(None, "false")]
    ground.entries[:] = [
        replace(e, own_copy="/run/copy") if isinstance(e, TextFile) else e for e in ground.entries
    ]
    copied = included(ground.settings(), ground.git)
    assert not values(copied, "branch", "autosetupmerge")
    assert values(copied, "push", "default") == [(None, "current")]


def test_submodules_are_registered_without_writing(ground: Ground) -> None:
    ground.write(ground.project / ".gitmodules", MODULES)
    found = ground.settings()
    assert values(included(found, ground.git), "submodule", "url") == [
        ("lib", "https://git.example/acme/lib")
    ]
    # A clone made inside may have a submodule of the same name.
    assert values(found.system, "submodule", "url") == []


def test_submodules_of_a_linked_worktree_are_its_own(ground: Ground) -> None:
    private = ground.git / "worktrees/second"
    ground.write(private / "gitdir", f"{ground.project}/second/.git\n")
    ground.write(ground.project / "second/.gitmodules", MODULES)
    ground.entries.append(Bind(f"{private}/gitdir", f"{private}/gitdir", MountKind.FILE))
    found = ground.settings()
    assert values(included(found, private), "submodule", "url")
    assert not values(included(found, ground.git), "submodule", "url")


def test_a_config_that_is_shown_as_it_is_is_read_as_it_is(ground: Ground) -> None:
    """With unsafe_paths."""
    known = '[submodule "lib"]\nurl = https://mirror.example/lib\n'
    ground.write(ground.git / "config", known)
    ground.write(ground.project / ".gitmodules", MODULES)
    ground.entries[:] = [Bind(f"{ground.git}/config", f"{ground.git}/config", MountKind.FILE)]
    assert not values(included(ground.settings(), ground.git), "submodule", "url")


@pytest.mark.parametrize("kind", ["link", "pipe", "large", "broken"])
def test_a_gitmodules_that_is_none_is_passed_over(ground: Ground, kind: str) -> None:
    """I9, I11. Attack: an earlier run left it. Control: above."""
    path = ground.project / ".gitmodules"
    if kind == "link":
        ground.write(ground.home / "elsewhere", MODULES)
        path.symlink_to(ground.home / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        ground.write(path, MODULES + ("#" * MAX_MODULES if kind == "large" else '[submodule "'))
    assert not values(included(ground.settings(), ground.git), "submodule", "url")


# ── placed ────────────────────────────────────────────────────────────────────────────────────────


def placed(shown: tuple[Entry, ...], git: GitSettings | None) -> client_setup.ClientSetup:
    policy = loaded("").policy
    stand_ins = client_setup.SessionPlaceholders(policy, os.urandom)
    return client_setup.build_client_setup(
        policy, None, shown, Path("/home/me"), stand_ins, "2026-07-01", git=git
    )


def test_it_is_placed_where_git_reads_it_and_said_to_gits_that_read_elsewhere(
    ground: Ground,
) -> None:
    git = ground.settings()
    found = placed((Tmpfs("/home/me", 1),), git)
    texts = {e.target: e for e in found.entries if isinstance(e, TextFile)}
    assert texts[SYSTEM].content == git.system
    assert not texts[SYSTEM].guards
    assert not set(OTHERS) & set(texts)
    assert found.environment == ENVIRONMENT
    assert found.environment["GIT_TERMINAL_PROMPT"] == "0"
    assert set(git.files) <= set(texts)
    assert placed((), None).environment == {}


def test_the_hosts_configuration_for_a_git_of_its_own_stays_covered(tmp_path: Path) -> None:
    """I1: it may name helpers. A run that loses the cover ends."""
    (tmp_path / "local/etc").mkdir(parents=True)
    (tmp_path / "local/etc/gitconfig").write_text("[credential]\nhelper = evil\n")
    found = placed((Bind(str(tmp_path), "/usr", MountKind.DIR),), GitSettings("[a]\n"))
    (text,) = [e for e in found.entries if isinstance(e, TextFile) and e.target == OTHERS[0]]
    assert text.content == "[a]\n"
    assert text.guards


SIGNING = """
[sandbox]
git_user = "Ada <ada@corp.example>"
sign = "ssh:~/keys/agent.pub"
[services.forge]
hosts = ["git.example"]
forge = "generic"
inject = { basic_user = "robot" }
secret = "file:~/secret"
repos = ["acme/w"]
push = ["agent/*"]
"""


def test_commits_are_signed_by_a_program_that_asks_outside(ground: Ground) -> None:
    ground.write(ground.home / "keys/agent.pub", "ssh-ed25519 AAAA agent of Ada\n")
    found = ground.settings(SIGNING, "/usr/bin/python3")
    assert values(found.system, "user", "signingkey") == [(None, "key::ssh-ed25519 AAAA")]
    assert values(found.system, "commit", "gpgsign") == [(None, "true")]
    ((_, program),) = values(found.system, "gpg", "program")
    file = found.files[program or ""]
    assert file.mode == 0o555
    assert file.content.startswith("#!/usr/bin/python3 -IS\n")
    compile(file.content, "sign", "exec")
    with pytest.raises(Refused, match="by compose are not signed"):
        ground.settings(SIGNING)


def test_in_a_container_the_program_is_started_by_a_shell(ground: Ground) -> None:
    ground.write(ground.home / "keys/agent.pub", "ssh-ed25519 AAAA agent of Ada\n")
    found = ground.settings(SIGNING, "/own/loader", "--library-path", "/own/lib", "/own/python")
    ((_, program),) = values(found.system, "gpg", "program")
    words = f'exec /own/loader --library-path /own/lib /own/python -IS {program}.py "$@"'
    assert found.files[program or ""].content == f"#!/bin/sh\n{words}\n"
    compile(found.files[f"{program}.py"].content, "sign", "exec")


def test_commits_are_signed_with_a_key_of_gpg(ground: Ground) -> None:
    key = "0123456789ABCDEF"
    policy = SIGNING.replace("ssh:~/keys/agent.pub", f"gpg:{key.lower()}")
    found = ground.settings(policy, "/usr/bin/python3")
    assert values(found.system, "gpg", "format") == [(None, "openpgp")]
    assert values(found.system, "user", "signingkey") == [(None, key)]
    ((_, program),) = values(found.system, "gpg", "program")
    compile(found.files[program or ""].content, "sign", "exec")
    # Attack: gpg's settings, which name programs, lie where the sandbox can write (I11).
    (ground.home / ".gnupg").symlink_to(ground.project)
    with pytest.raises(Refused, match="the directory of gpg"):
        ground.settings(policy, "/usr/bin/python3")


def test_a_key_that_is_none_stops_the_run(ground: Ground) -> None:
    for text in ("", "ssh-ed25519", "\xe4 \xe4", "x " * 16384):
        ground.write(ground.home / "keys/agent.pub", text)
        with pytest.raises(Refused, match="no public key"):
            ground.settings(SIGNING, "/usr/bin/python3")
    ground.write(ground.project / "agent.pub", "ssh-ed25519 AAAA")
    (ground.home / "keys/agent.pub").unlink()
    (ground.home / "keys/agent.pub").symlink_to(ground.project / "agent.pub")
    with pytest.raises(Refused, match="where the sandbox can write"):
        ground.settings(SIGNING, "/usr/bin/python3")
    # Attack: the way leads through a link that the sandbox can turn to another key at any time.
    ground.write(ground.home / "keys/other.pub", "ssh-ed25519 BBBB")
    (ground.project / "agent.pub").unlink()
    (ground.project / "agent.pub").symlink_to(ground.home / "keys/other.pub")
    with pytest.raises(Refused, match="where the sandbox can write"):
        ground.settings(SIGNING, "/usr/bin/python3")
    # Control: a link that lies outside.
    (ground.home / "keys/agent.pub").unlink()
    (ground.home / "keys/agent.pub").symlink_to("other.pub")
    signing = ground.settings(SIGNING, "/usr/bin/python3").system
    assert values(signing, "user", "signingkey") == [(None, "key::ssh-ed25519 BBBB")]


@pytest.mark.parametrize(
    ("setting", "said"),
    [("gpgSign = true", True), ("gpgsign", True), ("gpgsign = on", True), ("gpgsign = no", False)],
)
def test_commits_that_are_not_signed_although_they_should_be_are_told(
    ground: Ground, setting: str, said: bool
) -> None:
    ground.write(ground.home / ".gitconfig", f"{ADA}\n[commit]\n{setting}\n")
    assert bool(ground.settings().notices) is said
    ground.write(ground.home / "keys/agent.pub", "ssh-ed25519 AAAA")
    assert not ground.settings(SIGNING, "/usr/bin/python3").notices
