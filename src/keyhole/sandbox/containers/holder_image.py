"""The content of the holder's image: this interpreter, nft, and the few files that both need.

Called when an engine does not have the image yet. The files are this host's own, so no registry is
contacted and no version has to be maintained. They are started by their own loader with their own
libraries, so they run in any image, also in one with another C library or with none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

import keyhole
from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.programs import own_code

if TYPE_CHECKING:
    from collections.abc import Iterable

TREE = "/.keyhole"
"""The mount point of the tree, in the holder and, read-only, in the sandbox."""
LOADER = f"{TREE}/loader"
LIBRARIES = f"{TREE}/lib"
PYTHON = f"{TREE}/python/bin/python"
NFT = f"{TREE}/nft"
OWN = f"{TREE}/own"
"""Keyhole's modules that run inside."""

LOADED = (LOADER, "--library-path", LIBRARIES)
"""The words that start one of these programs."""

_SECONDS = 60.0
_STDLIB = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
_PROGRAMS = ("holder", "entrypoint", "composed", "idle", "chown_volume", "tidy_volume")
_INSIDE = (
    *(f"keyhole.sandbox.containers.{name}" for name in _PROGRAMS),
    "keyhole.sandbox.probe",
    "subprocess",  # for what calls the clients of an image
)
_LISTER = """\
import json, sys
sys.path.insert(0, sys.argv[1])
import encodings.ascii, encodings.latin_1, os, runpy
for name in sys.argv[2:]:
    __import__(name)
found = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name != "__main__":
        found[name] = file
print(json.dumps(found))
"""
"""Lists every module that is loaded once these are imported. None of them imports another one
later."""


class HolderPrograms(Struct, frozen=True):
    """The programs in the image, by this host's paths."""

    interpreter: str
    nft: str

    @classmethod
    def of(cls, nft: str) -> HolderPrograms:
        """This interpreter, outside of any virtual environment, and this nft."""
        return cls(os.path.realpath(sys.executable), os.path.realpath(nft))


def interpreter_command(*words: str) -> list[str]:
    """How our interpreter is started inside."""
    return [*LOADED, PYTHON, *words]


def program_command(module: str, *arguments: str) -> list[str]:
    """How one of our programs is started inside."""
    start = f"import sys; sys.path.insert(0, {OWN!r}); from {module} import main; sys.exit(main())"
    return interpreter_command("-I", "-S", "-c", start, *arguments)


