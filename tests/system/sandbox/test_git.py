"""Plain git inside: who commits, which remotes it asks, what it runs, and what it can still do."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.origin import git

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = [
    pytest.mark.outside,
    pytest.mark.by_turns,
    pytest.mark.skipif(not shutil.which("git"), reason="git is not installed"),
]

POLICY = """
[services.forge]
hosts = ["git.example", "*.wild.example"]
forge = "gitlab"
repos = ["acme/widgets"]
"""
SETTINGS = """
[user]
name = Ada King
email = ada@home.example
[credential]
helper = "!echo password=hunter2hunter2"
[http]
extraHeader = "Authorization: Bearer hunter2hunter2"
"""


def outside(project: Project, *words: str, where: str = ".") -> str:
    """Git on the host, as the person."""
    person = project.person
    more = {} if person.uid == os.geteuid() else person.become()
    return git(project.directory / where, *words, **more)


@pytest.fixture
def repository(new_project: Callable[..., Project]) -> Project:
    """A repository with a commit, a hook that fails, a remote over ssh, and a person's settings."""
    project = new_project(POLICY)
    project.write("../home/.gitconfig", SETTINGS)
    outside(project, "init", "--quiet", "--initial-branch=main")
    outside(project, "remote", "add", "origin", "git@git.example:acme/widgets.git")
    project.write("readme", "first\n")
    outside(project, "add", "readme")
    outside(project, "commit", "--quiet", "--message=first")
    outside(project, "update-ref", "refs/remotes/origin/feature", "HEAD")
    hook = project.write(".git/hooks/pre-commit", "#!/bin/sh\necho ran; exit 1\n")
    hook.chmod(0o755)
    return project


def test_commits_bear_the_hosts_person_and_nothing_else_of_the_hosts_settings_comes_in(
    repository: Project,
) -> None:
    """I1. Control: name and address do; and the policy can choose others."""
    script = """
git commit --quiet --allow-empty --message=inside && git log -1 --format='%an <%ae> %cn'
git config --list --show-origin | grep -c hunter2
cat /etc/gitconfig | grep -c hunter2
GIT_CONFIG_NOSYSTEM=1 git config user.email || echo without
"""
    done = repository.shell(script)
    assert done.lines == ["Ada King <ada@home.example> Ada King", "0", "0", "without"], done
    repository.policy('[sandbox]\ngit_user = "Bot <bot@corp.example>"\n')
    said = repository.shell("git config user.name; git config user.email")
    assert said.lines == ["Bot", "bot@corp.example"]


def test_remotes_over_ssh_are_asked_over_https_at_granted_hosts_alone(repository: Project) -> None:
    """Control: another host's stay as they are, and git's own switch turns all of it off."""
    script = """
git remote get-url --push origin
git ls-remote --get-url ssh://git@git.example:22/acme/widgets
git ls-remote --get-url git://git.example/acme/widgets
git ls-remote --get-url git@other.example:acme/widgets
git ls-remote --get-url git@a.wild.example:acme/widgets
GIT_CONFIG_NOSYSTEM=1 git ls-remote --get-url
"""
    done = repository.shell(script)
    assert done.lines == [
        "https://git.example/acme/widgets.git",
        "https://git.example/acme/widgets",
        "https://git.example/acme/widgets",
        "git@other.example:acme/widgets",
        "git@a.wild.example:acme/widgets",
        "git@git.example:acme/widgets.git",
    ], done


def test_hooks_run_inside_only_where_the_policy_says_so(repository: Project) -> None:
    script = "git commit --quiet --allow-empty --message=inside 2>&1; echo $?"
    assert repository.shell(script).lines == ["0"]
    repository.policy("[sandbox]\ngit_hooks = true\n")
    assert repository.shell(script).lines == ["ran", "1"]


def test_hooks_that_the_config_keeps_elsewhere_run_where_the_policy_says_so(
    repository: Project,
) -> None:
    repository.write("checks/pre-commit", "#!/bin/sh\necho elsewhere\n").chmod(0o755)
    outside(repository, "config", "core.hooksPath", "checks")
    repository.policy("[sandbox]\ngit_hooks = true\n")
    script = "git commit --quiet --allow-empty --message=inside 2>&1; echo $?"
    assert repository.shell(script).lines == ["elsewhere", "0"]


