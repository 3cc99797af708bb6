"""Where the bus of a desktop is, by the variables of its session."""

from __future__ import annotations

import pytest

from keyhole.app.desktop.bus_address import find_desktop_bus, parse_bus_address

SESSION = {
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "DISPLAY": ":0",
}


@pytest.mark.parametrize(
    ("address", "socket"),
    [
        ("unix:path=/run/user/1000/bus", "/run/user/1000/bus"),
        ("unix:path=/run/a%20b,guid=00", "/run/a b"),
        ("unix:guid=00,abstract=/dbus-x", "\0/dbus-x"),
        ("tcp:host=localhost,port=1;unix:path=/b", "/b"),
        ("unixexec:path=/bin/sh", None),
        ("tcp:host=192.0.2.1,port=1", None),
        ("unix:path=relative", None),
        ("autolaunch:", None),
        ("", None),
    ],
)
def test_only_unix_sockets_are_used(address: str, socket: str | None) -> None:
    """`unixexec:` would start a program, and over TCP the kernel knows no peer."""
    assert parse_bus_address(address) == socket


@pytest.mark.parametrize(
    "change",
    [
        {"DISPLAY": ""},
        {"DISPLAY": "localhost:10.0"},  # forwarded by ssh
        {"XDG_RUNTIME_DIR": ""},
        {"DBUS_SESSION_BUS_ADDRESS": ""},
    ],
)
def test_a_desktop_has_a_display_of_this_host(change: dict[str, str]) -> None:
    assert find_desktop_bus(SESSION) == "/run/user/1000/bus"
    assert find_desktop_bus(SESSION | {"DISPLAY": "", "WAYLAND_DISPLAY": "wayland-0"})
    assert find_desktop_bus(SESSION | change) is None
