"""What a sandbox's processes may use together is bounded where a group may be made (I9)."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.confine import cgroup
from keyhole.sandbox.bwrap.helper import Helper
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project

MIB = 1 << 20


class Tree:
    """A host's control groups as files, with what /proc says of them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.proc = base / "proc"
        self.proc.mkdir()
        self._own: list[str] = []
        self._mounts: list[str] = []

    def hierarchy(self, name: str, own: str, root: str = "/", kind: str = "cgroup") -> Path:
        """Mount one; who runs is in `own`. The directory of that group."""
        point = self.base / (name or "unified")
        inside = point / own.removeprefix(root).strip("/")
        inside.mkdir(parents=True)
        options = f"rw,{name}" if name else "rw"
        self._own.append(f"{len(self._own)}:{name}:{own}\n")
        self._mounts.append(f"30 20 0:30 {root} {point} rw - {kind} {kind} {options}\n")
        (self.proc / "cgroup").write_text("".join(self._own))
        (self.proc / "mountinfo").write_text("".join(self._mounts))
        while inside != self.base:
            (inside / "cgroup.procs").touch()
            inside = inside.parent
        return point / own.removeprefix(root).strip("/")

    def places(self) -> dict[str, str]:
        """Where a group may be made, by the controller."""
        found = cgroup.find_cgroup_directories(str(self.proc))
        return {name: place.parent for place in found for name in place.controllers}

    def group(self, parent: Path, *files: str) -> Path:
        """The group of this very process, with files as the kernel makes them."""
        made = parent / f"keyhole-{os.getpid()}-{os.getpid()}"
        made.mkdir()
        for name in (*files, "cgroup.procs"):
            (made / name).touch()
        return made

    def enclose(self, cpus: float = 0.0) -> cgroup.Cgroup:
        """Bound ourselves, as far as files can."""
        return cgroup.limit_child(os.getpid(), 64 * MIB, 40, str(self.proc), cpus)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def unified(tree: Tree, own: str, has: str, gives: str) -> Path:
    """A hierarchy of v2, all groups of which have and give these controllers."""
    directory = tree.hierarchy("", own, kind="cgroup2")
    at = directory
    while at != tree.base:
        (at / "cgroup.controllers").write_text(has)
        (at / "cgroup.subtree_control").write_text(gives)
        at = at.parent
    return directory


def mark(directory: Path) -> None:
    """Delegate it, as systemd does."""
    try:
        os.setxattr(directory, "user.delegate", b"1")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("this file system has no attributes of users")


# ── whose groups they are ───────────────────────────────────────────────────────────────────────


def test_a_group_that_is_all_we_see_is_ours(tree: Tree) -> None:
    """A machine without a manager, or a container that was given its part of the tree."""
    pids = tree.hierarchy("pids", "/")
    memory = tree.hierarchy("memory", "/engine/1f", root="/engine/1f")
    assert tree.places() == {"pids": str(pids), "memory": str(memory)}


def test_nothing_is_made_in_a_group_that_somebody_else_manages(tree: Tree) -> None:
    """Root could write there. Control: the same group, once it is delegated."""
    memory = tree.hierarchy("memory", "/runner/1f")
    assert tree.places() == {}
    group = tree.enclose()
    assert (group.directories, group.bounds) == ((), frozenset())
    assert [path.name for path in memory.iterdir()] == ["cgroup.procs"]
    mark(memory)
    assert tree.places() == {"memory": str(memory)}


def test_a_hierarchy_that_cannot_be_seen_offers_nothing(tree: Tree) -> None:
    tree.hierarchy("pids", "/elsewhere", root="/engine")
    tree.hierarchy("memory", "/../outside")
    assert tree.places() == {}


def test_no_proc_is_no_place(tmp_path: Path) -> None:
    assert cgroup.find_cgroup_directories(str(tmp_path)) == ()


def test_an_unmarked_group_of_v2_is_a_manager_s(tree: Tree) -> None:
    """A user's session owns the files of its scopes, and yet its manager is their one writer."""
    own = unified(tree, "/user/app/some.scope", "memory pids", "memory pids")
    assert tree.places() == {}
    mark(own)
    assert tree.places() == {"memory": str(own), "pids": str(own)}


def test_in_v2_a_group_beside_us_will_do_where_the_parent_is_delegated(tree: Tree) -> None:
    own = unified(tree, "/service/main", "memory pids", "")
    (own.parent / "cgroup.subtree_control").write_text("memory pids")
    mark(own.parent)
    assert tree.places() == {"memory": str(own.parent), "pids": str(own.parent)}


def test_a_controller_that_v2_does_not_give_is_not_had(tree: Tree) -> None:
    unified(tree, "/", "hugetlb pids", "pids")
    assert set(tree.places()) == {"pids"}


# ── what is written ─────────────────────────────────────────────────────────────────────────────


