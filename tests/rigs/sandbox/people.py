"""Who runs `keyhole`: root, or an ordinary user with an interpreter of their own.

The suite's own Python may lie under a home that others cannot enter, so the ordinary user gets a
small environment that is made from an interpreter they can execute.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keyhole
from tests.rigs.lacking import give_up
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(keyhole.__file__).parent.parent
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

_ENTRY = """\
#!{python}
from keyhole.cli.main import entry
entry()
"""


class NoSuchPerson(Exception):
    """An ordinary user cannot be had on this host, and why."""


@dataclass(frozen=True)
class Person:
    """Somebody who runs the installed command."""

    name: str
    uid: int
    gid: int
    program: Path
    directory: Path
    """Theirs, and readable to all."""

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def become(self) -> dict[str, Any]:
        """Arguments for subprocess that start a program as this person."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, *paths: Path) -> None:
        """Give paths to this person."""
        if self.uid != os.geteuid():
            for path in paths:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)


def this_person(directory: Path) -> Person:
    """Whoever runs the suite, with the command that is installed beside its Python."""
    uid = os.geteuid()
    program = Path(sys.executable).with_name("keyhole")
    return Person("root" if uid == 0 else "user", uid, os.getegid(), program, directory)


PEOPLE = ("root", "user") if os.geteuid() == 0 else ("user",)
"""Who tries what is promised to all."""


@contextlib.contextmanager
def open_ground(name: str, place: str | None = None, *, engine: bool = False) -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are closed to others.

    All of it can be removed at the end, unless an engine was at work in it.
    """
    path = Path(tempfile.mkdtemp(prefix=f"keyhole-{name}-", dir=place))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=engine)


@contextlib.contextmanager
def ordinary_user(directory: Path) -> Iterator[Person]:
    """A throwaway account with a working `keyhole`; where the suite is not root's, its own."""
    directory.mkdir()
    if os.geteuid() != 0:
        yield this_person(directory)
        return
    try:
        made = create_user(directory)
    except NoSuchPerson as error:
        give_up(f"no ordinary user: {error}")
    yield made
    remove_user(made)


@contextlib.contextmanager
def person_of(kind: str, directory: Path) -> Iterator[Person]:
    """One of PEOPLE."""
    if kind == "user":
        with ordinary_user(directory) as made:
            yield made
    else:
        directory.mkdir()
        yield this_person(directory)


def create_user(directory: Path) -> Person:
    """A throwaway account with a working `keyhole`; needs root. `remove_user` takes it back."""
    # By chance: two pid namespaces have the same numbers, and a suite that was killed leaves one.
    name = f"keyhole-test-{secrets.token_hex(4)}"
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")
    if useradd is None:
        raise NoSuchPerson("useradd is not installed")
    with _accounts_locked():
        made = subprocess.run(
            [useradd, "--no-create-home", "--home-dir", str(directory), "--shell", "/bin/sh", name],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    if made.returncode:
        raise NoSuchPerson(f"useradd: {made.stderr.strip()}")
    entry = pwd.getpwnam(name)
    os.chown(directory, entry.pw_uid, entry.pw_gid)
    bare = Person(name, entry.pw_uid, entry.pw_gid, Path(), directory)
    try:
        program = _install(bare, _interpreter_for(bare))
    except BaseException:
        remove_user(bare)
        raise
    return Person("user", bare.uid, bare.gid, program, directory)


def remove_user(person: Person) -> None:
    """Remove the account. userdel refuses while a process of theirs runs: none may be left."""
    name = pwd.getpwuid(person.uid).pw_name
    with _accounts_locked():
        subprocess.run(
            ["/usr/sbin/userdel", name], capture_output=True, timeout=PATIENCE, check=True
        )


@contextlib.contextmanager
def _accounts_locked() -> Iterator[None]:
    """One of us at a time: two folders' tests run at once, and useradd gives up on a held lock."""
    with open(__file__) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        yield


def _interpreter_for(person: Person) -> str:
    """A Python of the suite's version (its compiled packages fit) that the person can run."""
    own = os.path.realpath(sys.executable)
    for path in (own, f"/usr/bin/python{VERSION}", f"/usr/local/bin/python{VERSION}"):
        try:
            done = _as(person, path, "-I", "-c", "import venv, ctypes, ssl")
        except OSError:
            continue
        if done.returncode == 0:
            return path
    raise NoSuchPerson(
        f"no Python {VERSION} that another user can run: {own} is out of their reach, "
        f"and /usr/bin/python{VERSION} is not there"
    )


def _install(person: Person, interpreter: str) -> Path:
    home = person.directory / "environment"
    _check(subprocess.run([interpreter, "-m", "venv", "--without-pip", home], check=False,
                          capture_output=True, text=True, timeout=PATIENCE))  # fmt: skip
    python = home / "bin" / "python"
    packages = home / "lib" / f"python{VERSION}" / "site-packages"
    sources, libraries = SOURCES, Path(sysconfig.get_path("purelib"))
    if _as(person, "/bin/sh", "-c", f"test -r {SOURCES}/keyhole/cli/main.py").returncode:
        sources = Path(shutil.copytree(SOURCES, home / "src"))
    if _as(person, "/bin/sh", "-c", f"test -r {libraries}/uvloop/__init__.py").returncode:
        libraries = Path(shutil.copytree(libraries, home / "libraries"))
    (packages / "keyhole-test.pth").write_text(f"{sources}\n{libraries}\n")
    program = home / "bin" / "keyhole"
    program.write_text(_ENTRY.format(python=python))
    program.chmod(0o755)
    _check(_as(person, str(program), "--version"))
    return program


def _as(person: Person, *words: str) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, cwd="/", env={}, capture_output=True, text=True, timeout=PATIENCE, check=False,
        **person.become(),
    )  # fmt: skip
    return done


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise NoSuchPerson(done.stderr.strip())
