"""The files of the host that a program needs to start: itself, its packages, its interpreter.

Used for agents that are run by name, and to say what a sandbox does not show of a program. Nothing
is run: links are followed, first lines and `pyvenv.cfg` are read. Layouts that are known: npm's
prefixes (nvm, fnm, mise, Homebrew), pnpm, yarn and bun, virtual environments (uv, pipx), Pythons of
pyenv and uv, `pip install --user`, shims of pyenv, asdf and mise, and single binaries.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.settings_file import read_text
from keyhole.system.symlinks import follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.host_environment import HostEnvironment

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc")
"""Trees that every sandbox shows."""
MAX_CHAIN = 8
"""Programs that lead to one another: a wrapper, a script, its interpreter."""
_HEAD = 4096
"""Bytes of a script in which its first line and a wrapper's target stand."""
_MAX_SHIMS = 200
"""Versions that are looked through behind a shim."""

_WRAPPED = re.compile(r'"\$basedir/([^"$`\\]{1,500})"')
_BASE = re.compile(r"^home *= *(/[^\n]{1,500})$", re.MULTILINE)


class ProgramTrees(Struct, frozen=True):
    """A program as the sandbox is to see it. All paths are absolute."""

    program: str
    """The path to start, of which only the last part may be a link."""
    real: str
    """The target of that path, and of a wrapper of pnpm there."""
    trees: tuple[str, ...]
    """Files and directories to show, without links in their paths; none lies in another."""
    links: tuple[tuple[str, str], ...]
    """Links outside of these trees, each with its target."""
    search: tuple[str, ...]
    """Directories for PATH."""
    missing: tuple[str, ...] = ()
    """Interpreters that this host does not have."""


def program_trees(program: Path, host: HostEnvironment) -> ProgramTrees:
    """The trees that a program of this host needs. Raises LinkInPath if its links form a loop."""
    found = _Found(host)
    place = found.place(str(program))
    found.add(place)
    trees = _outermost(found.trees)
    links = tuple(
        (link, target) for link, target in found.links.items() if not _is_shown(link, trees)
    )
    search = dict.fromkeys(path for path in found.search if not _is_of_system(path))
    real = follow(found.wrapped or place).end
    return ProgramTrees(place, real, trees, links, tuple(search), tuple(found.missing))


class _Found:
    """Collects files, from one program to the next that it needs."""

    def __init__(self, host: HostEnvironment) -> None:
        self._host = host
        self._seen: set[str] = set()
        self.trees: dict[str, None] = {}
        self.links: dict[str, str] = {}
        self.search: list[str] = []
        self.missing: list[str] = []
        self.wrapped = ""

    def place(self, path: str) -> str:
        """The path with no link in its directories, and behind a shim."""
        for _ in range(MAX_CHAIN):
            path = f"{os.path.realpath(os.path.dirname(path))}/{os.path.basename(path)}"
            behind = _behind_shim(path, self._host)
            if behind is None:
                break
            path = behind
        return path

    def add(self, path: str, *, searched: bool = True) -> None:
        """The program, its packages, and the interpreter that its first line names. `searched`:
        whether it is found by PATH."""
        if path in self._seen or len(self._seen) >= MAX_CHAIN:
            return
        self._seen.add(path)
        if searched:
            self.search.append(os.path.dirname(path))
        trail = follow(path)
        self.links |= {link: to for link, to in trail.links if not _is_of_system(link)}
        self._add_layout(path, trail.end)
        head = _head(trail.end)
        if head.startswith("#!"):
            self._add_interpreter(head)
            self._add_wrapped(trail.end, head)

    def _add_layout(self, path: str, real: str) -> None:
        """The tree that belongs to a program by the layout in which it lies."""
        environment = next((d for d in _above(path, 3) if os.path.isfile(f"{d}/pyvenv.cfg")), None)
        if environment is not None:
            self._add_environment(environment)
        if _is_of_system(real):
            return
        package = _package_of(real)
        prefix = _prefix_of(real)
        if package is not None:
            self.show(package)
        elif prefix is not None and _is_python(real) and _has_library(prefix):
            self._show_python(prefix, real)
        elif prefix is not None and os.path.basename(real) == "node":
            self.show(real if _is_shared(prefix, self._host) else f"{prefix}/bin")
            self.show(f"{prefix}/lib/node_modules/npm")
        else:
            self.show(real)
        if (library := _of_user(path, self._host)) is not None:
            self.show(library)

    def _add_environment(self, environment: str) -> None:
        """A virtual environment, and the Python that it is made from."""
        settings = read_text(Path(environment, "pyvenv.cfg")) or ""
        base = _BASE.search(settings)
        prefixes = [os.path.dirname(os.path.realpath(base[1].strip()))] if base else []
        python = f"{environment}/pyvenv.cfg"
        self._show_python(environment, python)
        for link in ("python", "python3"):
            path = f"{environment}/bin/{link}"
            if os.path.lexists(path):
                trail = follow(path)
                self.links |= {name: to for name, to in trail.links if not _is_of_system(name)}
                prefixes.append(os.path.dirname(os.path.dirname(trail.end)))
                python = trail.end
        for prefix in prefixes:
            if _has_library(prefix):
                self._show_python(prefix, python)

    def _show_python(self, prefix: str, file: str) -> None:
        """The tree of a Python, or of a virtual environment. Attack: `~/.local` has one as well,
        and beside it the data of every other program; there only the file and the libraries are
        shown (I1)."""
        if not _is_shared(prefix, self._host):
            self.show(prefix)
            return
        self.show(file)
        for name in _libraries(prefix):
            self.show(f"{prefix}/lib/{name}")

    def _add_interpreter(self, head: str) -> None:
        words = head.partition("\n")[0][2:].split()
        if not words:
            return
        searched = os.path.basename(words[0]) == "env"
        if searched:
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            found = self._host.program(names[0]) if names else None
            if found is None and names:
                self.missing.append(names[0])
            interpreter = str(found) if found else ""
        else:
            interpreter = words[0]
        if interpreter.startswith("/") and os.path.exists(interpreter):
            self.add(self.place(interpreter), searched=searched)
        elif interpreter:
            self.missing.append(interpreter)

    def _add_wrapped(self, real: str, head: str) -> None:
        """The program that a wrapper of pnpm starts, and node for it."""
        wrapped = _WRAPPED.search(head)
        if wrapped is None:
            return
        target = os.path.normpath(os.path.join(os.path.dirname(real), wrapped[1]))
        if os.path.isfile(target):
            self.wrapped = self.place(target)
            self.add(self.wrapped)
            node = self._host.program("node")
            if node is not None:
                self.add(self.place(str(node)))

    def show(self, path: str) -> None:
        """Remember a tree, unless every sandbox shows it."""
        real = os.path.realpath(path)
        if os.path.exists(real) and not _is_of_system(real):
            self.trees[real] = None


