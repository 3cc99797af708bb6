"""Finds the session bus of a desktop by the environment's variables.

Used by `cli`, also before a run starts anything for a desktop, so it imports little. Nothing is
connected to here; `notification_server.py` checks whose bus it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS = "DBUS_SESSION_BUS_ADDRESS"
PASSED = (
    ADDRESS, "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME",
    "HOME", "PATH", "LANG", "LC_ALL",
)  # fmt: skip
"""The variables that a process for the desktop needs."""


def find_desktop_bus(env: Mapping[str, str]) -> str | None:
    """The socket of the session bus, as `connect` takes it; None where this is no desktop session.

    A login by ssh has a bus of its user, too, but nobody sits in front of that screen: a display of
    this host is needed.
    """
    local = bool(env.get("WAYLAND_DISPLAY")) or env.get("DISPLAY", "").startswith(":")
    if not local or not env.get("XDG_RUNTIME_DIR"):
        return None
    return parse_bus_address(env.get(ADDRESS, ""))


def parse_bus_address(text: str) -> str | None:
    """The first Unix socket of a D-Bus address. Other transports are not used: `unixexec:` starts a
    program, and `tcp:` has no peer that the kernel knows."""
    for each in text.split(";"):
        transport, _, rest = each.partition(":")
        keys = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        if transport != "unix":
            continue
        if keys.get("path", "").startswith("/"):
            return unquote(keys["path"])
        if keys.get("abstract"):
            return "\0" + unquote(keys["abstract"])
    return None
