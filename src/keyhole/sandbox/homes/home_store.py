"""The kept homes: a directory for each project and policy, which sandboxes fill.

`homes/ID/` has `home/` and `caches/NAME/`, which are mounted in sandboxes, and beside them a record
and a lock, which are not. Sandboxes of the same project and policy share a home, as two terminals
of a person do. Nothing on the host executes or reads settings from it (I11).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.homes.tree_removal import remove_tree
from keyhole.sandbox.homes.tree_size import TreeSize, measure_trees
from keyhole.system.walk import read_no_links

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOME, _CACHES, _LOCK, _RECORD = "home", "caches", "lock", "record.json"
_REMOVED = ".removed-"
"""The beginning of a directory's name that is being removed."""
_MAX_RECORD = 16384
"""Bytes of a record: two paths and some numbers."""
_DIGITS = 16
_MODE = 0o700
_COUNTED_AT_END = 20_000
"""Entries that are counted when a sandbox ends, in a tenth of a second."""


class HomeKey(Struct, frozen=True):
    """The project, the policy, and the name of a sandbox if it has one.

    The paths count, not the contents: a policy that is edited keeps its home.
    """

    project: str
    policy: str
    name: str = ""

    @classmethod
    def of(cls, project: Path, policy: Path, name: str = "") -> HomeKey:
        """The key for these files of the host, wherever links lead."""
        return cls(os.path.realpath(project), os.path.realpath(policy), name)

    @property
    def id(self) -> str:
        """The name of its directory."""
        parts = (self.project, self.policy, *([self.name] if self.name else []))
        text = "\0".join(parts).encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:_DIGITS]


class HomeOwner(Struct, frozen=True):
    """The user of the sandbox, who owns its files."""

    uid: int
    gid: int


class KeptHome(Struct, frozen=True):
    """A home as `keyhole home list` shows it."""

    id: str
    key: HomeKey
    size: TreeSize
    used: float
    """When a sandbox last began or ended with it, in seconds since 1970."""
    in_use: bool


class OpenHome:
    """A home in use: it cannot be removed until `close`, or until this process ends."""

    def __init__(self, directory: Path, key: HomeKey, lock: int, owner: HomeOwner | None) -> None:
        self._directory = directory
        self._key = key
        self._lock = lock
        self._owner = owner
        self.known_size: int = _number(_read_record(directory).get("bytes"))
        """Its size in bytes when a sandbox last ended; 0 if that is not known."""
        self._note(self.known_size)

    @property
    def home(self) -> Path:
        """The home itself."""
        return self._made(_HOME)

    def cache(self, name: str) -> Path:
        """The directory of a cache."""
        self._made(_CACHES)
        return self._made(f"{_CACHES}/{name}")

    @property
    def trees(self) -> tuple[str, ...]:
        """The directories that sandboxes fill."""
        return str(self._directory / _HOME), str(self._directory / _CACHES)

    def read(self, path: str, limit: int) -> bytes | None:
        """A file below the home as a sandbox left it; None if there is no such regular file, or if
        it is longer."""
        try:
            data = read_no_links(f"{self._directory / _HOME}/{path}", limit + 1)
        except (OSError, ValueError):
            return None
        return data if len(data) <= limit else None

    def close(self) -> None:
        """Note its size, and let go of it."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                size = measure_trees(self.trees, _COUNTED_AT_END)
                self._note(size.bytes if size.whole else max(size.bytes, self.known_size))
            os.close(self._lock)
            self._lock = -1

    def _made(self, name: str) -> Path:
        path = self._directory / name
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=_MODE)
            if self._owner and name != _CACHES:
                os.chown(path, self._owner.uid, self._owner.gid, follow_symlinks=False)
        # Attack: code inside closes the directory itself, and no later run could start.
        if path.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
            path.chmod(_MODE)
        return path

    def _note(self, size: int) -> None:
        record = {
            "project": self._key.project,
            "policy": self._key.policy,
            "name": self._key.name,
            "used": time.time(),
            "bytes": size,
        }
        fresh = self._directory / f"{_RECORD}.{secrets.token_hex(4)}"
        # A path may hold bytes that are not UTF-8: JSON escapes them.
        fresh.write_text(json.dumps(record), encoding="ascii")
        fresh.rename(self._directory / _RECORD)


class HomeStore:
    """All kept homes of a user."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(os.path.realpath(directory))

    def open(self, key: HomeKey, owner: HomeOwner | None = None) -> OpenHome:
        """The home of this key, which is made if there is none. `owner` is the sandbox's user,
        where that is not this process's. Raises Refused."""
        directory = self._directory / key.id
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            return OpenHome(directory, key, _locked(directory, fcntl.LOCK_SH), owner)
        except BlockingIOError:
            raise Refused(f"the kept home {key.id} is being removed; run again") from None
        except OSError as error:
            raise Refused(f"the kept home cannot be used: {visible(str(error))}") from None

    def list(self, *, measured: bool = True) -> list[KeptHome]:
        """The homes, the one that was used last first."""
        found = [self._look(name, measured=measured) for name in self._names()]
        return sorted(found, key=lambda home: -home.used)

    def find(self, id_: str) -> KeptHome | None:
        """The home with this id, not measured."""
        return next((home for home in self.list(measured=False) if home.id == id_), None)

    def remove(self, id_: str) -> None:
        """Remove a home with everything in it. Raises Refused while a sandbox uses it."""
        directory = self._directory / id_
        if id_ not in self._names():
            raise Refused(f"there is no kept home {visible(id_)}; `keyhole home list` shows them")
        gone = f"{_REMOVED}{id_}-{secrets.token_hex(4)}"
        try:
            lock = _locked(directory, fcntl.LOCK_EX)
        except BlockingIOError:
            raise Refused(
                f"the kept home {id_} is in use; end its sandbox first (`keyhole ps`)"
            ) from None
        try:
            # Renamed first: a run that comes now makes a home of its own.
            directory.rename(self._directory / gone)
        finally:
            os.close(lock)
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Finish removals that were interrupted."""
        with contextlib.suppress(FileNotFoundError):
            top = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for name in os.listdir(self._directory):
                    if name.startswith(_REMOVED):
                        with contextlib.suppress(FileNotFoundError):
                            remove_tree(top, name)
            finally:
                os.close(top)

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self._directory):
                if not name.startswith(".") and (self._directory / name).is_dir():
                    yield name

    def _look(self, name: str, *, measured: bool) -> KeptHome:
        directory = self._directory / name
        record = _read_record(directory)
        key = HomeKey(*(str(record.get(part, "")) for part in ("project", "policy", "name")))
        trees = (str(directory / _HOME), str(directory / _CACHES))
        size = measure_trees(trees) if measured else TreeSize(_number(record.get("bytes")))
        used = record.get("used", 0)
        return KeptHome(
            name, key, size, used if isinstance(used, int | float) else 0, _is_in_use(directory)
        )


def _locked(directory: Path, kind: int) -> int:
    """The lock of a home. Raises BlockingIOError, FileNotFoundError if it is removed meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(directory / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        # It may have been renamed between the two calls.
        if not os.path.samestat(os.fstat(lock), os.stat(directory / _LOCK)):
            raise BlockingIOError(errno.EAGAIN, "it was replaced")
    except FileNotFoundError:
        os.close(lock)
        raise BlockingIOError(errno.EAGAIN, "it was removed") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _is_in_use(directory: Path) -> bool:
    try:
        os.close(_locked(directory, fcntl.LOCK_EX))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_record(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_no_links(str(directory / _RECORD), _MAX_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
