"""The notification server of the desktop, by D-Bus (org.freedesktop.Notifications, version 1.2).

Used by `desktop_watch.py` alone. The bus must be this user's own. A button counts only if the
process that owns the server's name says so: any client of the bus can send us a signal, but the bus
itself writes who sent it.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from jeepney import (
    DBusAddress,
    DBusErrorResponse,
    HeaderFields,
    MatchRule,
    message_bus,
    new_method_call,
)
from jeepney.auth import AuthenticationError
from jeepney.io.blocking import DBusConnection, prep_socket
from jeepney.wrappers import unwrap_msg
from msgspec import Struct

from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from jeepney import Message

    from keyhole.app.desktop.ask_notices import DesktopNotice

NAME = "org.freedesktop.Notifications"
_BUS = "org.freedesktop.DBus"
_SERVER = DBusAddress("/org/freedesktop/Notifications", bus_name=NAME, interface=NAME)

SECONDS = 2.0
"""How long the bus or the server may take to answer: a server draws a few lines of text."""

MAX_SIGNALS = 1000
"""Signals that wait to be read; beyond it the oldest is dropped. A person presses a few buttons."""

_NEVER_EXPIRES = 0  # the question has an end of its own, and is taken off the screen then
_APPLICATION = "Keyhole"
_NORMAL_URGENCY = {"urgency": ("y", 1)}
_NO_ICON = ""
_PEER = struct.Struct("@3i")


class Pressed(Struct, frozen=True):
    """A button of a notification was pressed."""

    number: int
    key: str


class Dismissed(Struct, frozen=True):
    """A notification is no longer shown: the person or the server closed it."""

    number: int


class ServerChanged(Struct, frozen=True):
    """Another process is the server now, or none is: what was shown is gone."""


DesktopSignal = Pressed | Dismissed | ServerChanged


class NotificationServer:
    """A connection to the bus, and the server that is on it now."""

    def __init__(self, bus: str) -> None:
        """Raises ResourceUnusable if the bus cannot be used, or is not this user's."""
        self._bus = _connect(bus)
        self._owner = ""
        self._signals: deque[Message] = deque(maxlen=MAX_SIGNALS)
        self._bus.filter(MatchRule(type="signal"), queue=self._signals)
        changes = MatchRule(type="signal", sender=_BUS, interface=_BUS, member="NameOwnerChanged")
        changes.add_arg_condition(0, NAME)
        for rule in (MatchRule(type="signal", sender=NAME, interface=NAME), changes):
            self._call(message_bus.AddMatch(rule))

    def fileno(self) -> int:
        """The connection's descriptor."""
        descriptor: int = self._bus.sock.fileno()
        return descriptor

    def disconnect(self) -> None:
        """Leave the bus."""
        self._bus.close()

    def find(self) -> bool:
        """Look for a server whose notifications have buttons; one that is installed is started.

        Raises ResourceUnusable if the bus has gone.
        """
        try:
            if not self._call(message_bus.NameHasOwner(NAME))[0]:
                self._call(message_bus.StartServiceByName(NAME))
            (owner,) = self._call(message_bus.GetNameOwner(NAME))
            (able,) = self._call(new_method_call(_SERVER, "GetCapabilities"))
        except (DBusErrorResponse, TimeoutError):
            self._owner = ""
            return False
        self._owner = owner if "actions" in able else ""
        return bool(self._owner)

    def show(self, notice: DesktopNotice, replaced: int = 0) -> int:
        """Show a notification, in the place of another if that is still shown. Returns its number,
        or 0 if the server did not show it. Raises ResourceUnusable if the bus has gone."""
        buttons = [word for button in notice.buttons for word in button]
        words = (
            _APPLICATION, replaced, _NO_ICON, notice.title, notice.body, buttons, _NORMAL_URGENCY,
            _NEVER_EXPIRES,
        )  # fmt: skip
        try:
            found = self._call(new_method_call(_SERVER, "Notify", "susssasa{sv}i", words))
        except (DBusErrorResponse, TimeoutError):
            return 0
        number: int = found[0] if found and isinstance(found[0], int) else 0
        return number

    def hide(self, number: int) -> None:
        """Take a notification off the screen. Raises ResourceUnusable if the bus has gone."""
        try:
            self._call(new_method_call(_SERVER, "CloseNotification", "u", (number,)))
        except (DBusErrorResponse, TimeoutError):
            return  # the person has closed it, or the server is gone

    def read(self) -> list[DesktopSignal]:
        """What has happened since the last call. Raises ResourceUnusable if the bus has gone."""
        try:
            for _ in range(MAX_SIGNALS):
                self._bus.recv_messages(timeout=0)
        except TimeoutError:
            pass
        except OSError as error:
            raise _gone(error) from None
        found = []
        while self._signals:
            if (signal := self._read_signal(self._signals.popleft())) is not None:
                found.append(signal)
        return found

    def _read_signal(self, message: Message) -> DesktopSignal | None:
        fields, body = message.header.fields, message.body
        sender, member = fields.get(HeaderFields.sender), fields.get(HeaderFields.member)
        match fields.get(HeaderFields.interface), member, body:
            case str(interface), "NameOwnerChanged", (name, _, _) if (interface, sender, name) == (
                _BUS,
                _BUS,
                NAME,
            ):
                return ServerChanged()
            # Attack: another client of the bus says that the button was pressed.
            case _ if not self._owner or sender != self._owner:
                return None
            case str(interface), "ActionInvoked", (int(number), str(key)) if interface == NAME:
                return Pressed(number, key)
            case str(interface), "NotificationClosed", (int(number), int(_)) if interface == NAME:
                return Dismissed(number)
        return None

    def _call(self, message: Message) -> tuple[Any, ...]:
        try:
            reply = self._bus.send_and_get_reply(message, timeout=SECONDS)
        except TimeoutError:
            raise
        except OSError as error:
            raise _gone(error) from None
        found: tuple[Any, ...] = unwrap_msg(reply)
        return found


def _connect(address: str) -> DBusConnection:
    try:
        sock = prep_socket(address, timeout=SECONDS)
    except (OSError, AuthenticationError) as error:
        raise _gone(error) from None
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.geteuid():
        # Attack: a variable that names another user's bus, whose owner then answers for this one.
        sock.close()
        raise ResourceUnusable("the desktop's message bus is another user's")
    # jeepney waits for the answer to its greeting without end.
    late = threading.Timer(SECONDS, sock.shutdown, (socket.SHUT_RDWR,))
    late.start()
    try:
        return DBusConnection(sock)
    except (OSError, DBusErrorResponse) as error:
        sock.close()
        raise _gone(error) from None
    finally:
        late.cancel()


def _gone(error: Exception) -> ResourceUnusable:
    why = error.strerror if isinstance(error, OSError) else ""
    return ResourceUnusable(f"the desktop's message bus cannot be used: {why or 'it refuses us'}")
