"""Commits made in a container are signed outside, and verify on the host."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.services import keep, random_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.system.containers.conftest import Boxed

KEYGEN = shutil.which("ssh-keygen") or ""
GIT = shutil.which("git") or ""

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not KEYGEN or not GIT, reason="needs ssh-keygen and git"),
]

FORGE = """
[services.forge]
hosts = ["one.example"]
forge = "generic"
inject = { basic_user = "robot" }
secret = "file:~/secrets/one"
repos = ["acme/w"]
push = ["agent/*"]
"""
SIGN = 'git_user = "Ada <ada@corp.example>"\nsign = "ssh:~/keys/agent.pub"'


def test_a_commit_of_a_container_verifies_on_the_host(
    new_project: Callable[..., Boxed], tmp_path: Path
) -> None:
    """I1: the key is not inside. Control: another committer's commit is not signed."""
    words = [KEYGEN, "-q", "-t", "ed25519", "-N", "", "-C", "agent", "-f", f"{tmp_path}/agent"]
    subprocess.run(words, check=True)
    project = new_project(FORGE, more=SIGN)
    for name in ("agent", "agent.pub"):
        keep(project, f"keys/{name}", (tmp_path / name).read_text())
    keep(project, "secrets/one", random_text("one-"))
    public = (tmp_path / "agent.pub").read_text()
    keep(project, "keys/allowed", f"ada@corp.example {public}")
    script = (
        "git init -q work && cd work && git commit -q --allow-empty -m one && git rev-parse HEAD"
        " && ! git -c user.name=Eve commit -q --allow-empty -m two && ! test -e ~/keys"
    )
    done = project.shell(script)
    assert done.code == 0, done.err
    verified = subprocess.run(
        [GIT, "-c", "safe.directory=*", "-c",
         f"gpg.ssh.allowedSignersFile={project.home}/keys/allowed",
         "-C", project.directory / "work", "verify-commit", done.lines[0]],
        capture_output=True, text=True, check=False, env={"HOME": str(project.home)},
    )  # fmt: skip
    assert 'Good "git" signature for ada@corp.example' in verified.stderr
    reasons = [e["reason"] for e in project.events() if e["kind"] == "sign"]
    assert reasons == ["commit-signed", "commit-unsigned"]
