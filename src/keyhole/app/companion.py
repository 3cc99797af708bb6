"""Processes of this very program beside a long-lived gateway, which die with it.

Started by the gateway before it locks itself down: the keeper (`kept.py`), and, where a sandbox is
made by others, the doorkeeper (`doorway.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from keyhole.system.faults import run_guarded
from {module} import main
run_guarded(main, "{module}")
"""


def start(module: str, sockets: Sequence[socket.socket], env: Mapping[str, str]) -> int:
    """Start `main` of a module with these sockets, which are its alone from then on; its process.

    Their numbers are its arguments.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for each in sockets:
            os.set_inheritable(each.fileno(), True)
        words = [sys.executable, "-I", "-c", _PROGRAM.format(module=module), _ROOT]
        words += [str(each.fileno()) for each in sockets]
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1)]
        return os.posix_spawn(sys.executable, words, dict(env), file_actions=actions)
    finally:
        os.close(null)
        for each in sockets:
            each.close()


def stay_with_parent() -> bool:
    """Die with the gateway and by nothing else that a terminal says; False: it is gone already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return False
    # The terminal's signals are for the gateway, which ends us.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return True
