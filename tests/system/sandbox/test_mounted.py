"""The plan as bubblewrap mounts it: what hostile code can and cannot do with it (I1, I11)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.files.mount_plan import (
    Bind,
    Entry,
    Mask,
    MountKind,
    MountPlan,
    Symlink,
    TextFile,
    Tmpfs,
)

if TYPE_CHECKING:
    from tests.rigs.sandbox.worlds import World

BWRAP = shutil.which("bwrap")
WALLS = "--unshare-all --die-with-parent --clearenv --proc /proc --dev /dev --tmpfs /tmp".split()
pytestmark = pytest.mark.skipif(BWRAP is None, reason="no bubblewrap on this host")


def words(entry: Entry, scratch: Path) -> list[str]:
    """What the launcher does by descriptor, in bubblewrap's own words."""
    if isinstance(entry, Bind):
        return ["--bind" if entry.writable else "--ro-bind", entry.source, entry.target]
    if isinstance(entry, Symlink):
        return ["--symlink", entry.to, entry.target]
    if isinstance(entry, Mask | TextFile):
        place = scratch / str(len(list(scratch.iterdir())))
        if isinstance(entry, Mask) and entry.kind is MountKind.DIR:
            place.mkdir()
        else:
            place.write_text(entry.content if isinstance(entry, TextFile) else "")
        return ["--ro-bind", str(place), entry.target]
    assert isinstance(entry, Tmpfs)  # a plan has no other
    return ["--size", str(entry.size), "--tmpfs", entry.target]


def inside(world: World, plan: MountPlan, script: str) -> tuple[int, str]:
    """The status and output of a shell script in the project."""
    scratch = Path(world.top / "scratch")
    scratch.mkdir(exist_ok=True)
    arguments = [word for entry in plan.entries for word in words(entry, scratch)]
    done = subprocess.run(
        [str(BWRAP), *WALLS, *arguments, "--chdir", str(world.project), "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def plan(world: World) -> MountPlan:
    """A project with one of each, planned on this host's own system."""
    world.git("init", "-q")
    (world.project / ".git/hooks").mkdir(exist_ok=True)
    world.git("remote", "add", "origin", "https://me:hunter2@forge.example/a/b.git")
    world.write(".env", "PASSWORD=hunter2")
    world.write("keyhole.toml", "version = 1")
    world.write("sub/deep/.envrc", "use nix")
    world.write("plain/deep/file")
    return world.plan(root=Path("/"))


def test_the_project_can_be_worked_in(world: World, plan: MountPlan) -> None:
    script = """set -e
    echo hello > new && mv new plain/deep/newer && mv plain moved
    git -c safe.directory='*' -c user.name=a -c user.email=a@example.org add moved
    git -c safe.directory='*' -c user.name=a -c user.email=a@example.org commit -q -m x
    git -c safe.directory='*' remote get-url origin
    """
    assert inside(world, plan, script) == (0, "https://forge.example/a/b.git\n")
    assert (world.project / "moved/deep/newer").read_text() == "hello\n"


@pytest.mark.parametrize(
    "attack",
    [
        "echo x > .git/hooks/pre-commit",
        "mv .git/hooks .git/other",
        "rm -rf .git/hooks && mkdir .git/hooks && echo x > .git/hooks/pre-commit",
        "echo x >> .git/config",
        "mv plain/deep/file .git/config",
        "rm -f .git/config",
        "mv .git elsewhere",
        "echo x > keyhole.toml",
        "rm -f keyhole.toml",
        "mv sub other",
        "mv sub/deep sub/other",
        "echo x > sub/deep/.envrc",
        "rm -f .env",
    ],
)
def test_what_the_host_executes_cannot_be_replaced(
    world: World, plan: MountPlan, attack: str
) -> None:
    config = (world.project / ".git/config").read_bytes()
    status, _ = inside(world, plan, attack)
    assert status != 0
    assert (world.project / ".git/config").read_bytes() == config
    assert not list((world.project / ".git/hooks").glob("pre-commit"))
    assert (world.project / "keyhole.toml").read_text() == "version = 1"
    assert (world.project / "sub/deep/.envrc").read_text() == "use nix"


def test_no_credential_is_found_inside(world: World, plan: MountPlan) -> None:
    assert inside(world, plan, "cat .env; ls -d .env") == (0, ".env\n")
    status, output = inside(world, plan, "grep -r hunter2 . ; echo $?")
    assert (status, output) == (0, "1\n")


def test_a_hosts_socket_in_the_project_does_not_answer(world: World) -> None:
    name = "s"
    ask = f"perl -MIO::Socket::UNIX -e 'exit !IO::Socket::UNIX->new(Peer => \"{name}\")'"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(world.project / name))
        listener.listen()
        # The positive control: without a mask, a read-only bind would not stop it.
        bare = MountPlan(
            tuple(
                e
                for e in world.plan(root=Path("/")).entries
                if not isinstance(e, Mask) or not e.target.endswith("/s")
            ),
            (),
        )
        assert inside(world, bare, ask)[0] == 0
        assert inside(world, world.plan(root=Path("/")), ask)[0] != 0


def test_nothing_else_of_the_host_is_there(world: World, plan: MountPlan) -> None:
    world.write("../.bashrc")
    script = f"ls -A {world.home} /run /etc/shadow /sys /boot /root 2>/dev/null | grep -v '^$'"
    _, output = inside(world, plan, script)
    assert output == f"/run:\n{world.home}:\nwork\n"


def test_names_of_accounts_and_certificates_work(world: World, plan: MountPlan) -> None:
    status, output = inside(world, plan, "getent passwd 1000 && ls /etc/ssl/certs | head -n 1")
    assert status == 0
    assert output.startswith(f"dev:x:1000:1000::{world.home}:/bin/sh\n")
