"""The sandbox's system-call filter: closes what an empty network namespace leaves open.

Built with libseccomp outside, loaded by bubblewrap as its last step before the first process. A
container engine gets the same rules in its own format.
"""

from __future__ import annotations

import ctypes.util
import errno
import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.confine import ioctls
from keyhole.model.errors import ResourceUnusable
from keyhole.system.packages import how_to_install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)

_NEW_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_CLONE_NEWTIME = 0x80  # for unshare alone: in clone's flags the bit belongs to the signal

# A program that meets ENOSYS takes another way; one that meets EPERM may give up.
ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2")
"""io_uring opens sockets past the filter on socket(); the flags of clone3 and the mode of openat2
are behind a pointer."""

_SET_ID_BITS = (0o4000, 0o2000)
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_OPENING = {"open": 1, "openat": 2}
_MAKING_FLAGS = (0o100, 0o20000000)  # O_CREAT, O_TMPFILE
_NUMBERS = {"fchmodat2": 452}
"""Calls that are younger than the libraries which would know their names."""

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

REFUSED = (
    "keyctl add_key request_key bpf userfaultfd perf_event_open "
    "setns mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr open_by_handle_at kexec_load kexec_file_load init_module finit_module "
    "delete_module acct swapon swapoff reboot quotactl settimeofday clock_settime "
    "lookup_dcookie syslog vhangup"
).split()


class Condition(Struct, frozen=True):
    """A condition on one argument: `op` as libseccomp names it."""

    argument: int
    op: str
    value: int
    masked: int = 0
    """For MASKED_EQ: the expected bits under the mask `value`."""


class Rule(Struct, frozen=True):
    """A call that fails with this error, if all conditions hold."""

    error: int
    call: str
    conditions: tuple[Condition, ...] = ()


def rules() -> Iterator[Rule]:
    """All rules; a call that no rule names is allowed."""
    yield from common_rules()
    for name in ("socket", "socketpair"):
        yield from _families(name)
    yield from _set_id()


def common_rules() -> Iterator[Rule]:
    """The rules that also fit a holder, which makes its network by netlink."""
    for name in ABSENT:
        yield Rule(errno.ENOSYS, name)
    for name in REFUSED:
        yield Rule(errno.EPERM, name)
    for flag in _NEW_NAMESPACES.values():
        for name in ("clone", "unshare"):
            yield Rule(errno.EPERM, name, (_has(0, flag),))
    yield Rule(errno.EPERM, "unshare", (_has(0, _CLONE_NEWTIME),))
    yield from _commands()


def _has(argument: int, bit: int) -> Condition:
    return Condition(argument, "MASKED_EQ", bit, bit)


def _commands() -> Iterator[Rule]:
    """ENOTTY is a kernel's answer to a command that it does not have: programs take another way."""
    for command in ioctls.REFUSED.values():
        same = Condition(1, "MASKED_EQ", ioctls.COMMAND_BITS, command)
        yield Rule(errno.EPERM, "ioctl", (same,))
    for mask, value in ioctls.blocks_not_allowed():
        yield Rule(errno.ENOTTY, "ioctl", (Condition(1, "MASKED_EQ", mask, value),))


def _families(call: str) -> Iterator[Rule]:
    """Every other family fails; a domain with upper bits set is larger than all of them."""
    yield Rule(errno.EAFNOSUPPORT, call, (Condition(0, "GT", max(_FAMILIES)),))
    for family in range(max(_FAMILIES)):
        if family not in _FAMILIES:
            yield Rule(errno.EAFNOSUPPORT, call, (Condition(0, "EQ", family),))
    # Netlink reaches audit, netfilter, crypto …; only routing (protocol 0) is harmless here.
    other = (Condition(0, "EQ", AF_NETLINK), Condition(2, "NE", 0))
    yield Rule(errno.EAFNOSUPPORT, call, other)


def _set_id() -> Iterator[Rule]:
    """No file that runs as its owner: a file written in the project belongs to the host's user or,
    through an idmapped mount, to root, and any other user of the host could run it (I11)."""
    for bit in _SET_ID_BITS:
        for name, argument in _MODE_ARGUMENT.items():
            yield Rule(errno.EPERM, name, (_has(argument, bit),))
        yield Rule(errno.EPERM, "fchmodat2", (_has(2, bit),))
        for name, argument in _OPENING.items():
            for flag in _MAKING_FLAGS:
                yield Rule(errno.EPERM, name, (_has(argument, flag), _has(argument + 1, bit)))


def build_filter() -> bytes:
    """The filter as a BPF program for this machine's architecture; others are killed."""
    sc = binding()
    policy = sc.SyscallFilter(sc.ALLOW)
    # 32-bit and x32 calls reach AF_VSOCK by socketcall: whatever is not native dies.
    policy.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)
    for rule in rules():
        call = _NUMBERS.get(rule.call, rule.call)
        conditions = [
            sc.Arg(c.argument, getattr(sc, c.op), c.value, c.masked)
            if c.op == "MASKED_EQ"
            else sc.Arg(c.argument, getattr(sc, c.op), c.value)
            for c in rule.conditions
        ]
        policy.add_rule(sc.ERRNO(rule.error), call, *conditions)
    with os.fdopen(os.memfd_create("keyhole-filter", os.MFD_CLOEXEC), "w+b") as file:
        policy.export_bpf(file)
        file.seek(0)
        return file.read()


def profile(wanted: Iterable[Rule] | None = None) -> str:
    """The same rules, or these, as an engine of containers reads them.

    With no architecture beside this machine's own: the engine would add none, and kills the others.
    """
    calls = [
        {
            "names": [rule.call],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": rule.error,
            "args": [
                {
                    "index": c.argument,
                    "value": c.value,
                    "valueTwo": c.masked,
                    "op": f"SCMP_CMP_{c.op}",
                }
                for c in rule.conditions
            ],
        }
        for rule in (rules() if wanted is None else wanted)
    ]
    native = _ARCHITECTURES[os.uname().machine]
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [native], "syscalls": calls}
    )


def binding() -> Any:  # noqa: ANN401 - untyped library
    """The binding, without the search for its library.

    It asks `find_library`, which starts ldconfig and a compiler: 60 ms of every run. The loader
    finds the library by its name just as well; where it does not, the search is made after all.
    """
    search = ctypes.util.find_library
    known = {"c": "libc.so.6", "seccomp": "libseccomp.so.2"}

    def by_name(name: str) -> str | None:
        return known.get(name)

    ctypes.util.find_library = by_name
    try:
        return importlib.import_module("pyseccomp")
    except (OSError, RuntimeError):
        ctypes.util.find_library = search
        try:
            return importlib.import_module("pyseccomp")
        except (OSError, RuntimeError, AttributeError) as error:
            raise ResourceUnusable(
                f"libseccomp cannot be used ({error}); {how_to_install(['libseccomp'])}"
            ) from None
    finally:
        ctypes.util.find_library = search
