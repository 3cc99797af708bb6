"""Processes of this very program beside the control process of a gateway, which die with it.

They are the data plane (`planes.py`), the keeper (`keeping.py`), and, where a sandbox is made by
others, the doorkeeper (`doorway.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from {module} import main
main()
"""


class Inherited(Protocol):
    """What a process is started with: a socket, or one end of a pipe."""

    def fileno(self) -> int:
        """Its descriptor."""

    def close(self) -> None:
        """Let go of it."""


def start(module: str, sockets: Sequence[Inherited], env: Mapping[str, str]) -> int:
    """Start `main` of a module with these sockets, which are its alone from then on; its process.

    Their numbers are its arguments.
    """
    null = -1
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for each in sockets:
            os.set_inheritable(each.fileno(), True)
        words = [sys.executable, "-I", "-c", _PROGRAM.format(module=module), _ROOT]
        words += [str(each.fileno()) for each in sockets]
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1)]
        return os.posix_spawn(sys.executable, words, dict(env), file_actions=actions)
    finally:
        if null >= 0:
            os.close(null)
        for each in sockets:
            each.close()


def stay_with_parent() -> bool:
    """Die with the control process, and by no signal of a terminal; False: it is gone already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return False
    # The terminal's signals are for the control process, which ends us.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return True
