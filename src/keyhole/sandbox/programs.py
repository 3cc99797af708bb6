"""The programs that make a sandbox: where they are, and the interpreter as it is seen inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Bind, Kind

SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where the system keeps programs; PATH is not asked, since it may lead into the project (I11)."""


class Missing(Exception):
    """A program that a sandbox cannot be made without, and how to get it."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths on the host, the interpreter inside, and what must be bound for it."""

    bwrap: Path | None
    """None where an engine makes the sandbox."""
    nft: Path
    git: Path | None
    python: str
    files: tuple[Bind, ...]

    @property
    def trusted(self) -> tuple[Path, ...]:
        """All that is run or trusted on the host, which must not be in a writable tree."""
        here = Path(__file__).resolve().parent.parent
        own = (self.bwrap,) if self.bwrap else ()
        return (*own, self.nft, Path(sys.executable), Path(sys.base_prefix), here)


def find(*, contained: bool = False) -> Programs:
    """Find them, or say what to install; `contained` is whether an engine makes the sandbox."""
    interpreter, files = _interpreter()
    return Programs(
        bwrap=None if contained else _required("bwrap", "bubblewrap"),
        nft=_required("nft", "nftables"),
        git=find_program("git"),
        python=interpreter,
        files=files,
    )


def find_program(name: str) -> Path | None:
    """Where the system keeps it, if it has it."""
    for directory in SEARCH:
        path = Path(directory) / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _required(name: str, package: str) -> Path:
    path = find_program(name)
    if path is not None:
        return path
    raise Missing(
        f"{name} is not installed: apt-get install {package}, dnf install {package} "
        f"or pacman -S {package}"
    )


def _interpreter() -> tuple[str, tuple[Bind, ...]]:
    """This interpreter, by its real path: under /usr it is there, from elsewhere it is bound.

    At its own path, since its shared library may be found by that path alone; another
    interpreter's library of the same name would be loaded in its stead.
    """
    real, base = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    if base == Path("/usr"):
        return str(real), ()
    return str(real), (Bind(str(base), str(base), Kind.DIR),)