def _package_of(real: str) -> str | None:
    """The package of npm that a file belongs to.

    Below a prefix (`lib/node_modules`) a package has its own dependencies; elsewhere all packages
    lie side by side, and pnpm's are links into a store beside them.
    """
    before, found, after = real.partition("/node_modules/")
    if not found:
        return None
    store, of_pnpm, _ = real.partition("/.pnpm/")
    if of_pnpm:
        return store
    if os.path.basename(before) != "lib":
        return f"{before}/node_modules"
    names = after.split("/")
    return f"{before}/node_modules/{'/'.join(names[: 2 if names[0].startswith('@') else 1])}"


def _behind_shim(path: str, host: HostEnvironment) -> str | None:
    """The program that a shim of pyenv, asdf or mise starts: of the version that is set for all
    projects, else of the one that was installed last."""
    directory, name = os.path.split(path)
    if os.path.basename(directory) != "shims":
        return None
    root = Path(os.path.dirname(directory))
    chosen = (host.env.get("PYENV_VERSION") or read_text(root / "version") or "").split()
    for version in chosen[:MAX_CHAIN]:
        candidate = root / "versions" / version.split(":")[0] / "bin" / name
        if "/" not in version and candidate.is_file():
            return str(candidate)
    found = [p for p in _versions(root, name) if p.is_file()]
    return str(max(found, key=lambda p: p.stat().st_mtime)) if found else None


def _versions(root: Path, name: str) -> Iterator[Path]:
    count = 0
    for pattern in (f"versions/*/bin/{name}", f"installs/*/*/bin/{name}"):
        for path in root.glob(pattern):
            count += 1
            if count > _MAX_SHIMS:
                return
            yield path


def _of_user(path: str, host: HostEnvironment) -> str | None:
    """The packages of `pip install --user`, for a script that it made."""
    if os.path.dirname(path) != f"{os.path.realpath(host.home)}/.local/bin":
        return None
    head = _head(path)
    words = head.partition("\n")[0][2:].split() if head.startswith("#!") else []
    if not words or "\0" in words[-1] or not _is_python(os.path.realpath(words[-1])):
        return None
    version = os.path.basename(os.path.realpath(words[-1]))
    library = f"{os.path.realpath(host.home)}/.local/lib/{version}/site-packages"
    return library if os.path.isdir(library) else None


def _prefix_of(real: str) -> str | None:
    directory = os.path.dirname(real)
    return os.path.dirname(directory) if os.path.basename(directory) == "bin" else None


def _is_python(real: str) -> bool:
    return os.path.basename(real).startswith(("python", "pypy"))


def _has_library(prefix: str) -> bool:
    """Whether a Python is installed there, and not in a tree of the system."""
    return not _is_of_system(prefix) and prefix != "/" and bool(_libraries(prefix))


def _libraries(prefix: str) -> list[str]:
    try:
        names = os.listdir(f"{prefix}/lib")
    except OSError:
        return []
    return [name for name in names if name.startswith(("python", "pypy"))]


def _is_shared(prefix: str, host: HostEnvironment) -> bool:
    """Whether a prefix is no installation's own: `~/.local`, the home, a tree above it, `/opt`."""
    home, local = os.path.realpath(host.home), os.path.realpath(host.home / ".local")
    return prefix in (local, "/opt") or f"{home}/".startswith(f"{prefix}/")


def _above(path: str, steps: int) -> Iterator[str]:
    for _ in range(steps):
        path = os.path.dirname(path)
        yield path


def _head(path: str) -> str:
    try:
        with open(path, "rb", opener=_opener) as file:
            return file.read(_HEAD).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _is_of_system(path: str) -> bool:
    return any(path == tree or path.startswith(f"{tree}/") for tree in SYSTEM)


def _outermost(trees: dict[str, None]) -> tuple[str, ...]:
    return tuple(path for path in trees if not any(path.startswith(f"{other}/") for other in trees))


def _is_shown(path: str, trees: tuple[str, ...]) -> bool:
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)
