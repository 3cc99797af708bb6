"""The gateway locks itself in: from here on it can serve, and little else, whoever steers it.

Called by the app once in the data plane, and once in the control process, when everything is open
that needs more: the keeper started, the control socket bound, the memory guarded. No other thread
may run, since most of this holds for a thread and those that it starts, and no loop be made: libuv
would keep an io_uring of it, and end the process when that does not answer any more. There is no
way back.

Afterwards a data plane starts and executes nothing, looks into no process, opens no file outside of
the lists, and makes no Unix socket but pairs: the service manager's, too, is connected before. The
control process, which no hostile byte reaches, may still start a data plane. What a kernel cannot
hold is said in a `Protection`, not passed over.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox import landlock, syscalls
from keyhole.sandbox.gatewayfilter import (
    build_control_filter,
    build_gateway_filter,
    can_pin_peers,
)
from keyhole.sandbox.programs import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LIBRARIES = tuple(map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")))
"""Among them is the loader of every program."""

SYSTEM = tuple(
    map(
        Path,
        (
            # names and addresses; whole, since what is in it is replaced by renaming
            "/etc",
            "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf", "/run/connman",
            "/run/netconfig", "/nix/store",
            # libraries that are loaded late: those of name services, modules of Python
            "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib",
            # certificates that /etc has links to, and time zones
            "/usr/share/ca-certificates", "/usr/share/pki", "/var/lib/ca-certificates",
            "/usr/share/zoneinfo",
            # who asks on the control socket, and how many processors there are
            "/proc", "/sys/devices/system/cpu",
            "/dev/null", "/dev/urandom",
        ),
    )
)  # fmt: skip
"""What libraries of a gateway read by themselves, where it is there. All of it can be read by
everybody, but for what root keeps in /etc to itself, if the gateway is root's."""

RESOLVER = Path("/etc/resolv.conf")
"""Often a link; where it leads is read, too."""


_RING = "anon_inode:[io_uring]"


class NotAlone(Exception):
    """Something is there already that would not be held, or would break: a thread, a loop."""


@dataclass(frozen=True, slots=True)
class Protection:
    """One wall around the gateway: whether it stands, and how far, or why not."""

    name: str
    on: bool
    note: str = ""


def lock_down(read: Sequence[Path], write: Sequence[Path]) -> tuple[Protection, ...]:
    """Give up all but what a gateway needs: `read` and `write` are trees or files, beside SYSTEM.

    Every tree to write must be there; may it hold nothing that others execute or trust (I11).
    Raises NotAlone before anything is changed, and OSError.
    """
    _look_around()
    policy, why = _build_filter()
    # 1. Nothing is gained by anything that comes later.
    syscalls.no_new_privileges()
    held = [Protection("no-new-privileges", on=True), _drop_capabilities()]
    # 2. Files.
    held += _restrict((*SYSTEM, RESOLVER.resolve(), *_modules(), *read), write)
    # 3. System calls, last of all: from here on, none of the above can be called.
    held.append(_load(policy, why))
    return tuple(held)


def lock_down_control(read: Sequence[Path], write: Sequence[Path]) -> tuple[Protection, ...]:
    """The same for a control process, whose data planes are held by it from their first instruction
    on, and hold themselves more narrowly.

    It still starts this very Python, and what a data plane imports may be read. Raises as
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
    return tuple(Protection(f"control-{each.name}", each.on, each.note) for each in held)


def _packages() -> list[Path]:
    """Where this Python imports from. Not a directory that it was started in, which may be on the
    path without a name."""
    found = {sys.prefix, sys.base_prefix, *filter(os.path.isabs, sys.path)}
    # A package may be a link out of its directory: some installers link what they keep elsewhere.
    for each in list(found):
        with contextlib.suppress(OSError), os.scandir(each) as entries:
            found |= {os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
    return [Path(each) for each in sorted(found)]


def _look_around() -> None:
    others = len(os.listdir("/proc/self/task")) - 1
    if others:
        raise NotAlone(f"{others} other threads run, and would not be locked down")
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{number}") == _RING:
                raise NotAlone("a loop has an io_uring, which would be its end")


def _drop_capabilities() -> Protection:
    """All of them, in every set; memory that only a capability keeps locked gets its limit."""
    notes = []
    if not _may_keep_memory_locked():
        notes.append("memory is not locked any more")
    if not syscalls.bound_capabilities():
        notes.append("the bounding set, which concerns programs alone, is not ours to lower")
    syscalls.drop_over_exec()
    syscalls.lose_capabilities()
    return Protection("capabilities", on=True, note="; ".join(notes))


def _may_keep_memory_locked() -> bool:
    """Locked memory beyond the limit is refused as soon as the capability is gone: it would be our
    end. So the limit goes, or the lock."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
    except (OSError, ValueError):
        return not syscalls.unlock_memory()
    return True


def _restrict(
    read: Sequence[Path], write: Sequence[Path], execute: Sequence[Path] = ()
) -> list[Protection]:
    if not landlock.find_abi():
        none = "the kernel has no Landlock, or was started without it"
        return [Protection("files", on=False, note=none)]
    held = landlock.restrict(read, write, execute)
    note = f"Landlock ABI {held.abi}"
    return [Protection("files", on=True, note="; ".join((note, *held.lacking)))]


def _modules() -> list[Path]:
    """Where Python has imported from, since some modules are imported when they are first needed.

    Not all of sys.path: the directory that this was started in may be on it.
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
    except Missing as missing:
        return None, str(missing)


def _load(policy: Any, why: str) -> Protection:  # noqa: ANN401 - untyped library
    if policy is None:
        return Protection("system-calls", on=False, note=why)
    policy.load()
    note = "" if can_pin_peers() else "processes of the user can be signalled: Linux before 6.5"
    return Protection("system-calls", on=True, note=note)
