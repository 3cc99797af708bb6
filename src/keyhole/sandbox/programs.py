"""The programs that make a sandbox: their paths, and the interpreter's path inside."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.files.mount_plan import Bind, MountKind
from keyhole.system.packages import find_missing, how_to_install
from keyhole.system.programs import find_program


class SandboxPrograms(Struct, frozen=True):
    """Absolute paths on the host, the interpreter inside, and the binds that it needs."""

    bwrap: Path | None
    """None where an engine makes the sandbox."""
    nft: Path
    git: Path | None
    python: str
    files: tuple[Bind, ...]

    @property
    def trusted(self) -> tuple[Path, ...]:
        """All programs that are run or trusted on the host. None may be in a writable tree."""
        here = Path(__file__).resolve().parent.parent
        own = (self.bwrap,) if self.bwrap else ()
        return (*own, self.nft, Path(sys.executable), Path(sys.base_prefix), here)


def find_programs(*, contained: bool = False) -> SandboxPrograms:
    """Find them, or raise an error that says what to install. `contained`: an engine makes the
    sandbox."""
    interpreter, files = _interpreter()
    return SandboxPrograms(
        bwrap=None if contained else _required("bwrap", contained=contained),
        nft=_required("nft", contained=contained),
        git=find_program("git"),
        python=interpreter,
        files=files,
    )


def _required(name: str, *, contained: bool) -> Path:
    path = find_program(name)
    if path is not None:
        return path
    # All that is missing at once: a person installs once.
    needs = find_missing(contained=contained)
    raise ResourceUnusable(f"{name} is not installed; {how_to_install(needs)}")


def _interpreter() -> tuple[str, tuple[Bind, ...]]:
    """This interpreter by its real path; it is bound if it is not under /usr.

    It keeps its path, since its shared library may be found only by that path; otherwise another
    interpreter's library of the same name would be loaded.
    """
    real, base = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    if base == Path("/usr"):
        return str(real), ()
    return str(real), (Bind(str(base), str(base), MountKind.DIR),)


def own_code() -> list[Path]:
    """Our own modules that make or assert a sandbox's walls."""
    here = Path(__file__).resolve().parent.parent
    rooms = ("confine", "sandbox", "system")
    return [path for room in rooms for path in sorted((here / room).rglob("*.py"))]
