"""A desktop for tests: a real message bus, and on it Debian's dunst, or a server of our own that
can misbehave."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jeepney import (
    DBusAddress,
    Message,
    MessageType,
    message_bus,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import DBusConnection, prep_socket

from keyhole.app.desktop.bus_address import parse_bus_address
from keyhole.app.desktop.notification_server import NAME
from tests.rigs.lacking import give_up
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""
# Nothing on this bus is started by itself, so that a test decides what is there.

_DUNST = """\
[global]
dmenu = {menu}
[urgency_normal]
timeout = 0
"""
_MENU = """\
#!/bin/sh
cat > {home}/menu.read
mv {home}/menu.read {home}/offered
grep -m1 -F "$(cat {home}/choice)" {home}/offered
"""


def program(name: str) -> str:
    found = shutil.which(name)
    return found or give_up(f"not installed: {name}")


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """A process while the block lasts."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def session_bus(home: Path, **become: Any) -> Iterator[dict[str, str]]:  # noqa: ANN401
    """A bus of one's own; the variables of a desktop's session. There is no display behind them."""
    home.mkdir(mode=0o755)
    run = home / "run"
    run.mkdir(mode=0o700)
    (home / "bus.conf").write_text(_BUS.format(path=home / "bus"))
    if become:
        for each in (home, run, home / "bus.conf"):
            os.chown(each, become["user"], become["group"])
    words = [program("dbus-daemon"), f"--config-file={home / 'bus.conf'}", "--nofork"]
    words.append("--print-address=1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(words, text=True, **pipes, **become)  # type: ignore[call-overload]
    with ended(started) as bus:
        assert bus.stdout is not None
        yield {
            "DBUS_SESSION_BUS_ADDRESS": bus.stdout.readline().strip(),
            "XDG_RUNTIME_DIR": str(run),
            "DISPLAY": ":0",
        }


@dataclass(frozen=True)
class Dunst:
    """Debian's dunst on a display that nobody sees."""

    home: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    def press(self, label: str) -> str:
        """Choose a button from dunst's own menu; everything that the menu offered."""
        (self.home / "choice").write_text(label)
        (self.home / "offered").unlink(missing_ok=True)
        self._control("context")
        until((self.home / "offered").exists, pause=0.02)
        return (self.home / "offered").read_text()

    def close_all(self) -> None:
        """Close every notification, as a person does."""
        self._control("close-all")

    def count(self) -> int:
        """How many are shown."""
        return int(self._control("count", "displayed"))

    def _control(self, *words: str) -> str:
        done = subprocess.run(
            [program("dunstctl"), *words],
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return done.stdout


@contextlib.contextmanager
def dunst_desktop(home: Path) -> Iterator[tuple[dict[str, str], Dunst]]:
    """A whole desktop: the variables of its session, and its notification server."""
    for each in ("Xvfb", "dunst", "dunstctl"):
        program(each)
    with session_bus(home) as found, contextlib.ExitStack() as stack:
        ours, theirs = os.pipe()
        screen = [program("Xvfb"), "-displayfd", str(theirs), "-screen", "0", "800x600x24"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        stack.enter_context(ended(subprocess.Popen(screen, pass_fds=[theirs], **quiet)))  # type: ignore[call-overload]
        os.close(theirs)
        with os.fdopen(ours) as said:
            display = f":{said.readline().strip()}"
        menu = home / "menu"
        menu.write_text(_MENU.format(home=home))
        menu.chmod(0o755)
        (home / "dunstrc").write_text(_DUNST.format(menu=menu))
        env = found | {"DISPLAY": display, "PATH": os.environ["PATH"], "HOME": str(home)}
        words = [program("dunst"), "-conf", str(home / "dunstrc")]
        server = subprocess.Popen(words, env=env, **quiet)  # type: ignore[call-overload]
        made = Dunst(home, env, stack.enter_context(ended(server)))
        until(lambda: is_served(found), pause=0.02)
        yield found | {"DISPLAY": display}, made


def connect(env: dict[str, str]) -> DBusConnection:
    """A client of the bus."""
    address = parse_bus_address(env["DBUS_SESSION_BUS_ADDRESS"])
    return DBusConnection(prep_socket(address))


def is_served(env: dict[str, str]) -> bool:
    """Whether a notification server is on the bus."""
    with connect(env) as client:
        return bool(client.send_and_get_reply(message_bus.NameHasOwner(NAME)).body[0])


@dataclass
class StandInServer:
    """A notification server that remembers everything and draws nothing."""

    env: dict[str, str]
    able: tuple[str, ...] = ("actions", "body", "body-markup")
    shown: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """What is on the screen: the arguments of Notify, by number."""
    ever: deque[tuple[Any, ...]] = field(default_factory=deque)
    """Everything that was ever shown."""
    _last: int = 0

    def __post_init__(self) -> None:
        self._bus = connect(self.env)
        self._bus.send_and_get_reply(message_bus.RequestName(NAME))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> StandInServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The server dies."""
        with contextlib.suppress(OSError):
            self._bus.sock.shutdown(2)
        self._thread.join(PATIENCE)
        self._bus.close()

    def press(self, number: int, key: str) -> None:
        """Say that a button was pressed."""
        self._bus.send(signal("ActionInvoked", "us", (number, key)))

    def dismiss(self, number: int) -> None:
        """Say that the person closed it."""
        self.shown.pop(number, None)
        self._bus.send(signal("NotificationClosed", "uu", (number, 2)))

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            while True:
                message = self._bus.receive()
                if message.header.message_type is MessageType.method_call:
                    self._bus.send(self._answer(message))

    def _answer(self, message: Message) -> Message:
        member, body = message.header.fields[3], message.body
        if member == "GetCapabilities":
            return new_method_return(message, "as", (list(self.able),))
        if member == "CloseNotification":
            self.shown.pop(body[0], None)
            return new_method_return(message)
        self._last = number = body[1] if body[1] in self.shown else self._last + 1
        self.shown[number] = body
        self.ever.append(body)
        return new_method_return(message, "u", (number,))


def signal(member: str, kinds: str, body: tuple[Any, ...]) -> Message:
    """A signal of a notification server."""
    where = DBusAddress("/org/freedesktop/Notifications", interface=NAME)
    return new_signal(where, member, kinds, body)
