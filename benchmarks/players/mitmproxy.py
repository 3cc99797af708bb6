"""mitmproxy behind a door: TLS both ways, bodies streamed, headers removed and one added.

It has no rules, no rate and no log: what it does is less than the gateway's duties.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.players import duties
from benchmarks.players.program import MISSING, PEERS, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTHON = PEERS / "bin" / "python"
_ADDON = Path(__file__).with_name("mitmaddon.py")


def missing() -> str | None:
    """Why it cannot be measured, if so."""
    return None if (PEERS / "bin" / "mitmdump").exists() else MISSING.format("mitmproxy")


@contextmanager
def running(
    directory: Path,
    listener: int,
    upstream: int,
    authority: Path,
    core: int,
    *,
    http2: bool = False,
) -> Iterator[Program]:
    """A mitmdump that accepts on the listener; `directory` has its leaf."""
    told = {"listener": listener, "removed": duties.REMOVED, "added": duties.ADDED}
    settings = {
        # With the client's Host goes the client's name, which is the one that is verified.
        "mode": f"reverse:https://127.0.0.1:{upstream}",
        "keep_host_header": "true",
        "confdir": str(directory),
        "certs": f"{duties.HOST}={directory / 'leaf.pem'}",
        "ssl_verify_upstream_trusted_ca": str(authority),
        "connection_strategy": "lazy",
        "http2": "true" if http2 else "false",
        "http3": "false",
        # Of what it opens itself (UDP, for HTTP/3): nothing that others reach.
        "listen_host": "127.0.0.1",
        "listen_port": "0",
        "flow_detail": "0",
        "termlog_verbosity": "error",
    }
    # -P: or our own module of that name would be found in mitmproxy's place.
    command = [str(_PYTHON), "-P", str(_ADDON), "--scripts", str(_ADDON)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    os.set_blocking(listener, False)
    env = {"PATH": os.defpath, "HOME": str(directory), "BENCH_MITMPROXY": json.dumps(told)}
    with Program(command, core, str(directory), [listener], env) as proxy:
        yield proxy
