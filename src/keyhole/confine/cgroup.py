"""A control group for one sandbox: memory, processes and CPU time, for all its processes (I9).

Called by the helper, which enters it, and by `helper.py`, which sets the limits before it sends the
launch. If no group can be made, only the limits of each process (`sandbox_init.py`) hold, as they
do beside a group; nothing here stops a run.

It must not make a group inside one that another program manages. Being root, or owning the files,
is no permission: that program (systemd, a container engine, a CI runner) counts and ends the
processes of its group by its own list, and the kernel's manual asks for one writer of each part of
the tree. Permission is a group that is all we can see of the tree, or one that systemd marked as
delegated.
"""

from __future__ import annotations

import contextlib
import os
import time

from msgspec import Struct

MEMORY, PROCESSES, CPU = "memory", "pids", "cpu"
"""The controllers, as the kernel names them."""

_USUAL = (MEMORY, PROCESSES)
_ALL = (*_USUAL, CPU)
"""Processors are limited only if the policy says so: in v1 that needs a further group."""

_PERIOD = 100_000
"""Microseconds over which a share of the processors is counted; the kernel's own default."""

OWN_PROCESSES = 4
"""Processes in the group that are not the sandbox's: bubblewrap, the first process, and two that
they or the helper start for a moment."""

_PREFIX = "keyhole-"
_EMPTY_SECONDS = 1.0
"""How long the last process of an ended sandbox may take to leave its group."""
_PAUSE_SECONDS = 0.005
_MARKS = ("trusted.delegate", "user.delegate")
"""systemd's marks of a delegated group; only root can read the first."""


class CgroupDirectory(Struct, frozen=True):
    """A directory in which a group with these controllers may be made."""

    parent: str
    controllers: tuple[str, ...]
    unified: bool
    """Whether it is cgroup v2."""


class Cgroup(Struct, frozen=True):
    """The directories of one sandbox's group, and its controllers."""

    directories: tuple[str, ...]
    bounds: frozenset[str]

    def remove(self) -> None:
        """Remove it, once no process is left in it; otherwise a later start does."""
        deadline = time.monotonic() + _EMPTY_SECONDS
        for directory in self.directories:
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)


def enter_cgroup(keeper: int, proc: str = "/proc/self") -> None:
    """Enter the group that `limit_child` will limit: the helper does so before its launch.

    The kernel takes some 10 ms to move a process, which pass here while the policy is read.
    """
    for place in find_cgroup_directories(proc):
        _sweep(place.parent)
        with contextlib.suppress(OSError):
            _enter(_directory(place, keeper, os.getpid()), os.getpid())


def remove_stale_cgroups(proc: str = "/proc/self") -> None:
    """Remove the groups of Keyholes that were killed. Called when a gateway starts, which makes no
    group itself."""
    for place in find_cgroup_directories(proc, _ALL):
        _sweep(place.parent)


def limit_child(
    pid: int, memory: int, processes: int, proc: str = "/proc/self", cpus: float = 0.0
) -> Cgroup:
    """Limit a child of ours that has no child yet, and all processes that it will start.

    Processors are limited if `cpus` is given. The child is not trusted: whether it has entered the
    group is read from the kernel.
    """
    directories: list[str] = []
    bounds: list[str] = []
    for place in find_cgroup_directories(proc, _ALL if cpus else _USUAL):
        directory = _directory(place, os.getpid(), pid)
        directories.append(directory)
        with contextlib.suppress(OSError):
            _enter(directory, pid)
            _limit(directory, place, memory, processes + OWN_PROCESSES)
            if CPU in place.controllers:
                _limit_time(directory, place, cpus)
            bounds += place.controllers
    return Cgroup(tuple(directories), frozenset(bounds))


def cgroup_of(pid: int, proc: str = "/proc/self") -> Cgroup:
    """The group of a child that may have entered it and was never limited, to be removed."""
    found = (_directory(place, os.getpid(), pid) for place in find_cgroup_directories(proc))
    return Cgroup(tuple(found), frozenset())


def _directory(place: CgroupDirectory, keeper: int, pid: int) -> str:
    return f"{place.parent}/{_PREFIX}{keeper}-{pid}"


