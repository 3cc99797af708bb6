"""Landlock: restricts the files that this thread and its children can reach (landlock(7)).

Called by `lockdown.py`. None of our libraries has a binding, and glibc has no wrappers; the three
calls are few lines. Rights that a kernel does not know yet are left out, and `LandlockResult`
reports that.

A rule holds on to the file that a path named when it was made, not to the name: a file that is
replaced by a rename must be granted by its directory.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Younger than the unified table: the same on x86_64 and aarch64.
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << n for n in range(6))
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
"""The accesses of the first ABI: those above, and making links, pipes, sockets and devices."""

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that can be granted on a file that is no directory; more is EINVAL."""

_READING = _READ_FILE | _READ_DIR
# No link, pipe, socket or device: another program that meets one in our trees may be less careful.
_WRITING = (
    _READING | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
)

_BIND_TCP = 1
_SCOPE_ABSTRACT_UNIX_SOCKET = 1

_ABI_REFER, _ABI_TRUNCATE, _ABI_NET, _ABI_IOCTL, _ABI_SCOPE = 2, 3, 4, 5, 6
"""Since Linux 5.19, 6.2, 6.7, 6.10 and 6.12."""

_LATER = ((_ABI_REFER, _REFER), (_ABI_TRUNCATE, _TRUNCATE), (_ABI_IOCTL, _IOCTL_DEV))
_LACKING = (
    (_ABI_REFER, "files cannot be moved between directories"),
    (_ABI_TRUNCATE, "truncating is not held back"),
    (_ABI_NET, "listening on TCP is not held back"),
    (_ABI_IOCTL, "devices may be controlled"),
    (_ABI_SCOPE, "abstract sockets may be reached"),
)
"""Restrictions that a kernel below an ABI lacks, in words."""

_libc = ctypes.CDLL(None, use_errno=True)


class LandlockResult(Struct, frozen=True):
    """The result of the restriction."""

    abi: int
    lacking: tuple[str, ...]
    """In words, the restrictions that this kernel lacks."""


def find_abi() -> int:
    """The kernel's version of Landlock, from 1; 0 if it has none, or was started without it."""
    return max(0, int(_libc.syscall(_SYS_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)))


def restrict(
    read: Iterable[Path], write: Iterable[Path], execute: Iterable[Path] = ()
) -> LandlockResult:
    """Restrict this thread and those that it starts: only these trees and files may be read, read
    and written, or read and executed.

    Paths to read or to execute that cannot be reached are left out. Raises OSError.
    `no_new_privileges` must have been called before.
    """
    abi = find_abi()
    handled = _FIRST | sum(access for since, access in _LATER if abi >= since)
    # Connecting stays open: it is what a gateway is for.
    net = _BIND_TCP if abi >= _ABI_NET else 0
    # Not signals: a judge is ended by us, and is of no domain or another's.
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET if abi >= _ABI_SCOPE else 0
    size = 8 if abi < _ABI_NET else 16 if abi < _ABI_SCOPE else 24
    attributes = struct.pack("=QQQ", handled, net, scoped)[:size]
    ruleset = _call(_SYS_CREATE_RULESET, attributes, size, 0)
    try:
        granted = [(path, _READING) for path in read]
        granted += [(path, _READING | _EXECUTE) for path in execute]
        for path, access in granted:
            try:
                _grant(ruleset, path, access & handled)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
        for path in write:
            _grant(ruleset, path, _WRITING & handled)
        _call(_SYS_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return LandlockResult(abi, tuple(words for below, words in _LACKING if abi < below))


def _grant(ruleset: int, path: Path, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _OF_FILES
        # struct landlock_path_beneath_attr is packed.
        rule = struct.pack("=Qi", access, descriptor)
        _call(_SYS_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _call(number: int, *words: int | bytes) -> int:
    result = _libc.syscall(number, *words)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock: {os.strerror(error)}")
    return int(result)
