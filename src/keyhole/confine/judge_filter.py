"""The system calls that the judge may make: reading, writing, memory, and its own end.

Built by libseccomp outside, once, and loaded by the judge itself after its last import. Every other
call, such as opening, connecting, starting or tracing, kills it, even if a pack has taken it over.
"""

from __future__ import annotations

import functools
import mmap
import os

from keyhole.confine.seccomp import binding

ALLOWED = (
    "read write recvmsg pread64 "  # of and to the two descriptors that it has
    "brk munmap mremap madvise futex "
    "rt_sigreturn restart_syscall clock_gettime exit exit_group"
).split()


@functools.cache
def build_judge_filter() -> bytes:
    """The filter as a BPF program for this machine's architecture; raises ResourceUnusable."""
    sc = binding()
    policy = sc.SyscallFilter(sc.KILL_PROCESS)
    policy.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)
    for name in ALLOWED:
        policy.add_rule(sc.ALLOW, name)
    # Anonymous memory that is not executable.
    policy.add_rule(
        sc.ALLOW,
        "mmap",
        sc.Arg(2, sc.MASKED_EQ, mmap.PROT_EXEC, 0),
        sc.Arg(3, sc.MASKED_EQ, mmap.MAP_ANONYMOUS, mmap.MAP_ANONYMOUS),
    )
    with os.fdopen(os.memfd_create("keyhole-judge-filter", os.MFD_CLOEXEC), "w+b") as file:
        policy.export_bpf(file)
        file.seek(0)
        return file.read()
