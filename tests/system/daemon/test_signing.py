"""Commits made in a sandbox are signed outside, and verify on the host; nothing else is signed."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.services import keep, random_text
from tests.rigs.daemon.homes import ONE
from tests.rigs.daemon.openpgp import OpenPgpKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rigs.daemon.homes import Home
    from tests.rigs.sandbox.projects import Project

KEYGEN = shutil.which("ssh-keygen") or ""
GIT = shutil.which("git") or ""
GPG = shutil.which("gpg") or ""

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not KEYGEN or not GIT, reason="needs ssh-keygen and git"),
]

SIGNING = """
[sandbox]
git_user = "Ada <ada@corp.example>"
sign = "ssh:~/keys/agent.pub"
[services.forge]
hosts = ["one.example"]
forge = "generic"
inject = { basic_user = "robot" }
secret = "file:~/secrets/one"
repos = ["acme/w"]
push = ["agent/*"]
"""

BOTH_WAYS = pytest.mark.parametrize("flags", [(), ("--own-gateway",)], ids=["shared", "own"])

# Sends each text to where signatures are made, and prints the answers.
ASKING = """
import json, socket, sys
met = []
for text in json.loads(sys.argv[1]):
    data = text.encode("latin-1")
    try:
        with socket.create_connection(("192.0.2.53", 9117), 20) as door:
            door.sendall(len(data).to_bytes(4, "big") + data)
            met.append(door.makefile("rb").read().decode())
    except OSError as error:
        met.append(type(error).__name__)
print(json.dumps(met))
"""

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
ADA = "Ada <ada@corp.example> 1 +0000"
COMMIT = f"tree {TREE}\nauthor {ADA}\ncommitter {ADA}\n\nx\n"


@pytest.fixture
def signing(quarters: Home, tmp_path: Path) -> Iterator[Project]:
    """A project whose policy names a key, and a repository in it."""
    subprocess.run(
        [KEYGEN, "-q", "-t", "ed25519", "-N", "", "-C", "agent", "-f", tmp_path / "agent"],
        check=True,
    )
    project = quarters.project(SIGNING)
    for name in ("agent", "agent.pub"):
        keep(project, f"keys/{name}", (tmp_path / name).read_text())
    public = (tmp_path / "agent.pub").read_text()
    keep(project, "keys/allowed", f"ada@corp.example {public}")
    quarters.keep("secrets/one", random_text("one-"))
    done = project.run("git", "init", "-q", "work")
    assert done.code == 0, done
    yield project
    shutil.rmtree(project.directory / "work")


def verifies(project: Project, commit: str) -> str:
    """What git on the host says of a commit's signature."""
    done = subprocess.run(
        [GIT, "-c", "safe.directory=*", "-c",
         f"gpg.ssh.allowedSignersFile={project.home}/keys/allowed",
         "-C", project.directory / "work", "verify-commit", commit],
        capture_output=True, text=True, check=False, env={"HOME": str(project.home)},
    )  # fmt: skip
    return done.stderr


def signed(project: Project) -> list[dict[str, Any]]:
    said = project("log", "--json")
    return [each for each in json.loads(said.out) if each["kind"] == "sign"]


@BOTH_WAYS
def test_a_commit_verifies_on_the_host_and_a_tag_is_not_signed(
    signing: Project, flags: tuple[str, ...]
) -> None:
    """The log has the commit's id, and the key is nowhere inside."""
    # Before git 2.43 a tag is made without a signature where the program fails.
    script = (
        "cd work && git commit -q --allow-empty -m one && git rev-parse HEAD"
        " && { git tag -s v1 -m v1; ! git show v1 | grep SIGNATURE; }"
        " && ! git -c user.name=Eve commit -q --allow-empty -m two"
        " && ! ls ~/keys && git rev-parse HEAD"
    )
    done = signing.run("sh", "-c", script, flags=flags)
    assert done.code == 0, done.err
    first, last = done.lines
    assert first == last
    assert 'Good "git" signature for ada@corp.example' in verifies(signing, first)
    events = signed(signing)[-3:]
    assert [each["reason"] for each in events] == [
        "commit-signed", "commit-unsigned", "commit-unsigned",
    ]  # fmt: skip
    assert events[0]["details"]["commit"] == first
    assert "keyhole: not signed: only commits are signed, no tags" in done.err


