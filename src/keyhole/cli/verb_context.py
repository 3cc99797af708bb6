"""The environment of a verb as values: host paths and variables.

Every verb imports it; the policy that a verb names is read in `named_policy.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from keyhole.app.setup.host_paths import HostPaths


def find_host_paths() -> HostPaths:
    """The host's directories by the XDG variables; XDG says to ignore a relative one."""
    home = Path(os.environ.get("HOME") or os.path.expanduser("~"))
    state = _xdg("XDG_STATE_HOME", home / ".local" / "state") / "keyhole"
    # As `control.socket_directory`, whose module would import socket for verbs without need.
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return HostPaths(
        home=home,
        config=_xdg("XDG_CONFIG_HOME", home / ".config") / "keyhole",
        state=state,
        runtime=runtime / "keyhole" if runtime.is_absolute() else state / "run",
    )


def environment() -> dict[str, str]:
    """A copy of this process's variables, to hand to other rooms."""
    return dict(os.environ)


def _xdg(name: str, default: Path) -> Path:
    value = Path(os.environ.get(name, ""))
    return value if value.is_absolute() else default
