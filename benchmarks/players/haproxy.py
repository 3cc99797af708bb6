"""HAProxy in TCP mode behind a door: it accepts on the listener that TPROXY feeds (`bind fd@`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from benchmarks.players.client import NAMES
from benchmarks.players.program import dying_with_us

MISSING = "haproxy is not installed: apt-get install haproxy"
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

# One thread and Debian's other defaults. It reads the hello's name as the gateway does, and it
# writes no log, which the gateway cannot leave out.
CONFIG = """\
global
  nbthread 1
  maxconn 1000
defaults
  mode tcp
  timeout connect 10s
  timeout client 15m
  timeout server 15m
frontend door
  bind fd@{listener}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req_ssl_sni -i {names} }}
  tcp-request content reject if WAIT_END
  default_backend origin
backend origin
  server origin 127.0.0.1:{port}
"""


def program() -> str | None:
    """Where it is, if it is."""
    return shutil.which("haproxy", path=_PATH)


class HAProxy:
    """A running one; `pid` is the process that does the work."""

    def __init__(self, listener: int, port: int, core: int) -> None:
        self._directory = tempfile.TemporaryDirectory()
        config = Path(self._directory.name) / "haproxy.cfg"
        config.write_text(CONFIG.format(listener=listener, names=" ".join(NAMES), port=port))
        # It gets non-blocking, shared listeners as it makes them itself.
        os.set_blocking(listener, False)
        self._process = subprocess.Popen(  # noqa: S603 - found on the system's path
            [*dying_with_us(), str(program()), "-db", "-f", str(config)],
            pass_fds=[listener],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid
        os.sched_setaffinity(self.pid, {core})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()