def test_v1_bounds_memory_with_swap(tree: Tree) -> None:
    memory = tree.hierarchy("memory", "/")
    made = tree.group(memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    assert tree.enclose().bounds == {"memory"}
    assert (made / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (made / "memory.memsw.limit_in_bytes").read_text() == str(64 * MIB)
    assert (made / "cgroup.procs").read_text() == str(os.getpid())


def test_v2_bounds_memory_without_swap_and_processes(tree: Tree) -> None:
    own = unified(tree, "/", "memory pids", "memory pids")
    made = tree.group(own, "memory.max", "memory.swap.max", "pids.max")
    assert tree.enclose().bounds == {"memory", "pids"}
    assert (made / "memory.max").read_text() == str(64 * MIB)
    assert (made / "memory.swap.max").read_text() == "0"
    assert (made / "pids.max").read_text() == str(40 + cgroup.OWN_PROCESSES)


def test_processors_are_bounded_where_the_policy_does_and_else_not_even_asked_for(
    tree: Tree,
) -> None:
    own = unified(tree, "/", "cpu pids", "cpu pids")
    made = tree.group(own, "pids.max", "cpu.max")
    assert tree.enclose().bounds == {"pids"}
    assert (made / "cpu.max").read_text() == ""
    assert tree.enclose(1.5).bounds == {"pids", "cpu"}
    assert (made / "cpu.max").read_text() == "150000 100000"


def test_v1_bounds_processors_in_their_own_hierarchy(tree: Tree) -> None:
    made = tree.group(tree.hierarchy("cpu", "/"), "cpu.cfs_quota_us", "cpu.cfs_period_us")
    assert tree.enclose().directories == ()
    assert tree.enclose(0.01).bounds == {"cpu"}
    assert (made / "cpu.cfs_quota_us").read_text() == "1000"
    assert (made / "cpu.cfs_period_us").read_text() == "100000"


def test_a_bound_that_cannot_be_written_is_not_claimed(tree: Tree) -> None:
    """The kernel would have the file, were there a limit. Control: v1 with it, above."""
    tree.group(tree.hierarchy("memory", "/"))
    assert tree.enclose().bounds == frozenset()


def test_what_a_killed_keyhole_left_is_swept_and_a_living_one_s_is_not(tree: Tree) -> None:
    pids = tree.hierarchy("pids", "/")
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    for name in (f"keyhole-{ended.pid}-7", f"keyhole-{os.getppid()}-7", "keyhole-mine", "other"):
        (pids / name).mkdir()
    cgroup.enter_cgroup(os.getpid(), str(tree.proc))
    left = {path.name for path in pids.iterdir() if path.is_dir()}
    assert {f"keyhole-{os.getppid()}-7", "keyhole-mine", "other"} <= left
    assert f"keyhole-{ended.pid}-7" not in left


# ── the kernel's own ────────────────────────────────────────────────────────────────────────────

FORKING = """
import os, signal, sys
sys.stdin.readline()
children = []
for _ in range(30):
    try:
        pid = os.fork()
    except BlockingIOError:
        break
    if pid == 0:
        signal.pause()
    children.append(pid)
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(len(children), flush=True)
"""


def real(controller: str) -> str:
    """The place on this host where such a group may be made."""
    for place in cgroup.find_cgroup_directories(wanted=(controller,)):
        if controller in place.controllers:
            return place.parent
    pytest.skip(f"no group with {controller} is ours here")


@contextlib.contextmanager
def forking() -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-I", "-S", "-c", FORKING]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def forked(child: subprocess.Popen[bytes]) -> int:
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.flush()
    return int(line_of(child.stdout))


def test_the_kernel_stops_processes_of_a_group_and_of_no_other() -> None:
    """I9, by a group alone. Control: a neighbour outside of it, at the same time."""
    parent = real(cgroup.PROCESSES)
    with forking() as bounded, forking() as neighbour:
        group = cgroup.limit_child(bounded.pid, 1024 * MIB, 6)
        assert cgroup.PROCESSES in group.bounds
        assert forked(bounded) == 6 + cgroup.OWN_PROCESSES - 1
        assert forked(neighbour) == 30
        own = Path(parent, f"keyhole-{os.getpid()}-{bounded.pid}")
        assert own.is_dir()
        assert str(neighbour.pid) not in (own / "cgroup.procs").read_text().split()
    group.remove()
    assert not own.exists()


SPINNING = """
import sys, time
sys.stdin.readline()
while time.process_time() < 0.1:
    pass
"""


def test_the_kernel_makes_a_group_wait_that_had_its_share_of_the_processors() -> None:
    """I9, by the kernel's own count of how often it was held up."""
    parent = real(cgroup.CPU)
    words = [sys.executable, "-I", "-S", "-c", SPINNING]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        group = cgroup.limit_child(child.pid, 1024 * MIB, 6, cpus=0.1)
        assert cgroup.CPU in group.bounds
        child.communicate(b"go\n", PATIENCE)
        own = Path(parent, f"keyhole-{os.getpid()}-{child.pid}")
        waited = dict(line.split() for line in (own / "cpu.stat").read_text().splitlines())
    group.remove()
    assert int(waited["nr_throttled"]) > 3
    assert not own.exists()


def test_a_helper_that_is_never_told_leaves_no_group() -> None:
    parent = real(cgroup.PROCESSES)
    helper = Helper("halt:namespaces")
    os.waitpid(helper.pid, os.WUNTRACED)
    own = Path(parent, f"keyhole-{os.getpid()}-{helper.pid}")
    assert (own / "cgroup.procs").read_text().split() == [str(helper.pid)]
    helper.close()
    assert not own.exists()


# ── a run ───────────────────────────────────────────────────────────────────────────────────────


def groups(parent: str, keeper: int) -> list[Path]:
    return list(Path(parent).glob(f"keyhole-{keeper}-*"))


def until_buried(pids: list[str]) -> None:
    """The group lists no dead process, and cannot be removed before the last one is buried."""
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


SHOWING = "cat /proc/self/cgroup | tr '\\n' ' '; echo; ls /sys 2>&1 | head -1; read x"


@pytest.mark.outside
def test_a_run_is_in_its_group_sees_nothing_of_it_and_leaves_none(
    new_project: Callable[..., Project],
) -> None:
    """I9. Keyhole itself is not in the group; the sandbox can neither name nor reach it."""
    project = new_project("[limits]\nprocesses = 60\n")
    if project.person.uid != 0:
        pytest.skip("an ordinary user has no group here: see the next test")
    parent = real(cgroup.PROCESSES)
    with project.running("sh", "-c", SHOWING, stdin=subprocess.PIPE) as run:
        seen, listed = line_of(run.stdout), line_of(run.stdout)
        (group,) = groups(parent, run.pid)
        assert (group / "pids.max").read_text().strip() == str(60 + cgroup.OWN_PROCESSES)
        inside = (group / "cgroup.procs").read_text().split()
        assert len(inside) >= 3
        assert str(run.pid) not in inside
        assert group.name not in seen
        assert ":pids:/ " in seen or "0::/ " in seen
        assert "No such file" in listed
        assert run.stdin is not None
        run.stdin.write(b"\n")
        run.stdin.close()
        run.stdin = None
        run.wait(PATIENCE)
        assert groups(parent, run.pid) == []


@pytest.mark.outside
def test_a_killed_keyhole_s_group_is_gone_after_the_next_run(
    new_project: Callable[..., Project],
) -> None:
    project = new_project()
    if project.person.uid != 0:
        pytest.skip("an ordinary user has no group here: see the next test")
    parent = real(cgroup.PROCESSES)
    with project.running("sh", "-c", "echo up; read x", stdin=subprocess.PIPE) as run:
        assert line_of(run.stdout) == "up"
        (group,) = groups(parent, run.pid)
        members = (group / "cgroup.procs").read_text().split()
        assert members
        run.kill()
        run.wait(PATIENCE)
        until_buried(members)
    # Whether it is still there is not told: any run of this user on this host removes it, those of
    # the other tests that run at the same time included.
    assert project.run("true").code == 0
    assert not group.exists()


@pytest.mark.outside
def test_an_ordinary_user_without_a_delegated_group_runs_with_limits_of_each_process(
    new_project: Callable[..., Project],
) -> None:
    """I9. Falling back is no failure; `keyhole doctor` says which of the two it is."""
    project = new_project("[limits]\nprocesses = 40\n")
    if project.person.uid == 0:
        pytest.skip("root has a group: see above")
    limit = "import json, resource; print(json.dumps(resource.getrlimit(resource.RLIMIT_NPROC)))"
    assert project.python(limit) == [40, 40]
    assert "limits.cpus" not in project.run("true").err
    project.policy("[limits]\ncpus = 1.5\n")
    assert "processors are not bounded (limits.cpus)" in project.run("true").err


TAKING = """
import json, os, sys
gone, hold = os.pipe()
ends = []
for _ in range(int(sys.argv[1])):
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(hold)
        for end in (read, *ends):
            os.close(end)
        taken = b"x" * (96 << 20)
        os.write(write, b"x")
        os.read(gone, 1)
        os._exit(0)
    os.close(write)
    ends.append(read)
print(json.dumps(sum(len(os.read(end, 1)) for end in ends)))
"""


@pytest.mark.outside
def test_processes_that_take_too_much_memory_together_are_stopped(
    new_project: Callable[..., Project],
) -> None:
    """I9. Control: one of them alone gets what it wants. The suite's own process goes on."""
    real(cgroup.MEMORY)
    project = new_project("[limits]\nmemory = '256MiB'\n")
    assert project.python(TAKING, "1") == 1
    done = project.run("python3", "-I", "-S", "-c", TAKING, "4")
    assert done.code == 137 or int(done.out) < 4
