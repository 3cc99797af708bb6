"""A desktop's keyring for tests: the real Secret Service on a bus of its own, and a fake at the
wall behind which it stands."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEEDED = ("dbus-daemon", "gnome-keyring-daemon")


@contextmanager
def secret_service(home: Path) -> Iterator[dict[str, str]]:
    """GNOME's keyring, unlocked; yields the variables by which programs find it."""
    bus_program, keyring_program = (shutil.which(name) or "" for name in NEEDED)
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"not installed: {' '.join(missing)}")
        pytest.skip(f"not installed: {' '.join(missing)}")
    run = home / "run"
    run.mkdir(mode=0o700, parents=True)
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "XDG_RUNTIME_DIR": str(run),
        "XDG_DATA_HOME": str(home / "data"),
    }
    bus = subprocess.Popen(
        [bus_program, "--session", "--nofork", "--print-address=1"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert bus.stdout is not None
        found = {"DBUS_SESSION_BUS_ADDRESS": bus.stdout.readline().strip()}
        # It goes to the background when it is ready, and ends with its bus.
        subprocess.run(
            [keyring_program, "--daemonize", "--unlock", "--components=secrets"],
            env=env | found,
            input="a login password",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=True,
        )
        yield found | {"XDG_RUNTIME_DIR": str(run)}
    finally:
        bus.kill()
        bus.communicate()


class FakeKeyring:
    """Keeps entries in memory; `failing` is raised by every act."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.failing: Exception | None = None

    def get_password(self, service: str, username: str) -> str | None:
        self._fail()
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._fail()
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._fail()
        del self.entries[service, username]

    def _fail(self) -> None:
        if self.failing:
            raise self.failing
