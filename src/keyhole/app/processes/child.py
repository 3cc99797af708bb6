"""Child processes of a gateway's control process that run this same program, and die with it.

They are the data plane (`daemon/data_plane_process.py`; for a single run
`run/data_plane_process.py`), the keeper (`daemon/keeper_process.py`), and, for a sandbox of another
tool, the door receiver (`containers/door_receiver_client.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Protocol

import keyhole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)

_ROOT = os.path.dirname(os.path.abspath(keyhole.__path__[0]))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from keyhole.system.faults import run_guarded
from {module} import main
run_guarded(main, "{module}")
"""


class InheritedDescriptor(Protocol):
    """A descriptor that a process is started with: a socket, or one end of a pipe."""

    def fileno(self) -> int:
        """The descriptor."""

    def close(self) -> None:
        """Close it."""


def start_child(
    module: str,
    sockets: Sequence[InheritedDescriptor],
    env: Mapping[str, str],
    *,
    apart: bool = False,
) -> int:
    """Start `main` of a module with these sockets, which this process then closes. Returns the
    child's pid.

    The sockets' numbers are its arguments. A child that is `apart` writes nothing to standard error
    and is in a process group of its own, so that the terminal's signals do not reach it.
    """
    null = -1
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for each in sockets:
            os.set_inheritable(each.fileno(), True)
        words = [sys.executable, "-I", "-c", _PROGRAM.format(module=module), _ROOT]
        words += [str(each.fileno()) for each in sockets]
        silent = (0, 1, 2) if apart else (0, 1)
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in silent]
        # Blocked until `stay_with_parent` ignores them: a Ctrl-C while the child still imports its
        # modules would print its traceback.
        spawn = partial(os.posix_spawn, file_actions=actions, setsigmask=_FROM_TERMINAL)
        if not apart:
            return spawn(sys.executable, words, dict(env))
        return spawn(sys.executable, words, dict(env), setpgroup=0)
    finally:
        if null >= 0:
            os.close(null)
        for each in sockets:
            each.close()


def inherit(count: int) -> list[int]:
    """The descriptors that this process was started with; its own children do not inherit them.

    This process dies with its parent. The list is empty if the parent has ended already.
    """
    if not stay_with_parent():
        return []
    numbers = [int(word) for word in sys.argv[1 : count + 1]]
    for each in numbers:
        os.set_inheritable(each, False)
    return numbers


def stay_with_parent() -> bool:
    """Die with the control process, and by no signal of a terminal. Returns False if it has ended
    already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return False
    # The terminal's signals are for the control process, which ends its children.
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FROM_TERMINAL)
    return True
