"""A control group for one sandbox: memory, processes and time, counted over all who run there (I9).

Called by the helper, which goes into it, and by `helper.py`, which sets the bounds before it tells
the helper what to start. Where no group can be had, the limits
of each process (`inside.py`) hold alone, as they do beside a group; nothing here stops a run.

It must not make a group in one that somebody else manages. Being root, or owning the files, is no
leave: whoever put us into a group (systemd, a container engine, a CI runner) counts and ends what
runs in it by its list, and the kernel's manual asks for one writer of each part of the tree. Leave
is a group that is all we can see of the tree, or one that systemd has marked as delegated.
"""

from __future__ import annotations

import contextlib
import os
import time

from keyhole.model.value import dataclass

MEMORY, PROCESSES, CPU = "memory", "pids", "cpu"
"""The controllers, as the kernel names them."""

_USUAL = (MEMORY, PROCESSES)
_ALL = (*_USUAL, CPU)
"""Processors are bounded only where the policy does: in v1 that takes a further group."""

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


@dataclass(frozen=True, slots=True)
class Place:
    """A directory in which a group may be made that bounds these."""

    parent: str
    controllers: tuple[str, ...]
    unified: bool
    """Whether it is cgroup v2."""


@dataclass(frozen=True, slots=True)
class Group:
    """The directories that are one sandbox's group, and what they bound."""

    directories: tuple[str, ...]
    bounds: frozenset[str]

    def remove(self) -> None:
        """Take it away, once nobody is left in it; else a later start does."""
        deadline = time.monotonic() + _EMPTY_SECONDS
        for directory in self.directories:
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)


def step_in(keeper: int, proc: str = "/proc/self") -> None:
    """Go into the group that `enclose` will bound: the helper, ahead of its launch.

    The kernel takes some 10 ms to move a process, which pass here while the policy is read.
    """
    for place in find_places(proc):
        _sweep(place.parent)
        with contextlib.suppress(OSError):
            _enter(_directory(place, keeper, os.getpid()), os.getpid())


def sweep(proc: str = "/proc/self") -> None:
    """Remove the groups of Keyholes that were killed: a start of a gateway, which makes none."""
    for place in find_places(proc, _ALL):
        _sweep(place.parent)


def enclose(
    pid: int, memory: int, processes: int, proc: str = "/proc/self", cpus: float = 0.0
) -> Group:
    """Bound a child of ours that has no child yet, and all that it will start.

    Processors are bounded where `cpus` says how many. Nothing of it is believed: whether it has
    stepped in is read from the kernel.
    """
    directories: list[str] = []
    bounds: list[str] = []
    for place in find_places(proc, _ALL if cpus else _USUAL):
        directory = _directory(place, os.getpid(), pid)
        directories.append(directory)
        with contextlib.suppress(OSError):
            _enter(directory, pid)
            _limit(directory, place, memory, processes + OWN_PROCESSES)
            if CPU in place.controllers:
                _limit_time(directory, place, cpus)
            bounds += place.controllers
    return Group(tuple(directories), frozenset(bounds))


def group_of(pid: int, proc: str = "/proc/self") -> Group:
    """The group of a child that may have stepped in and was never bounded, to be removed."""
    found = (_directory(place, os.getpid(), pid) for place in find_places(proc))
    return Group(tuple(found), frozenset())


def _directory(place: Place, keeper: int, pid: int) -> str:
    return f"{place.parent}/{_PREFIX}{keeper}-{pid}"


def _enter(directory: str, pid: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    members = f"{directory}/cgroup.procs"
    if str(pid) not in _words(members):
        _write(members, pid)


def find_places(proc: str = "/proc/self", wanted: tuple[str, ...] = _USUAL) -> tuple[Place, ...]:
    """Where a group of ours may be, none for a controller that cannot be had."""
    try:
        with open(f"{proc}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{proc}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.rstrip("\n").split(" ") for line in file if " - cgroup" in line]
    except OSError:
        return ()
    found: list[Place] = []
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
) -> Place | None:
    """What one mount offers to who is in `path` of that hierarchy; no controllers means v2."""
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
        return Place(own, tuple(sorted(controllers)), unified=False) if usable else None
    # In v2 who has groups below has no processes itself, so ours may have to be beside us.
    for parent in (own, os.path.dirname(own)):
        if (parent == point or parent.startswith(f"{point}/")) and _is_ours(parent, point):
            given = _given_to_children(parent, wanted) if _may_fill(parent) else ()
            if given:
                return Place(parent, given, unified=True)
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
    """The controllers that a group below has; asked for, where the kernel lets us."""
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


def _limit(directory: str, place: Place, memory: int, processes: int) -> None:
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


def _limit_time(directory: str, place: Place, cpus: float) -> None:
    quota = round(cpus * _PERIOD)
    if place.unified:
        _write(f"{directory}/cpu.max", f"{quota} {_PERIOD}")
    else:
        _write(f"{directory}/cpu.cfs_period_us", _PERIOD)
        _write(f"{directory}/cpu.cfs_quota_us", quota)


def _sweep(parent: str) -> None:
    """Remove what a Keyhole that was killed has left. A living one may not be in its group yet."""
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