def test_an_address_that_is_a_command_is_not_run_and_nobody_is_asked_for_a_password(
    repository: Project,
) -> None:
    """I9: a prompt would wait for ever. Control: a path of the project is cloned."""
    script = """
git clone --quiet "ext::sh -c 'touch ran'" one 2>&1 | grep -o "transport 'ext' not allowed"
test -e ran || echo nothing ran
git clone --quiet . two && cat two/readme
echo url=https://git.example | git credential fill 2>&1 | grep -o 'prompts disabled'
"""
    done = repository.shell(script)
    assert done.lines == [
        "transport 'ext' not allowed", "nothing ran", "first", "prompts disabled",
    ], done  # fmt: skip


def test_settings_that_git_writes_inside_are_the_runs_own(repository: Project) -> None:
    """I11. Control: inside, git reads what it wrote, so the commands really write somewhere."""
    config = repository.directory / ".git/config"
    before = config.read_text()
    script = """
exec 2>&1
git init --quiet --bare "$HOME/remote.git" && git remote add near "$HOME/remote.git" || exit 1
git checkout --quiet feature && git checkout --quiet -b agent/x origin/feature || exit 1
git commit --quiet --allow-empty --message=inside
git push --quiet -u near agent/x && git --git-dir="$HOME/remote.git" branch
git config branch.agent/x.remote
git branch --quiet --set-upstream-to=origin/feature && git config branch.agent/x.remote
git config core.fsmonitor evil; git config core.fsmonitor
git branch -m agent/y && git config branch.agent/y.remote
"""
    done = repository.shell(script)
    assert done.lines == ["  agent/x", "near", "origin", "evil", "origin"], done
    assert config.read_text() == before
    again = repository.shell("git config core.fsmonitor; git remote; git push -n near 2>&1 | wc -l")
    assert again.lines[0] == "origin", again


def test_code_that_aims_at_the_hosts_config_reaches_the_runs_copy_alone(
    repository: Project,
) -> None:
    """I1, I11. Control: another file of the same directory is replaced in each of these ways."""
    config = repository.directory / ".git/config"
    outside(repository, "config", "http.extraHeader", "Authorization: Bearer hunter2hunter2")
    before = config.read_text()
    script = """
for name in config description; do
  cd .git
  grep -c hunter2 $name
  echo "[core] fsmonitor = evil" > $name
  echo x > new; mv -f new $name 2>/dev/null && echo moved
  ln $name linked 2>/dev/null && echo linked
  rm -f $name 2>/dev/null && echo removed
  cd ..
done
mv .git other 2>/dev/null || echo stays
cd .git; rm -f new linked
"""
    done = repository.shell(script)
    assert done.lines == ["0", "0", "moved", "linked", "removed", "stays"], done
    assert config.read_text() == before


def test_linked_worktrees_work_those_from_outside_and_those_made_inside(
    repository: Project,
) -> None:
    outside(repository, "worktree", "add", "--quiet", "linked")
    script = """
git worktree add --quiet made || exit 1
for each in linked made; do
  (cd $each && echo more > more && git add more && git commit --quiet --message=$each) || exit 1
done
git -C linked ls-remote --get-url; git -C made config user.name
"""
    done = repository.shell(script)
    assert done.lines == ["https://git.example/acme/widgets.git", "Ada King"], done
    told = outside(repository, "log", "-1", "--format=%s %ae", "linked", "--")
    assert told.strip() == "linked ada@home.example"
    assert outside(repository, "log", "-1", "--format=%s", "made", "--").strip() == "made"


def test_the_worktree_of_a_repository_beside_it_works(new_project: Callable[..., Project]) -> None:
    """The policy's directory is itself a linked worktree."""
    project = new_project()
    project.write("../home/.gitconfig", SETTINGS)
    (project.directory / "keyhole.toml").unlink()
    main = project.home.parent / "main"
    main.mkdir()
    project.person.own(main)
    outside(project, "init", "--quiet", "--initial-branch=main", where="../main")
    outside(project, "commit", "--quiet", "--allow-empty", "--message=first", where="../main")
    outside(project, "worktree", "add", "--quiet", str(project.directory), where="../main")
    project.policy("")
    done = project.shell(
        "echo x > x && git add x && git commit --quiet --message=inside && git checkout -q -b n"
    )
    assert done.code == 0, done
    assert outside(project, "log", "-1", "--format=%s %an").strip() == "inside Ada King"