def holder_image_key(programs: HolderPrograms) -> str:
    """The image's key, computed quickly without building it."""
    digest = hashlib.sha256(sys.version.encode())
    for path in own_code():
        digest.update(path.read_bytes())
    # The loader and the C library come from one build, so a new library has a new loader.
    for program in (programs.interpreter, programs.nft, loader_of(programs.interpreter)):
        status = os.stat(program)
        digest.update(f"{program} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def build_holder_image(programs: HolderPrograms, further: tuple[str, ...] = ()) -> bytes:
    """The image's files as a tar archive, with these further modules.

    Raises ResourceUnusable when this host cannot provide them.
    """
    loader = loader_of(programs.interpreter)
    modules = modules_of(programs.interpreter, (*_INSIDE, *further))
    shared = [f for f in modules.values() if not f.endswith(".py")]
    libraries: dict[str, str] = {}
    for program in (programs.interpreter, programs.nft, *shared):
        libraries |= libraries_of(loader, program)
    archive = Archive()
    # Not readable, so that none of our processes can be traced (execve(2), PR_SET_DUMPABLE):
    # otherwise code inside could stop a command that joins before its filter is loaded.
    archive.put(LOADER, _ours(Path(loader).read_bytes()), 0o711)
    archive.copy(PYTHON, programs.interpreter, 0o755)
    archive.copy(NFT, programs.nft, 0o755)
    for name, file in sorted(libraries.items()):
        archive.copy(f"{LIBRARIES}/{name}", file, 0o755)
    standard = os.path.dirname(os.__file__)
    for name, file in sorted(modules.items()):
        place = _place_of(name, file)
        if file.endswith(".py"):
            archive.put(f"{place}c", _compiled(file))
        else:
            archive.copy(place, file, 0o755)
    # The interpreter finds its library by this file, though the module is frozen into it.
    archive.put(f"{TREE}/python/{_STDLIB}/os.pyc", _compiled(f"{standard}/os.py"))
    archive.directory(f"{TREE}/python/{_STDLIB}/lib-dynload")
    return archive.content()


def _ours(loader: bytes) -> bytes:
    """glibc's loader with another path of its preload list: an image's list would load the image's
    own code into the process that asserts (I2). The new path has the same length and lies in our
    read-only tree, where no such file exists."""
    return loader.replace(b"/etc/ld.so.preload\0", f"{TREE}/preloads\0".encode())


def _place_of(name: str, file: str) -> str:
    top = f"{OWN}" if name.partition(".")[0] == "keyhole" else f"{TREE}/python/{_STDLIB}"
    base = os.path.basename(file)
    if not file.endswith(".py"):
        return f"{TREE}/python/{_STDLIB}/lib-dynload/{base}"
    parts = name.split(".") if base == "__init__.py" else name.split(".")[:-1]
    return "/".join((top, *parts, base))


def modules_of(interpreter: str, names: Iterable[str]) -> dict[str, str]:
    """All modules that these import, and the path of each on this host."""
    root = os.path.dirname(keyhole.__path__[0])
    command = [interpreter, "-I", "-S", "-c", _LISTER, root, *names]
    text = _said(command)
    try:
        found = json.loads(text)
    except ValueError:
        raise ResourceUnusable(f"{interpreter} does not say what it loads") from None
    return {str(name): str(file) for name, file in found.items()}


def _compiled(file: str) -> bytes:
    """A module's bytecode, as the interpreter reads it where the source is missing."""
    source = Path(file).read_bytes()
    code = compile(source, f"<keyhole {os.path.basename(file)}>", "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def loader_of(program: str) -> str:
    """The real path of the program's loader."""
    return os.path.realpath(interpreter_of(program))


def interpreter_of(program: str) -> str:
    """The loader's path as the program names it: the segment PT_INTERP of an ELF file (elf(5))."""
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise ResourceUnusable(
                f"{program} is no program of 64 bits, so no holder can be made of it"
            )
        offset, size, count = (
            struct.unpack_from("=Q", head, 32)[0],
            *struct.unpack_from("=HH", head, 54),
        )
        for index in range(count):
            file.seek(offset + index * size)
            kind, _, where, _, _, length = struct.unpack("=IIQQQQ", file.read(40))
            if kind == 3:  # PT_INTERP
                file.seek(where)
                return file.read(length).rstrip(b"\0").decode()
    raise ResourceUnusable(f"{program} is linked without a loader, so no holder can be made of it")


def libraries_of(loader: str, program: str) -> dict[str, str]:
    """The libraries that the loader would load, by the names under which it looks for them."""
    found = {}
    for line in _said([loader, "--list", program]).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        path = rest.rpartition(" (")[0]
        if arrow and path.startswith("/"):
            found[os.path.basename(name)] = path
        elif arrow:
            raise ResourceUnusable(f"{program} needs {name}, which is not installed")
    return found


def _said(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 - programs that were judged: this interpreter, its loader
        command, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ResourceUnusable(f"no holder can be made: {command[0]} said {lines[-1]}")
    return done.stdout


class Archive:
    """A tar archive in memory, with the same bytes for the same files."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w")
        self._seen: set[str] = set()

    def copy(self, place: str, source: str, mode: int = 0o644) -> None:
        self.put(place, Path(source).read_bytes(), mode)

    def put(self, place: str, content: bytes, mode: int = 0o644) -> None:
        if place in self._seen:
            return
        self._parents(place)
        self._seen.add(place)
        entry = tarfile.TarInfo(place.removeprefix("/"))
        entry.size, entry.mode = len(content), mode
        self._tar.addfile(entry, io.BytesIO(content))

    def directory(self, place: str, mode: int = 0o755) -> None:
        if place in self._seen:
            return
        self._parents(place)
        self._seen.add(place)
        entry = tarfile.TarInfo(place.removeprefix("/"))
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def link(self, place: str, to: str) -> None:
        self._parents(place)
        self._seen.add(place)
        entry = tarfile.TarInfo(place.removeprefix("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, to
        self._tar.addfile(entry)

    def _parents(self, place: str) -> None:
        above = place.rpartition("/")[0]
        if above:
            self.directory(above)

    def content(self) -> bytes:
        self._tar.close()
        return self._file.getvalue()
