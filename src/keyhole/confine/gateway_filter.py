"""The system calls of a gateway that is locked down: files, sockets, threads, clocks, its memory.

Built by `lockdown.py` in the process that it will hold, since some rules name that process. Calls
that a gateway never makes kill it: starting a program, reading another process, making mounts and
namespaces, loading code into the kernel. Calls that a library may try without need get an error.
All other calls return ENOSYS, as if the kernel did not have them, so that libraries fall back.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import mmap
import os
import signal
import socket
from typing import Any

from keyhole.confine.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, binding

ALLOWED = (
    # descriptors and what is behind them
    "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range "
    "dup dup2 dup3 pipe pipe2 lseek _llseek sendfile splice tee copy_file_range fadvise64 "
    "readahead poll ppoll select pselect6 _newselect epoll_create epoll_create1 epoll_ctl "
    "epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create "
    "timerfd_settime timerfd_gettime inotify_init inotify_init1 inotify_add_watch inotify_rm_watch "
    "memfd_create "
    # files, as far as Landlock grants them
    "open openat openat2 creat stat fstat lstat newfstatat statx access faccessat faccessat2 "
    "readlink readlinkat getdents getdents64 getcwd statfs fstatfs fsync fdatasync "
    "sync_file_range truncate ftruncate fallocate flock rename renameat renameat2 unlink unlinkat "
    "mkdir mkdirat rmdir link linkat umask "
    # sockets
    "bind listen accept accept4 connect shutdown getsockname getpeername getsockopt sendto "
    "recvfrom sendmsg recvmsg sendmmsg recvmmsg "
    # memory
    "brk munmap mremap madvise mincore msync membarrier mlock mlock2 mlockall munlock munlockall "
    # threads, and the end
    "futex futex_waitv set_robust_list get_robust_list set_tid_address rseq gettid sched_yield "
    "sched_getaffinity sched_getparam sched_getscheduler getcpu exit exit_group waitid wait4 "
    # signals to itself
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait "
    "sigaltstack pause restart_syscall alarm getitimer setitimer "
    # clocks and chance
    "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrandom "
    # its identity and working directory
    "getpid getppid getpgid getpgrp getsid getuid geteuid getgid getegid getresuid getresgid "
    "getgroups capget uname sysinfo getrusage getrlimit getpriority"
).split()

KILLED = (
    "execve execveat ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd "
    "mount umount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig "
    "fsmount fspick mount_setattr open_by_handle_at setns unshare bpf perf_event_open userfaultfd "
    "keyctl add_key request_key kexec_load kexec_file_load init_module finit_module delete_module "
    "iopl ioperm modify_ldt uselib swapon swapoff reboot acct"
).split()

REFUSED = (
    "fork vfork tkill rt_sigqueueinfo rt_tgsigqueueinfo "
    "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset "
    "setpgid setsid chown fchown lchown fchownat chmod fchmod fchmodat fchmodat2 "
    "utime utimes utimensat futimesat mknod mknodat symlink symlinkat "
    "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr "
    "setpriority sched_setscheduler sched_setparam sched_setattr sched_setaffinity ioprio_set "
    "personality seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self "
    "shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl "
    "mq_open mq_unlink mq_notify fanotify_init fanotify_mark name_to_handle_at quotactl "
    "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname syslog vhangup"
).split()
"""Errors that a program expects of these. Landlock does not hold the modes, owners and times of
files, wherever they are."""

_CLONE_VM, _CLONE_SIGHAND, _CLONE_THREAD = 0x100, 0x800, 0x10000
_THREAD = _CLONE_VM | _CLONE_SIGHAND | _CLONE_THREAD
_NOT_A_THREAD = 0x7E020000 | 0x00001000 | 0x00002000 | 0x00004000 | 0x00008000
"""Every new namespace; a pidfd, a tracer, a parent that waits, and a parent that is another."""

_TYPE_BITS = 0xF
_TCP, _UDP = 6, 17
_ATTACH_FILTER = 26
"""Options with lower numbers are plain numbers."""
_YOUNGER_OPTIONS = (66, 67, 76)  # SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW, SO_PASSPIDFD
_TCP_ULP = 31

_FCNTL = (
    fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC,
    fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL,
    fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW, 36, 37, 38,  # those of open file descriptions
    1031, 1032, 1033, 1034,  # a pipe's size, a memory file's seals
)  # fmt: skip
"""Not F_SETOWN and F_SETSIG, by which a descriptor sends any signal to any process of the user."""

_IOCTL = (
    0x5401, 0x802C542A, 0x5413,  # TCGETS, TCGETS2, TIOCGWINSZ: is it a terminal, how large
    0x541B, 0x5411, 0x5421, 0x5450, 0x5451,  # FIONREAD, TIOCOUTQ, FIONBIO, FIONCLEX, FIOCLEX
    0x8910, 0x8933,  # SIOCGIFNAME, SIOCGIFINDEX: the scope of an IPv6 address
)  # fmt: skip

_PRCTL = (
    3, 15, 16, 21, 23, 39,  # GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, GET_NNP
    0x53564D41,  # SET_VMA: allocators name their memory
)  # fmt: skip

_STARTING = ("execve", "execveat")
_ENDING = (0, signal.SIGKILL, signal.SIGTERM)
_SO_PEERPIDFD = 77


def build_gateway_filter() -> Any:  # noqa: ANN401 - untyped library
    """The filter for this very process, to be loaded; raises ResourceUnusable."""
    sc = binding()
    policy = sc.SyscallFilter(sc.ERRNO(errno.ENOSYS))
    policy.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)
    policy.set_attr(sc.Attr.CTL_TSYNC, 1)
    for action, names in (
        (sc.ALLOW, ALLOWED),
        (sc.KILL_PROCESS, KILLED),
        (sc.ERRNO(errno.EPERM), REFUSED),
    ):
        for name in names:
            _rule(sc, policy, action, name)
    _threads_alone(sc, policy)
    _own_signals(sc, policy)
    _sockets(sc, policy)
    _memory(sc, policy)
    for name, argument, values in (
        ("fcntl", 1, _FCNTL),
        ("ioctl", 1, _IOCTL),
        ("prctl", 0, _PRCTL),
    ):
        for value in values:
            _rule(sc, policy, sc.ALLOW, name, sc.Arg(argument, sc.EQ, value))
    return policy


def build_control_filter() -> Any:  # noqa: ANN401 - untyped library
    """The filter of a control process, which its data planes inherit from their start.

    They still have to lock themselves down, and it has to start them, so the filter only names
    calls that neither ever makes. Raises ResourceUnusable.
    """
    sc = binding()
    policy = sc.SyscallFilter(sc.ALLOW)
    policy.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)
    policy.set_attr(sc.Attr.CTL_TSYNC, 1)
    for name in KILLED:
        if name not in _STARTING:
            _rule(sc, policy, sc.KILL_PROCESS, name)
    return policy


def can_pin_peers() -> bool:
    """Whether a socket gives the pidfd of its peer (Linux 6.5), so that none is opened by
    number."""
    left, right = socket.socketpair()
    with left, right:
        try:
            os.close(left.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True


def _rule(sc: Any, policy: Any, action: int, name: str, *arguments: Any) -> None:  # noqa: ANN401
    """A name that this libseccomp, or this architecture, does not know is left to the default."""
    if sc.resolve_syscall(sc.Arch.NATIVE, name) >= 0:
        policy.add_rule(action, name, *arguments)


def _threads_alone(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """The flags of clone3 are behind a pointer: it is absent, and clone is taken instead."""
    policy.add_rule(sc.ALLOW, "clone", sc.Arg(0, sc.MASKED_EQ, _THREAD | _NOT_A_THREAD, _THREAD))
    for flag in (_CLONE_VM, _CLONE_SIGHAND, _CLONE_THREAD):
        policy.add_rule(sc.ERRNO(errno.EPERM), "clone", sc.Arg(0, sc.MASKED_EQ, flag, 0))


def _own_signals(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """Signals to itself, and to processes whose pidfd it has: judges, and peers of the control
    socket.

    Landlock's scope for signals would take the judges along, which another process starts.
    """
    own = os.getpid()
    refused = sc.ERRNO(errno.EPERM)
    for name in ("kill", "tgkill"):
        policy.add_rule(sc.ALLOW, name, sc.Arg(0, sc.EQ, own))
        policy.add_rule(refused, name, sc.Arg(0, sc.NE, own))
    for process in (0, own):
        policy.add_rule(sc.ALLOW, "prlimit64", sc.Arg(0, sc.EQ, process))
    for number in _ENDING:
        # Flags would widen it to a process group.
        only = sc.Arg(1, sc.EQ, number), sc.Arg(3, sc.EQ, 0)
        _rule(sc, policy, sc.ALLOW, "pidfd_send_signal", *only)
    _rule(sc, policy, refused if can_pin_peers() else sc.ALLOW, "pidfd_open")


def _sockets(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """Allow TCP, UDP, and reading the host's addresses, which getaddrinfo needs.

    Unix sockets only as pairs: servers that listen under a path, such as the user's D-Bus, agents
    and container engines, could be asked to do what the gateway may not, and Landlock does not
    guard them. A pair of datagrams could be sent elsewhere.
    """
    for family in (AF_INET, AF_INET6):
        for kind, protocol in ((socket.SOCK_STREAM, _TCP), (socket.SOCK_DGRAM, _UDP)):
            for number in (0, protocol):
                policy.add_rule(
                    sc.ALLOW,
                    "socket",
                    sc.Arg(0, sc.EQ, family),
                    sc.Arg(1, sc.MASKED_EQ, _TYPE_BITS, kind),
                    sc.Arg(2, sc.EQ, number),
                )
    policy.add_rule(sc.ALLOW, "socket", sc.Arg(0, sc.EQ, AF_NETLINK), sc.Arg(2, sc.EQ, 0))
    refused = sc.ERRNO(errno.EAFNOSUPPORT)
    for family in set(range(AF_NETLINK)) - {AF_INET, AF_INET6}:
        policy.add_rule(refused, "socket", sc.Arg(0, sc.EQ, family))
    policy.add_rule(refused, "socket", sc.Arg(0, sc.GT, AF_NETLINK))
    policy.add_rule(refused, "socket", sc.Arg(0, sc.EQ, AF_NETLINK), sc.Arg(2, sc.NE, 0))
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        a_pair = sc.Arg(0, sc.EQ, AF_UNIX), sc.Arg(1, sc.MASKED_EQ, _TYPE_BITS, kind)
        policy.add_rule(sc.ALLOW, "socketpair", *a_pair)
    _options(sc, policy)


def _options(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """Forbid socket options that load a program into the kernel, or another protocol's code on a
    TCP socket."""
    level, option = functools.partial(sc.Arg, 1, sc.EQ), functools.partial(sc.Arg, 2)
    policy.add_rule(sc.ALLOW, "setsockopt", level(socket.SOL_SOCKET), option(sc.LT, _ATTACH_FILTER))
    for number in _YOUNGER_OPTIONS:
        policy.add_rule(sc.ALLOW, "setsockopt", level(socket.SOL_SOCKET), option(sc.EQ, number))
    for internet in (socket.IPPROTO_IP, socket.IPPROTO_IPV6):
        policy.add_rule(sc.ALLOW, "setsockopt", level(internet))
    policy.add_rule(sc.ALLOW, "setsockopt", level(socket.IPPROTO_TCP), option(sc.NE, _TCP_ULP))


def _memory(sc: Any, policy: Any) -> None:  # noqa: ANN401 - untyped library
    """Executable memory comes only from a file: libraries that are still to be loaded. A filter
    cannot see which file it is, so a file that the gateway wrote itself can be used too."""
    refused = sc.ERRNO(errno.EPERM)
    run, write = mmap.PROT_EXEC, mmap.PROT_WRITE
    policy.add_rule(sc.ALLOW, "mmap", sc.Arg(2, sc.MASKED_EQ, run, 0))
    from_file = sc.Arg(3, sc.MASKED_EQ, mmap.MAP_ANONYMOUS, 0)
    policy.add_rule(sc.ALLOW, "mmap", sc.Arg(2, sc.MASKED_EQ, run | write, run), from_file)
    policy.add_rule(refused, "mmap", sc.Arg(2, sc.MASKED_EQ, run | write, run | write))
    anonymous = sc.Arg(3, sc.MASKED_EQ, mmap.MAP_ANONYMOUS, mmap.MAP_ANONYMOUS)
    policy.add_rule(refused, "mmap", sc.Arg(2, sc.MASKED_EQ, run | write, run), anonymous)
    policy.add_rule(sc.ALLOW, "mprotect", sc.Arg(2, sc.MASKED_EQ, run, 0))
    policy.add_rule(refused, "mprotect", sc.Arg(2, sc.MASKED_EQ, run, run))