def test_a_submodule_that_nobody_registered_is_cloned_inside(repository: Project) -> None:
    """`git submodule update --init`, whose registration is not written to the host's config.

    Paths are no transport for a submodule, which is git's own rule; so it is said for this once.
    """
    outside(repository, "init", "--quiet", "--initial-branch=main", "library")
    outside(repository, "commit", "--quiet", "--allow-empty", "--message=of it", where="library")
    library = repository.directory / "library"
    outside(
        repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
        "--name", "lib", str(library), "vendor/lib",
    )  # fmt: skip
    outside(repository, "commit", "--quiet", "--no-verify", "--message=with a submodule")
    outside(repository, "submodule", "--quiet", "deinit", "--force", "vendor/lib")
    shutil.rmtree(repository.directory / ".git/modules/lib")
    config = (repository.directory / ".git/config").read_text()
    assert "submodule" not in config
    script = """
git submodule --quiet update --init 2>&1 | grep -o "transport 'file' not allowed" | head -1
git -c protocol.file.allow=always submodule --quiet update --init --recursive || exit 1
git -C vendor/lib log -1 --format=%s
cd vendor/lib && git commit --quiet --allow-empty --message=inside && git log -1 --format=%ae
"""
    done = repository.shell(script)
    assert done.lines == ["transport 'file' not allowed", "of it", "ada@home.example"], done
    assert (repository.directory / ".git/config").read_text() == config


def test_a_submodule_that_is_there_already_is_updated_inside(repository: Project) -> None:
    """Git sets `core.worktree` anew wherever it is set; the copy of the config leaves it out."""
    outside(repository, "init", "--quiet", "--initial-branch=main", "library")
    outside(repository, "commit", "--quiet", "--allow-empty", "--message=of it", where="library")
    outside(
        repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
        "--name", "lib", str(repository.directory / "library"), "vendor/lib",
    )  # fmt: skip
    outside(repository, "commit", "--quiet", "--no-verify", "--message=with a submodule")
    script = """
git -C vendor/lib commit --quiet --allow-empty --message=inside || exit 1
git submodule --quiet update --init --recursive || exit 1
git -C vendor/lib log -1 --format=%s; git -C vendor/lib rev-parse --show-toplevel
"""
    done = repository.shell(script)
    assert done.lines == ["of it", str(repository.directory / "vendor/lib")], done


def test_a_readable_repository_of_another_owner_can_be_read(repository: Project) -> None:
    """It seems to be nobody's inside."""
    other = repository.home.parent / "other"
    other.mkdir()
    git(other, "init", "--quiet", "--initial-branch=main")
    git(other, "commit", "--quiet", "--allow-empty", "--message=of another")
    repository.policy('[sandbox]\nreadable = ["../other"]\n')
    done = repository.shell("git -C ../other log -1 --format=%s && git clone --quiet ../other copy")
    assert (done.code, done.lines) == (0, ["of another"]), done


@pytest.mark.skipif(not shutil.which("git-lfs"), reason="git-lfs is not installed")
def test_large_files_are_filtered_and_pushed_without_having_been_installed(
    repository: Project,
) -> None:
    """Control: a repository without them is pushed without a word of them."""
    script = """
git init --quiet --bare -b main far.git && git clone --quiet "file://$PWD/far.git" near || exit 1
cd near && git checkout --quiet -b main && git commit --quiet --allow-empty --message=plain
git push --quiet origin HEAD && find ../far.git/lfs 2>/dev/null
git lfs track --filename big.bin >/dev/null && echo much > big.bin && git add . || exit 1
git commit --quiet --message=large && git push --quiet origin HEAD >/dev/null || exit 1
git cat-file -p HEAD:big.bin | grep ^size
cd .. && git clone --quiet "file://$PWD/far.git" again && cat again/big.bin
"""
    done = repository.shell(script)
    assert done.lines == ["size 5", "much"], done
