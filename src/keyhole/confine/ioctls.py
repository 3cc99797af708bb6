"""The ioctl commands that pass the system-call filter: an allow-list by family and number.

Read by `seccomp.py` alone. Attack: on btrfs the owner of a subvolume may snapshot it, and the
snapshot shows every file that a mount hides in the sandbox (I1); xfs, ext4, f2fs and bcachefs have
commands of the same kind, and the next kernel adds more. So the list names what programs of
terminals, files and sockets use, and every other command ends as on a kernel that does not have it.

Bits 0-7 of a command are its number and bits 8-15 its family (ioctl(2)). Bits 16-31 are the size
and direction of the argument and are not compared: no command listed here shares its family and
number with one that must not pass. The kernel reads 32 bits of the command, and no higher bit
changes what the filter compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = (
    (0x0002, 0x0002),  # FIGETBSZ: a file's block size
    (0x2100, 0x2104),  # seccomp notification: a supervisor of the program's own children
    (0x5200, 0x5200),  # RNDGETENTCNT
    (0x5401, 0x5460),  # terminals, pseudo-terminals, FIONREAD, FIONBIO, FIOCLEX, FIOQSIZE
    (0x581F, 0x581F),  # FS_IOC_FSGETXATTR: lsattr -p
    (0x6601, 0x6602),  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: lsattr, chattr
    (0x660B, 0x660B),  # FS_IOC_FIEMAP: where a file has holes
    (0x7601, 0x7601),  # FS_IOC_GETVERSION: lsattr -v
    (0x8900, 0x89FF),  # sockets and their interfaces
    (0x9409, 0x9409),  # FICLONE: cp --reflink, package managers
    (0x940D, 0x940D),  # FICLONERANGE
    (0x9436, 0x9436),  # FIDEDUPERANGE: both files are open already
)
"""Ranges of family and number, in order, both ends included."""

REFUSED = {
    "TIOCSTI": 0x5412,  # types into the terminal
    "TIOCLINUX": 0x541C,  # pastes into the console
    "TIOCCONS": 0x541D,  # takes the console's output
    "TIOCSETD": 0x5423,  # loads a line discipline, kernel code that no terminal program needs
    "TIOCVHANGUP": 0x5437,  # ends the terminal for others
}
"""In an allowed range and yet refused, with EPERM."""

COMMAND_BITS = 0xFFFF
_BITS = 16


def blocks_not_allowed() -> Iterator[tuple[int, int]]:
    """Every command outside the ranges, as (mask, value): those whose bits under it are `value`.

    A filter compares under a mask but knows no ranges; a block is an aligned power of two, so that
    a few dozen comparisons cover thousands of commands.
    """
    start = 0
    for first, last in (*ALLOWED, (1 << _BITS, 1 << _BITS)):
        while start < first:
            size = start & -start or 1 << _BITS  # the largest block that may begin here
            while start + size > first:
                size >>= 1
            yield COMMAND_BITS & ~(size - 1), start
            start += size
        start = last + 1