def _enter(directory: str, pid: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    members = f"{directory}/cgroup.procs"
    if str(pid) not in _words(members):
        _write(members, pid)


def find_cgroup_directories(
    proc: str = "/proc/self", wanted: tuple[str, ...] = _USUAL
) -> tuple[CgroupDirectory, ...]:
    """The directories in which our groups may be made; none for a controller that is not
    available."""
    try:
        with open(f"{proc}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{proc}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.rstrip("\n").split(" ") for line in file if " - cgroup" in line]
    except OSError:
        return ()
    found: list[CgroupDirectory] = []
    for _, names, path in own:
        controllers = tuple(c for c in wanted if c in names.split(","))
        if names and not controllers:
            continue
        for mount in mounts:
            place = _place(mount, frozenset(controllers), path, wanted)
            if place is not None:
                found.append(place)
                break
    return tuple(found)


def _place(
    mount: list[str], controllers: frozenset[str], path: str, wanted: tuple[str, ...]
) -> CgroupDirectory | None:
    """The controllers that one mount offers at `path` of its hierarchy; none means v2."""
    root, point = mount[3], mount[4]
    kind, _, options = mount[mount.index("-") + 1 :][:3]
    if "\\" in root + point or ".." in path.split("/") or kind not in ("cgroup", "cgroup2"):
        return None
    if (kind == "cgroup2") == bool(controllers) or not controllers <= set(options.split(",")):
        return None
    top = root.rstrip("/")
    if path.rstrip("/") != top and not path.startswith(f"{top}/"):
        return None
    own = point + path.removeprefix(top).rstrip("/")
    if controllers:
        usable = _is_ours(own, point) and _may_fill(own)
        return CgroupDirectory(own, tuple(sorted(controllers)), unified=False) if usable else None
    # In v2 a group with child groups has no processes, so ours may have to be a sibling.
    for parent in (own, os.path.dirname(own)):
        if (parent == point or parent.startswith(f"{point}/")) and _is_ours(parent, point):
            given = _given_to_children(parent, wanted) if _may_fill(parent) else ()
            if given:
                return CgroupDirectory(parent, given, unified=True)
    return None


def _is_ours(directory: str, point: str) -> bool:
    if directory == point:
        return True
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, mark) == b"1":
                return True
    return False


def _may_fill(directory: str) -> bool:
    return os.access(directory, os.W_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _given_to_children(parent: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The controllers that child groups have; they are enabled here if the kernel permits."""
    control = f"{parent}/cgroup.subtree_control"
    try:
        there = _words(f"{parent}/cgroup.controllers")
        missing = [c for c in wanted if c in there and c not in _words(control)]
        if missing:
            with contextlib.suppress(OSError):  # EBUSY: processes are in it
                _write(control, " ".join(f"+{c}" for c in missing))
        given = _words(control)
    except OSError:
        return ()
    return tuple(c for c in wanted if c in given)


def _limit(directory: str, place: CgroupDirectory, memory: int, processes: int) -> None:
    if PROCESSES in place.controllers:
        _write(f"{directory}/pids.max", processes)
    if MEMORY not in place.controllers:
        return
    if place.unified:
        _write(f"{directory}/memory.max", memory)
        swap, amount = f"{directory}/memory.swap.max", 0
    else:
        _write(f"{directory}/memory.limit_in_bytes", memory)
        swap, amount = f"{directory}/memory.memsw.limit_in_bytes", memory  # of both together
    if os.path.exists(swap):  # not where the kernel does not count swap
        _write(swap, amount)


def _limit_time(directory: str, place: CgroupDirectory, cpus: float) -> None:
    quota = round(cpus * _PERIOD)
    if place.unified:
        _write(f"{directory}/cpu.max", f"{quota} {_PERIOD}")
    else:
        _write(f"{directory}/cpu.cfs_period_us", _PERIOD)
        _write(f"{directory}/cpu.cfs_quota_us", quota)


def _sweep(parent: str) -> None:
    """Remove the groups of Keyholes that were killed. A living one may not be in its group yet."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            keeper = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and keeper.isdecimal() and not _lives(int(keeper)):
                _removed(f"{parent}/{name}")


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _removed(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _words(path: str) -> list[str]:
    with open(path, encoding="ascii") as file:
        return file.read().split()


def _write(path: str, value: int | str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never made: the kernel has it or not
    try:
        os.write(descriptor, str(value).encode("ascii"))
    finally:
        os.close(descriptor)
