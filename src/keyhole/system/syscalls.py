"""System calls that Python does not offer, for the helper's single thread.

A number that stands alone is the same on x86_64 and aarch64: the call is younger than the unified
table.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}

_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MOUNT_ATTR_IDMAP = 0x00100000

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2

_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8

_NS_GET_USERNS = 0xB701

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_INSTRUCTION = 8  # bytes of a struct sock_filter
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_UNSPECIFIED = bytes(16)
"""A struct sockaddr of the family AF_UNSPEC."""

CAP_NET_ADMIN = 12
_CAPABILITY_VERSION_3 = 0x20080522


def dissolve_connection(descriptor: int) -> None:
    """End a TCP connection at once; its socket can be connected anew (connect(2), AF_UNSPEC)."""
    _check(_libc.connect(descriptor, _UNSPECIFIED, len(_UNSPECIFIED)), "connect")


def rename_new(where: int, name: str, to: str) -> None:
    """Rename an entry of an open directory, unless one has the new name. Raises FileExistsError,
    and OSError with EINVAL where the file system cannot."""
    _rename(where, name, to, _RENAME_NOREPLACE)


def exchange_names(where: int, one: str, other: str) -> None:
    """Exchange two entries of an open directory, in one step. Raises OSError with EINVAL where the
    file system cannot."""
    _rename(where, one, other, _RENAME_EXCHANGE)


def _rename(where: int, name: str, to: str, flags: int) -> None:
    number = _SYS_RENAMEAT2[os.uname().machine]
    words = (where, os.fsencode(name), where, os.fsencode(to), flags)
    _check(_libc.syscall(number, *words), "renameat2")


def unshare(flags: int) -> None:
    """Leave the namespaces of these kinds for new ones."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(descriptor: int, kind: int) -> None:
    """Join a namespace, which must be of this kind."""
    _check(_libc.setns(descriptor, kind), "setns")


def owner_of_namespace(descriptor: int) -> int:
    """The user namespace that owns a namespace, as a descriptor (ioctl_ns(2))."""
    return fcntl.ioctl(descriptor, _NS_GET_USERNS)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, however it ends, or now if it already has (I2)."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl(PDEATHSIG)")
    if os.getppid() != parent:
        raise RuntimeError("the parent is gone")


def name_process(name: bytes) -> None:
    """Set the kernel's name of this process (the main thread's), 15 bytes at most."""
    _check(_libc.prctl(_PR_SET_NAME, name, 0, 0, 0), "prctl(NAME)")


def no_new_privileges() -> None:
    """Gain no privilege by any later exec."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def not_traceable() -> None:
    """Forbid other processes of the same user to trace or read this one."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(DUMPABLE)")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def load_filter(instructions: bytes) -> None:
    """Load a filter of system calls, for this process and every later program (seccomp(2))."""
    program = _Program(len(instructions) // _INSTRUCTION, instructions)
    result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    _check(result, "prctl(SECCOMP)")


def keep_over_exec(capabilities: tuple[int, ...]) -> None:
    """Pass these capabilities, held in this user namespace, to programs that are exec'd."""
    machine = os.uname().machine
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc.syscall(_SYS_CAPGET[machine], header, data), "capget")
    words = list(struct.unpack("=6I", data.raw))
    words[2] = sum(1 << c for c in capabilities)  # inheritable, of the lower 32
    _check(_libc.syscall(_SYS_CAPSET[machine], header, struct.pack("=6I", *words)), "capset")
    for capability in capabilities:
        _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0), "ambient")


def lose_capabilities() -> None:
    """Give up all capabilities, in any user namespace."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.syscall(_SYS_CAPSET[os.uname().machine], header, bytes(24)), "capset")


def drop_over_exec() -> None:
    """Pass no capability to the next program."""
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient")


def bound_capabilities() -> bool:
    """Let no later program gain a capability; False if this process may not do that."""
    capability = 0
    while (held := _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if held and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            return False
        capability += 1
    return True


def unlock_memory() -> bool:
    """Allow swapping again. Returns whether any pages were locked."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        locked = any(line.startswith("VmLck:") and line.split()[1] != "0" for line in file)
    _check(_libc.munlockall(), "munlockall")
    return locked


def make_mounts_private() -> None:
    """Hide later mounts from all other mount namespaces."""
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount(private)")


def mount_tmpfs(target: str) -> None:
    """An empty file system in memory."""
    flags = _MS_NOSUID | _MS_NODEV
    _check(_libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, b"mode=0755"), "tmpfs")


def mount_overlay(target: str, lower: str, layer: str) -> None:
    """A view of `lower` whose changes go to `layer`. The paths are ours and hold no comma or colon.

    `userxattr`, which an unprivileged user needs (Linux 5.11), also turns off redirects and
    metacopies.
    """
    upper, work = (os.path.join(layer, name) for name in ("upper", "work"))
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    flags = _MS_NOSUID | _MS_NODEV
    result = _libc.mount(b"overlay", os.fsencode(target), b"overlay", flags, options.encode())
    _check(result, "mount(overlay)")


def clone_tree(descriptor: int) -> int:
    """A detached copy of the mounts at an opened path, as a descriptor."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
    return _check(_libc.syscall(_SYS_OPEN_TREE, descriptor, b"", flags), "open_tree")


def attach_tree(tree: int, target: str) -> None:
    """Mount a detached tree."""
    number = _SYS_MOVE_MOUNT
    result = _libc.syscall(
        number, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH
    )
    _check(result, f"move_mount({target})")


def attach_tree_at(tree: int, target: int) -> None:
    """Mount a detached tree at an opened path, so that no path is resolved."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _check(_libc.syscall(_SYS_MOVE_MOUNT, tree, b"", target, b"", flags), "move_mount")


def restrict_tree(tree: int, *, read_only: bool) -> None:
    """Let a detached tree have no device and no set-user-ID program (kernel 5.12)."""
    wanted = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | (_MOUNT_ATTR_RDONLY if read_only else 0)
    _set_attributes(tree, struct.pack("=QQQQ", wanted, 0, 0, 0), "mount_setattr(restrict)")


def detach_mount(target: str) -> None:
    """Remove a mount at once, even if it is in use; a link is not followed."""
    flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
    _check(_libc.umount2(os.fsencode(target), flags), f"umount2({target})")


def map_owner(tree: int, user_namespace: int) -> None:
    """Show a detached tree's owners as the user namespace maps them (kernel 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    _set_attributes(tree, attributes, "mount_setattr(idmap)")


def _set_attributes(tree: int, attributes: bytes, what: str) -> None:
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    result = _libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes))
    _check(result, what)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return int(result)
