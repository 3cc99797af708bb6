"""What `/etc/gitconfig` says inside, read back by git itself."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from keyhole.model.commit_identity import CommitIdentity
from keyhole.policy.git_settings import (
    NO_HOOKS,
    READ_ONLY_CONFIG,
    Inclusion,
    config_text,
    openpgp_lines,
    signing_lines,
    system_config,
)
from tests.rigs.policies import loaded

NOBODY = CommitIdentity()
GRANT = """
[services.forge]
secret = "store:forge"
repos = ["acme/widgets"]
"""


def text_of(policy: str, person: CommitIdentity = NOBODY, **more: object) -> str:
    hooks = more.pop("hooks", NO_HOOKS)
    given = {"lfs": False} | more
    return system_config(loaded(policy).policy, person, hooks, **given)  # type: ignore[arg-type]


def read(text: str) -> list[tuple[str, str]]:
    """Each key and value, as git reads them."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git here")
    done = subprocess.run(
        [git, "config", "--file", "-", "--null", "--list"],
        input=text.encode(), capture_output=True, check=True, cwd="/",
        env={"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip
    records = done.stdout.decode().split("\0")[:-1]
    return [(record.partition("\n")[0], record.partition("\n")[2]) for record in records]


def rewritten(policy: str) -> dict[str, str]:
    """The https address by what is written instead."""
    return {
        value: key.removeprefix("url.").removesuffix(".insteadof")
        for key, value in read(text_of(policy))
        if key.endswith(".insteadof")
    }


def test_remotes_over_ssh_and_git_of_a_granted_host_become_https() -> None:
    """The API's host is of the same service and serves no repository."""
    assert rewritten(GRANT) == dict.fromkeys(
        ("git@git.example:", "ssh://git@git.example/", "ssh://git@git.example:22/",
         "git://git.example/"),
        "https://git.example/",
    )  # fmt: skip


def test_a_host_that_is_no_git_service_is_not_rewritten() -> None:
    """I3. Control: above."""
    others = '[egress]\nallow = ["git.example"]\n[services.model]\nsecret = "store:m"\n'
    assert rewritten(others) == {}


def own(hosts: str, forge: str = "gitlab") -> str:
    return f'[services.own]\nhosts = {hosts}\nforge = "{forge}"\nrepos = ["a/b"]\n'


def test_several_hosts_are_rewritten_each_to_itself_and_wildcards_not_at_all() -> None:
    found = rewritten(own('["one.example", "two.example", "*.wild.example"]') + GRANT)
    assert set(found.values()) == {
        "https://one.example/", "https://two.example/", "https://git.example/",
    }  # fmt: skip
    assert not any("wild" in written for written in found)


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        ('["git.corp.example:8443"]', "https://git.corp.example:8443/"),
        ('["git.corp.example:8443", "git.corp.example"]', "https://git.corp.example/"),
        ('["git.corp.example:80", "git.corp.example:8443"]', "https://git.corp.example:8443/"),
        ('["git.corp.example:80"]', "http://git.corp.example/"),
    ],
)
def test_of_several_ports_the_usual_one_is_meant(hosts: str, address: str) -> None:
    assert set(rewritten(own(hosts)).values()) == {address}


def test_bitbucket_on_ones_own_server_has_other_paths_than_the_cloud() -> None:
    server = rewritten(own('["stash.corp.example"]', "bitbucket"))
    assert set(server.values()) == {"https://stash.corp.example/scm/"}
    assert "ssh://git@stash.corp.example:7999/" in server
    cloud = rewritten(own('["bitbucket.org"]', "bitbucket"))
    assert set(cloud.values()) == {"https://bitbucket.org/"}


def test_azure_devops_is_left_alone_since_no_beginning_leads_to_its_https_address() -> None:
    policy = own('["dev.azure.example"]', "azure-devops").replace("a/b", "org/project/repo")
    assert rewritten(policy) == {}


