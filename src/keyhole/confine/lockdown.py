"""The gateway restricts itself: afterwards it can serve, and little else, even if it is taken over.

The app calls it once in the data plane and once in the control process, after everything that needs
more rights: the keeper started, the control socket bound, the memory guarded. No other thread may
run, since most of this applies to a thread and its children, and no loop may exist: libuv would
keep an io_uring, and end the process when that fails. It cannot be undone.

Afterwards a data plane starts and executes nothing, looks into no process, opens no file outside of
the lists, and makes no Unix socket but pairs: the service manager's, too, is connected before. The
control process, which no hostile byte reaches, may still start a data plane. A
`LockdownResult` reports each restriction that the kernel does not support.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.confine import landlock
from keyhole.confine.gateway_filter import build_control_filter, build_gateway_filter, can_pin_peers
from keyhole.model.errors import ResourceUnusable, SetupFailed
from keyhole.system import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LIBRARIES = tuple(map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")))
"""Among them is the loader of every program."""

SYSTEM = tuple(
    map(
        Path,
        (
            # names and addresses; the whole directory, because its files are replaced by renaming
            "/etc",
            "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf", "/run/connman",
            "/run/netconfig", "/nix/store",
            # libraries that are loaded late: those of name services, modules of Python
            "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib",
            # certificates that /etc has links to, and time zones
            "/usr/share/ca-certificates", "/usr/share/pki", "/var/lib/ca-certificates",
            "/usr/share/zoneinfo",
            # peers of the control socket, and the number of processors
            "/proc", "/sys/devices/system/cpu",
            "/dev/null", "/dev/urandom",
        ),
    )
)  # fmt: skip
"""Paths that libraries of a gateway read by themselves, if they exist. Every user can read
them; a gateway of root could also read files in /etc that are root's alone."""

RESOLVER = Path("/etc/resolv.conf")
"""Often a link; where it leads is read, too."""


_RING = "anon_inode:[io_uring]"


class LockdownResult(Struct, frozen=True):
    """One wall around the gateway: whether it stands, and how far, or why not."""

    name: str
    on: bool
    note: str = ""


def lock_down(read: Sequence[Path], write: Sequence[Path]) -> tuple[LockdownResult, ...]:
    """Give up everything that a gateway does not need: `read` and `write` are trees or files,
    beside SYSTEM.

    Every tree to write must exist, and must hold nothing that others execute or trust (I11). Raises
    SetupFailed before anything is changed, and OSError.
    """
    _look_around()
    policy, why = _build_filter()
    # 1. Nothing is gained by anything that comes later.
    syscalls.no_new_privileges()
    held = [LockdownResult("no-new-privileges", on=True), _drop_capabilities()]
    # 2. Files.
    held += _restrict((*SYSTEM, RESOLVER.resolve(), *_modules(), *read), write)
    # 3. System calls, last of all: from here on, none of the above can be called.
    held.append(_load(policy, why))
    return tuple(held)


def lock_down_control(read: Sequence[Path], write: Sequence[Path]) -> tuple[LockdownResult, ...]:
    """The same for a control process. Its data planes inherit it from their first instruction on,
    and lock themselves down further.

    It still starts this very Python, and may read everything that a data plane imports. Raises as
    `lock_down` does.
    """
    _look_around()
    policy, why = _build_filter(build_control_filter)
    syscalls.no_new_privileges()
    _drop_capabilities()
    program = Path(sys.executable)
    # Without the file, a virtual environment is none.
    python = [program.parent.parent / "pyvenv.cfg", program.parent / "pyvenv.cfg"]
    known = (*SYSTEM, RESOLVER.resolve(), *python, *_packages(), *read)
    # The loader of a program is executed with it.
    execute = (program.resolve(), *LIBRARIES)
    files = _restrict(known, (*write, Path(os.devnull)), execute)
    held = [*files, _load(policy, why)]
    return tuple(LockdownResult(f"control-{each.name}", each.on, each.note) for each in held)


def _packages() -> list[Path]:
    """The directories that this Python imports from. The working directory may be on the path
    without a name, and is left out."""
    found = {sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path)}
    # A package may be a link out of its directory: some installers link what they keep elsewhere.
    for each in list(found):
        with contextlib.suppress(OSError), os.scandir(each) as entries:
            found |= {os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
    return [Path(each) for each in sorted(found)]


def _look_around() -> None:
    others = len(os.listdir("/proc/self/task")) - 1
    if others:
        raise SetupFailed(f"{others} other threads run, and would not be locked down")
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{number}") == _RING:
                raise SetupFailed("a loop has an io_uring, which would be its end")


def _drop_capabilities() -> LockdownResult:
    """All of them, in every set; memory that only a capability keeps locked gets its limit."""
    notes = []
    if not _may_keep_memory_locked():
        notes.append("memory is not locked any more")
    if not syscalls.bound_capabilities():
        notes.append("the bounding set, which concerns programs alone, is not ours to lower")
    syscalls.drop_over_exec()
    syscalls.lose_capabilities()
    return LockdownResult("capabilities", on=True, note="; ".join(notes))


def _may_keep_memory_locked() -> bool:
    """Locked memory beyond the limit is refused once the capability is gone, which would end us. So
    either the limit or the lock is removed."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
    except (OSError, ValueError):
        return not syscalls.unlock_memory()
    return True


def _restrict(
    read: Sequence[Path], write: Sequence[Path], execute: Sequence[Path] = ()
) -> list[LockdownResult]:
    if not landlock.find_abi():
        none = "the kernel has no Landlock, or was started without it"
        return [LockdownResult("files", on=False, note=none)]
    held = landlock.restrict(read, write, execute)
    note = f"Landlock ABI {held.abi}"
    return [LockdownResult("files", on=True, note="; ".join((note, *held.lacking)))]


def _modules() -> list[Path]:
    """The directories that Python has imported from, since some modules are imported at their first
    use.

    Not all of sys.path: the working directory may be on it.
    """
    files = {
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name != "__main__" and getattr(module, "__file__", None)
    }
    entries = {entry.rstrip("/") + "/" for entry in sys.path if os.path.isabs(entry)}
    used = {e for e in entries if any(file.startswith(e) for file in files)}
    # A package may be a link out of its directory: some installers link what they keep elsewhere.
    tops = {
        e + file[len(e) :].partition("/")[0] for e in used for file in files if file[: len(e)] == e
    }
    linked = {os.path.realpath(top) for top in tops if os.path.islink(top)}
    return [Path(each) for each in sorted(used | linked)]


def _build_filter(build: Callable[[], Any] = build_gateway_filter) -> tuple[Any, str]:
    try:
        return build(), ""
    except ResourceUnusable as missing:
        return None, str(missing)


def _load(policy: Any, why: str) -> LockdownResult:  # noqa: ANN401 - untyped library
    if policy is None:
        return LockdownResult("system-calls", on=False, note=why)
    policy.load()
    note = "" if can_pin_peers() else "processes of the user can be signalled: Linux before 6.5"
    return LockdownResult("system-calls", on=True, note=note)