@pytest.mark.skipif(not GPG, reason="needs gpg")
@BOTH_WAYS
def test_a_key_of_gpg_signs_and_verifies_on_the_host(
    quarters: Home, flags: tuple[str, ...]
) -> None:
    """The key stays in the host's keyring. A tag is not signed with it either. I11: gpg.conf, which
    can name programs, is not read. Control: gpg itself stops at this one."""
    with OpenPgpKey.make(quarters.person, quarters.directory) as key:
        settings = quarters.directory / ".gnupg/gpg.conf"
        settings.write_text("no-such-setting\n")
        assert "gpg.conf:1: invalid option" in key.run("gpg", "--list-keys")
        project = quarters.project(SIGNING.replace("ssh:~/keys/agent.pub", f"gpg:{key.id}"))
        quarters.keep("secrets/one", random_text("one-"))
        script = (
            "git init -q work; cd work && git commit -q --allow-empty -m one && git rev-parse HEAD"
            " && ! git tag -s v1 -m v1 && ! ls ~/.gnupg"
        )
        done = project.run("sh", "-c", script, flags=flags)
        assert done.code == 0, done.err
        settings.unlink()
        shown = key.run("git", "-C", str(project.directory / "work"), "verify-commit", "HEAD")
        assert 'Good signature from "Ada (agent) <ada@corp.example>"' in shown
        assert signed(project)[-2]["details"]["commit"] == done.lines[0]
        assert [e["reason"] for e in signed(project)[-2:]] == ["commit-signed", "commit-unsigned"]
        shutil.rmtree(project.directory / "work")


@BOTH_WAYS
def test_bytes_that_hide_something_are_not_signed(signing: Project, flags: tuple[str, ...]) -> None:
    """Control: the plain commit among them is."""
    hostile = [
        f"object {TREE}\ntype commit\ntag v1\ntagger {ADA}\n\nv1\n",
        f"certificate version 0.1\npusher {ADA}\n\n{TREE} {TREE} refs/heads/main\n",
        COMMIT.replace(f"committer {ADA}", f"committer {ADA}\ncommitter Eve <e@x.example> 1 +0000"),
        COMMIT.replace("\n\nx", "\n more\n\nx"),
        COMMIT.replace("\n\nx", "\nmergetag object 1\n\nx"),
        COMMIT.replace("x\n", "\0x\n"),
        COMMIT.replace("committer Ada", "committer Eve"),
        COMMIT + "x" * 40_000,
        "-n file",
        "",
    ]
    met = signing.python(ASKING, json.dumps([COMMIT, *hostile, COMMIT]), flags=flags)
    assert [each[:3] for each in met] == ["ok\n", *["no\n"] * len(hostile), "ok\n"]
    assert met[0].startswith("ok\n-----BEGIN SSH SIGNATURE-----")


def test_a_sandbox_without_a_key_has_no_place_to_ask(quarters: Home) -> None:
    """Control: the tests above. The policy grants no push."""
    met = quarters.project(ONE).python(ASKING, json.dumps([COMMIT]))
    assert met in (["ConnectionResetError"], [""])


def test_a_key_that_the_sandbox_can_write_is_refused(quarters: Home, signing: Project) -> None:
    """I11: code inside would choose another key of the person's agent."""
    shutil.copy(signing.home / "keys/agent.pub", signing.directory / "agent.pub")
    wrong = SIGNING.replace("~/keys/agent.pub", f"{signing.directory}/agent.pub")
    done = quarters.project(wrong).run("true")
    (signing.directory / "agent.pub").unlink()
    assert done.code == 125
    assert "is where the sandbox can write" in done.err


def test_a_key_that_is_missing_is_said_with_what_makes_one(quarters: Home) -> None:
    done = quarters.project(SIGNING.replace("agent.pub", "none.pub")).run("true")
    assert done.code == 125
    assert "is no public key; `ssh-keygen -t ed25519 -f" in done.err