def test_no_credential_helper_no_command_as_a_transport_no_hook() -> None:
    """I1, I11. Control: what the last of each key says is what git obeys."""
    found = dict(read(text_of("")))
    assert found["credential.helper"] == ""
    assert found["protocol.ext.allow"] == "never"
    assert found["protocol.file.allow"] == "user"
    assert found["core.hookspath"] == "/dev/null"
    assert "core.hookspath" not in dict(read(text_of("", hooks=None)))


def test_the_person_is_written_as_far_as_it_is_known() -> None:
    assert not any(key.startswith("user.") for key, _ in read(text_of("")))
    odd = CommitIdentity('A "B" \\ C; #D', "a@b.example")
    found = dict(read(text_of("", odd)))
    assert (found["user.name"], found["user.email"]) == (odd.name, odd.email)
    assert "user.name" not in dict(read(text_of("", CommitIdentity("", "a@b.example"))))


def test_large_files_are_filtered_where_git_lfs_is_there() -> None:
    """Else `required` would make every checkout of such a file fail."""
    assert dict(read(text_of("", lfs=True)))["filter.lfs.process"] == "git-lfs filter-process"
    assert not any(key.startswith("filter.") for key, _ in read(text_of("")))


def test_nothing_of_a_secret_is_in_it() -> None:
    """I1. Control: the host that it goes to is."""
    text = text_of(GRANT, lfs=True)
    assert "store:" not in text
    assert "token-user" not in text
    assert "git.example" in text


def test_settings_for_some_repositories_are_included_by_their_directory() -> None:
    """A path with a wildcard's character means itself."""
    where = ("/home/me/a*b [x]/.git", '/home/me/q"uo\\te/.git/')
    found = read(text_of("", inclusions=[Inclusion("/etc/keyhole/git/x", where)]))
    keys = [key for key, _ in found if key.startswith("includeif.")]
    assert keys == [
        "includeif.gitdir:/home/me/a\\*b \\[x]/.git.path",
        'includeif.gitdir:/home/me/q"uo\\\\te/.git/.path',
    ]


def test_a_directory_that_no_heading_can_name_does_not_break_the_rest() -> None:
    """I9. Attack: a sandbox leaves a repository in `a<line break>[core]…` for the next run."""
    evil = Inclusion("/x", ('/p/a"]\n[core]\nfsmonitor = evil\n/.git', "/p/\udc80/.git", "/p/.git"))
    text = text_of("", inclusions=[evil])
    text.encode()
    found = read(text)
    assert not any("fsmonitor" in key for key, _ in found)
    assert ("includeif.gitdir:/p/.git.path", "/x") in found


def test_a_repository_whose_config_is_read_only_is_not_asked_to_write_it() -> None:
    found = dict(read(config_text(READ_ONLY_CONFIG)))
    assert found == {"branch.autosetupmerge": "false", "push.default": "current"}
    assert config_text([]) == ""


def test_control_characters_in_a_value_survive() -> None:
    value = 'a\tb\nc\b"\\ '
    assert read(config_text([("x", "y\\z", "k", value)])) == [("x.y\\z.k", value)]


def test_commits_are_signed_by_the_program_with_the_key() -> None:
    policy = loaded("").policy
    lines = signing_lines("/etc/keyhole/git/sign", "ssh-ed25519 AAAA")
    text = system_config(policy, CommitIdentity(), None, lfs=False, signing=lines)
    assert '[gpg]\n\tformat = "ssh"\n[gpg "ssh"]\n\tprogram = "/etc/keyhole/git/sign"\n' in text
    assert 'signingKey = "key::ssh-ed25519 AAAA"' in text
    assert '[commit]\n\tgpgSign = "true"\n' in text
    assert "gpg" not in system_config(policy, CommitIdentity(), None, lfs=False)


def test_commits_are_signed_by_the_program_with_a_key_of_gnupg() -> None:
    lines = openpgp_lines("/etc/keyhole/git/sign", "A" * 40)
    text = system_config(loaded("").policy, CommitIdentity(), None, lfs=False, signing=lines)
    assert '[gpg]\n\tformat = "openpgp"\n\tprogram = "/etc/keyhole/git/sign"\n' in text
    assert f'signingKey = "{"A" * 40}"' in text
    assert 'gpgSign = "true"' in text
