"""Bare repositories on a server's disk: made without a work tree, and looked at after a push."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GIT = "/usr/bin/git"
PATIENCE = 120.0
"""Seconds that any one git may take; the largest history of the tests is made in a few."""

WHO = "Server <server@tests.example> 1700000000 +0000"
BARE_OF_SETTINGS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Somebody",
    "GIT_AUTHOR_EMAIL": "somebody@tests.example",
    "GIT_COMMITTER_NAME": "Somebody",
    "GIT_COMMITTER_EMAIL": "somebody@tests.example",
}
"""An environment in which git knows nobody's configuration."""

Files = dict[str, bytes | None]
"""What a commit changes: a path's new content, or None where it goes."""

_QUIET = {
    "http.receivepack": "true",
    # A collection that starts behind a test's back would move objects while it looks at them.
    "gc.auto": "0",
    "receive.autogc": "false",
    "core.fsync": "none",
    # A pack is kept as it came, as forges keep it, and not taken apart.
    "receive.unpackLimit": "1",
}


class GitFailed(AssertionError):
    """git ended with an error where none was expected."""


@dataclass(frozen=True)
class Bare:
    """One of the server's repositories."""

    path: Path

    @classmethod
    def make(cls, path: Path, *, filters: bool = True, object_format: str = "sha1") -> Bare:
        """An empty repository whose default branch is to be `main`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        made = cls(path)
        words = ("init", "--quiet", "--bare", "--initial-branch=main")
        run_git(path.parent, *words, f"--object-format={object_format}", str(path))
        made.configure({**_QUIET, "uploadpack.allowFilter": str(filters).lower()})
        return made

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write settings of this repository."""
        for key, value in settings.items():
            self.git("config", key, value)

    def git(self, *words: str, data: bytes | None = None) -> str:
        """Run git in it; what it says, as text."""
        return run_git(self.path, *words, data=data).decode()

    def pack(self, *wants: str, without: tuple[str, ...] = ()) -> bytes:
        """A pack of all that these need and those do not, as a client would send it."""
        lines = [*wants, *(f"^{each}" for each in without), ""]
        words = ("pack-objects", "--stdout", "--revs", "--quiet")
        return run_git(self.path, *words, data="\n".join(lines).encode())

    def commit(
        self,
        ref: str,
        files: Files,
        *,
        base: str | None = None,
        links: Mapping[str, str] | None = None,
    ) -> str:
        """Put a commit on a branch (`main`) or at a full ref name; gives its oid.

        It follows `base`, by default what the ref has now; `links` are submodules.
        """
        name = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
        now = self.refs().get(name)
        parent = base or now
        # Built beside the branch, which may be moved back by this.
        lines = [b"commit refs/building/next\ncommitter %b\ndata <<END\nof %b\nEND\n\n"
                 % (WHO.encode(), name.encode())]  # fmt: skip
        if parent:
            lines.append(b"from %b\n" % parent.encode())
        for path, oid in (links or {}).items():
            lines.append(f"M 160000 {oid} {path}\n".encode())
        for path, content in files.items():
            if content is None:
                lines.append(b"D %b\n" % path.encode())
            else:
                lines.append(b"M 100644 inline %b\ndata %d\n" % (path.encode(), len(content)))
                lines.append(content + b"\n")
        self.git("fast-import", "--quiet", "--force", "--depth=0", data=b"".join(lines))
        made = self.refs()["refs/building/next"]
        self.git("update-ref", name, made)
        self.git("update-ref", "-d", "refs/building/next")
        return made

    def fill(self, ref: str, files: int, size: int) -> str:
        """Put a commit of many random files at a ref; gives its oid.

        Loose and uncompressed, which takes a third of the time that fast-import does.
        """
        self.git("config", "core.compression", "0")
        words = ("hash-object", "-w", "--stdin")
        oids = [self.git(*words, data=os.urandom(size)).strip() for _ in range(files)]
        entries = "".join(f"100644 blob {oid}\t{at}\n" for at, oid in enumerate(oids)).encode()
        tree = self.git("mktree", data=entries).strip()
        made = self.git("commit-tree", "-m", "many", tree).strip()
        self.point(ref, made)
        return made

    def refs(self) -> dict[str, str]:
        """Every ref and where it points."""
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.rsplit(" ", 1) for line in lines)

    def branch(self, name: str) -> str | None:
        return self.refs().get(f"refs/heads/{name}")

    def point(self, name: str, oid: str) -> None:
        """Set a ref by its full name."""
        self.git("update-ref", name, oid)

    def alias(self, name: str, target: str) -> None:
        """Make a symbolic ref; `HEAD` is the default branch."""
        self.git("symbolic-ref", name, target)

    def has(self, oid: str) -> bool:
        """Whether an object came here, reachable or not."""
        done = _start(self.path, ("cat-file", "-e", oid), None)
        return done.returncode == 0

    def objects(self) -> frozenset[str]:
        """Every object that is here, reachable or not."""
        found = self.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
        return frozenset(found.split())


def run_git(where: Path, *words: str, data: bytes | None = None) -> bytes:
    """Run the system's git outside, without anybody's settings."""
    done = _start(where, words, data)
    if done.returncode:
        raise GitFailed(f"git {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _start(
    where: Path, words: tuple[str, ...], data: bytes | None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [GIT, *words],
        cwd=where,
        env=BARE_OF_SETTINGS,
        input=data if data is not None else b"",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def random_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, the same each time."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - no secret


def newer_git() -> Path | None:
    """A git that somebody installed beside the system's, under /opt, of another version."""
    own = version_of(Path(GIT))
    for path in sorted(Path("/opt").glob("git*/bin/git"), reverse=True):
        if os.access(path, os.X_OK) and version_of(path) > own:
            return path
    return None


def version_of(path: Path) -> tuple[int, ...]:
    """What a git says it is."""
    said = subprocess.run(
        [path, "version"], env=BARE_OF_SETTINGS, capture_output=True, text=True, timeout=PATIENCE,
        check=True,
    ).stdout  # fmt: skip
    return tuple(int(part) for part in said.split()[2].split(".") if part.isdigit())
