"""Makes the user and network namespace of a sandbox, or has bubblewrap make them.

Called by the helper as its first step. Where the system refuses us a user namespace but lets
bubblewrap make one (AppArmor on newer Ubuntu), bubblewrap makes both and ends, and the helper
enters them from outside. A program that bubblewrap starts could not make the door: its AppArmor
profile leaves it no capability. From there on everything is the same. Nothing here weakens what is
asserted inside, and where both ways are refused there is no sandbox.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from keyhole.sandbox import empty_network
from keyhole.sandbox.launch import REFUSED
from keyhole.system import syscalls
from keyhole.system.namespaces import own_network

RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
"""With 1 in this file, a new user namespace may have no rights. That shows only after entering one,
which cannot be undone, so a child process tries it first. The file alone is not enough to know."""

NO_NAMESPACE, NO_CAPABILITY = f"{REFUSED}namespace", f"{REFUSED}capability"
"""Faults, for tests: unshare fails, or succeeds and leaves no capability in what it made."""

_LENDER = """\
import os, socket
kinds = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
socket.send_fds(socket.socket(fileno=0), [b"lent"], kinds)
"""
"""The program that bubblewrap starts in the namespaces. When it runs, bubblewrap has mapped the
user and raised `lo`; its `--info-fd` reports earlier than that."""

_MAX_COMPLAINT = 4096
"""Bytes of bubblewrap's error message."""


def make_namespaces(faults: frozenset[str]) -> str:
    """Enter our own namespaces, or return why the system refuses them; then nothing has changed."""
    if os.getuid() == 0:
        # As root no user namespace is made here; bubblewrap makes it.
        syscalls.unshare(syscalls.CLONE_NEWNET)
        return ""
    refusal = _tried_by_a_child(faults) if _may_be_powerless(faults) else ""
    if refusal:
        return refusal
    uid, gid = os.getuid(), os.getgid()  # read before: an unmapped user reads as the overflow user
    try:
        _unshare(faults)
    except PermissionError as error:
        return str(error.strerror)
    _map(uid, gid)
    return ""


def borrow_namespaces(bwrap: str, refusal: str) -> None:
    """Have bubblewrap make the namespaces, enter them, and check them."""
    before = own_network()
    ours, theirs = socket.socketpair()
    said = os.memfd_create("keyhole-lender", os.MFD_CLOEXEC)
    words = [bwrap, "--unshare-user", "--unshare-net", "--die-with-parent", "--ro-bind", "/", "/"]
    words += ["--", sys.executable, "-I", "-S", "-c", _LENDER]
    actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
    actions += [(os.POSIX_SPAWN_DUP2, said, number) for number in (1, 2)]
    child = os.posix_spawn(bwrap, words, {}, file_actions=actions)
    theirs.close()
    with ours:
        _, borrowed, _, _ = socket.recv_fds(ours, 16, 2)
    # This process is alone in them from here on.
    os.waitpid(child, 0)
    if len(borrowed) != 2:
        complaint = os.pread(said, _MAX_COMPLAINT, 0).decode("utf-8", "replace").strip()
        raise RuntimeError(
            f"this system refuses Keyhole a user namespace ({refusal}), "
            f"and bubblewrap made none either: {complaint or 'it said nothing'}"
        )
    user, net = borrowed
    owner = syscalls.owner_of_namespace(net)
    if not os.path.sameopenfile(owner, user):
        raise RuntimeError("bubblewrap's network namespace is not of its user namespace")
    syscalls.enter_namespace(user, syscalls.CLONE_NEWUSER)
    syscalls.enter_namespace(net, syscalls.CLONE_NEWNET)
    for descriptor in (user, net, owner, said):
        os.close(descriptor)
    if own_network() == before:
        raise RuntimeError("bubblewrap's network namespace is the host's")
    for kind, number in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
        with open(f"/proc/self/{kind}", encoding="ascii") as file:
            if file.read().split() != [str(number), str(number), "1"]:
                raise RuntimeError(f"the {kind} of bubblewrap's user namespace is not ours alone")


def _unshare(faults: frozenset[str]) -> None:
    if NO_NAMESPACE in faults:
        raise PermissionError(1, f"unshare: {os.strerror(1)}")
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET)
    if NO_CAPABILITY in faults:
        syscalls.lose_capabilities()


def _map(uid: int, gid: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _may_be_powerless(faults: frozenset[str]) -> bool:
    if NO_CAPABILITY in faults:
        return True
    try:
        with open(RESTRICTED, encoding="ascii") as file:
            return file.read().strip() == "1"
    except OSError:
        return False


def _tried_by_a_child(faults: frozenset[str]) -> str:
    """Why our own namespace would be useless; empty when it is useful, or fails in another way."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _try(faults, parent, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        refusal = file.read()
    os.waitpid(child, 0)
    return refusal.decode("utf-8", "replace")


def _try(faults: frozenset[str], parent: int, write_end: int) -> NoReturn:
    try:
        syscalls.die_with_parent(parent)
        uid, gid = os.getuid(), os.getgid()
        _unshare(faults)
        _map(uid, gid)
        empty_network.bring_up_loopback()
    except PermissionError as error:
        what = f"{error.filename}: " if error.filename else ""
        os.write(write_end, f"{what}{error.strerror}".encode())
    finally:
        os._exit(0)
