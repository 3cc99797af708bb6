"""The system-call filter: what an empty network namespace does not close (facts: alive inside).

Built with libseccomp outside, loaded by bubblewrap as its last step before the first process.
"""

from __future__ import annotations

import ctypes.util
import errno
import importlib
import os
from typing import Any

from keyhole.sandbox.programs import Missing

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

_LOW_32_BITS = 0xFFFFFFFF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

# A program that meets ENOSYS takes another way; one that meets EPERM may give up.
ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2")
"""io_uring opens sockets past the filter on socket(); the flags of clone3 and the mode of openat2
are behind a pointer."""

_SET_ID_BITS = (0o4000, 0o2000)
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_OPENING = {"open": 1, "openat": 2}
_MAKING_FLAGS = (0o100, 0o20000000)  # O_CREAT, O_TMPFILE
_FCHMODAT2 = 452  # younger than the libraries that would know its name

REFUSED = (
    "keyctl add_key request_key bpf userfaultfd perf_event_open "
    "setns mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr open_by_handle_at kexec_load kexec_file_load init_module finit_module "
    "delete_module acct swapon swapoff reboot quotactl settimeofday clock_settime "
    "lookup_dcookie syslog vhangup"
).split()


def build_filter() -> bytes:
    """The filter as a BPF program for this machine's architecture; others are killed."""
    sc = binding()
    policy = sc.SyscallFilter(sc.ALLOW)
    # 32-bit and x32 calls reach AF_VSOCK by socketcall: whatever is not native dies.
    policy.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)
    for name in ABSENT:
        policy.add_rule(sc.ERRNO(errno.ENOSYS), name)
    for name in REFUSED:
        policy.add_rule(sc.ERRNO(errno.EPERM), name)
    for name in ("socket", "socketpair"):
        _allow_families(sc, policy, name)
    for flag in _NEW_NAMESPACES.values():
        for name in ("clone", "unshare"):
            policy.add_rule(sc.ERRNO(errno.EPERM), name, sc.Arg(0, sc.MASKED_EQ, flag, flag))
    newtime = sc.Arg(0, sc.MASKED_EQ, _CLONE_NEWTIME, _CLONE_NEWTIME)
    policy.add_rule(sc.ERRNO(errno.EPERM), "unshare", newtime)
    for request in (_TIOCSTI, _TIOCLINUX):
        # The kernel looks at 32 bits of the request; a set upper bit must not pass the filter.
        low = sc.Arg(1, sc.MASKED_EQ, _LOW_32_BITS, request)
        policy.add_rule(sc.ERRNO(errno.EPERM), "ioctl", low)
    _refuse_set_id(sc, policy)
    with os.fdopen(os.memfd_create("keyhole-filter", os.MFD_CLOEXEC), "w+b") as file:
        policy.export_bpf(file)
        file.seek(0)
        return file.read()


def _refuse_set_id(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """No file that runs as its owner: what is written in the project is the host's user's, or,
    through an idmapped mount, root's, and any other user of the host could run it (I11)."""
    refused = sc.ERRNO(errno.EPERM)
    for bit in _SET_ID_BITS:
        for name, argument in _MODE_ARGUMENT.items():
            policy.add_rule(refused, name, sc.Arg(argument, sc.MASKED_EQ, bit, bit))
        policy.add_rule(refused, _FCHMODAT2, sc.Arg(2, sc.MASKED_EQ, bit, bit))
        for name, argument in _OPENING.items():
            mode = sc.Arg(argument + 1, sc.MASKED_EQ, bit, bit)
            for flag in _MAKING_FLAGS:
                making = sc.Arg(argument, sc.MASKED_EQ, flag, flag)
                policy.add_rule(refused, name, making, mode)


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
            raise Missing(
                f"libseccomp cannot be used ({error}): apt-get install libseccomp2, "
                "dnf install libseccomp or pacman -S libseccomp"
            ) from None
    finally:
        ctypes.util.find_library = search


def _allow_families(sc: Any, policy: Any, call: str) -> None:  # noqa: ANN401 - untyped library
    """Every other family fails; a domain with upper bits set is larger than all of them."""
    refused = sc.ERRNO(errno.EAFNOSUPPORT)
    policy.add_rule(refused, call, sc.Arg(0, sc.GT, max(_FAMILIES)))
    for family in range(max(_FAMILIES)):
        if family not in _FAMILIES:
            policy.add_rule(refused, call, sc.Arg(0, sc.EQ, family))
    # Netlink reaches audit, netfilter, crypto …; only routing (protocol 0) is harmless here.
    policy.add_rule(refused, call, sc.Arg(0, sc.EQ, AF_NETLINK), sc.Arg(2, sc.NE, 0))
