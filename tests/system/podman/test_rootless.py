"""`keyhole run` with a Podman that an ordinary user runs: no root, and nobody else's files."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.app.selftest.selftest import _targets
from keyhole.sandbox import probe
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import line_of, until_nobody_is_in
from tests.rigs.waiting import PATIENCE, until
from tests.system.podman.conftest import Theirs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.containers.rootless import RootlessPodman

pytestmark = pytest.mark.outside

MAPPED = "import json; print(json.dumps([l.split() for l in open('/proc/self/uid_map')]))"


def test_what_a_command_writes_is_the_persons_and_their_home_is_their_own(
    plain: Theirs, podman: RootlessPodman
) -> None:
    """Its streams and its exit code too; and nothing of it is left in the engine."""
    script = "cat; id -u; ls -nd $HOME; echo kept >$HOME/x; echo kept >made; echo no >&2; exit 7"
    done = plain.run("sh", "-c", script, text=b"typed\n", flags=("-q",))
    who = plain.person
    assert (done.code, done.err) == (7, "no\n")
    assert done.lines[:2] == ["typed", str(who.uid)]
    mode, _, uid, gid, *_ = done.lines[2].split()
    assert (mode, uid, gid) == ("drwx------", str(who.uid), str(who.gid))
    made = (plain.directory / "made").stat()
    assert (made.st_uid, made.st_gid) == (who.uid, who.gid)
    until(lambda: podman.left() == [])
    assert not [each for each in (plain.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


def test_every_known_way_out_is_closed_and_root_inside_is_nobody(
    new_project: Callable[..., Theirs],
) -> None:
    """I2, by the same probe as for bubblewrap; its controls must succeed. And who would be root in
    this user namespace is one of the subordinate ids, not the person."""
    project = new_project('[egress]\nallow = ["allowed.example"]\n')
    with ExitStack() as stack:
        targets = _targets(stack) | {"allowed": "allowed.example", "contained": True}
        rows = project.python(Path(probe.__file__).read_text("utf-8"), json.dumps(targets))
    assert len(rows) > 60
    assert {row["id"]: row["seen"] for row in rows if not row["held"]} == {}
    # As the parent numbers them, in which the person is 0.
    lines = project.python(MAPPED)
    assert [str(project.person.uid), "0", "1"] in lines
    assert ["0", "1", str(project.person.uid)] in lines


FORKING = """
import json, os, signal
count = 0
try:
    while count < 60:
        if os.fork() == 0:
            signal.pause()
        count += 1
except BlockingIOError:
    pass
print(json.dumps(count), flush=True)
"""


def test_processes_are_bounded_without_a_group_and_what_is_not_bounded_is_said(
    new_project: Callable[..., Theirs], podman: RootlessPodman
) -> None:
    """I9. Control: with a larger limit all of them start."""
    few = new_project("[limits]\nprocesses = 20\ncpus = 1.5\n")
    done = few.run("python3", "-I", "-S", "-c", FORKING)
    assert done.code == 0, done
    assert 10 < int(done.out) < 20
    assert new_project().python(FORKING) == 60
    for bound, words in (("memory", "memory of all processes"), ("cpu", "limits.cpus")):
        assert (words in done.err) == (bound not in podman.engine.traits().bounds)


def test_a_run_that_is_killed_leaves_nobody_and_prune_removes_the_rest(
    plain: Theirs, podman: RootlessPodman
) -> None:
    """I2: with whoever held the door everything ends. Control: it lived before."""
    code = "import os,time; print(os.readlink('/proc/self/ns/net'), flush=True); time.sleep(300)"
    with plain.running("sh", "-c", '(sleep 300 &) ; exec python3 -c "$0"', code) as process:
        namespace = line_of(process.stdout)
        assert sorted(podman.left()) == ["holder", "sandbox"]
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    until_nobody_is_in(namespace)
    removed = json.loads(plain("prune", "--json").out)
    assert {each["what"] for each in removed} >= {"sandbox", "files"}
    until(lambda: podman.left() == [])


def test_a_podman_of_somebody_elses_is_refused(plain: Theirs, ground: Path) -> None:
    """I11: by root too, for whom it would write as its owner. Control: its owner, above."""
    directory = ground / "root"
    directory.mkdir()
    project = Theirs.make(this_person(directory), 0)
    host = {"CONTAINER_HOST": f"unix://{plain.runtime / 'podman/podman.sock'}"}
    flags = ("--runtime", "podman", "--image", "workbench:1")
    done = project.run("true", env=host, flags=flags)
    assert done.code == 125
    assert f"runs as {plain.person.uid}:{plain.person.gid}" in done.err
    assert done.err.count("\n") == 1, done.err


def test_where_it_keeps_images_is_never_the_sandboxs_to_write(
    new_project: Callable[..., Theirs], podman: RootlessPodman
) -> None:
    """I11: these are files of the person's, and the next sandbox's own programs are among them.
    Control: every other test."""
    project = new_project()
    trees = podman.engine.traits().trees
    assert trees
    assert {os.stat(tree).st_uid for tree in trees} == {project.person.uid}
    text = (project.directory / "keyhole.toml").read_text()
    written = text.replace("image", f'writable = ["{trees[0]}"]\nimage', 1)
    project.policy(written.removeprefix("version = 1\n"))
    done = project.run("true")
    assert done.code == 125
    assert "nothing that Keyhole trusts may be writable" in done.err
