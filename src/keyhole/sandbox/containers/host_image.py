"""An image of this host's own programs, for the doctor and the demo: no registry is asked.

It has an interpreter with HTTPS and, where the host has them, a shell, git and curl, as ordinary
images do, so that results hold for those too. It contains nothing of Keyhole's.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.container_spec import LABEL, OWN_IMAGE
from keyhole.system.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.sandbox.containers.engine import Engine

PREFIX = "/usr/local"
"""The interpreter's library, which it finds relative to its own path."""

_BIN = "/usr/bin"
_MODULES = """
site base64 json socket ssl subprocess encodings.idna http.client urllib.error urllib.request
""".split()
"""Modules that the clients import, and those that are imported only when a name is looked up."""
_STDLIB = f"{PREFIX}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
_LIBC = "libc.so.6"
_SECONDS = 20.0


@contextmanager
def build_host_image(engine: Engine) -> Iterator[str]:
    """Build the image, and return its name, while the block lasts. Raises ResourceUnusable,
    EngineFailed."""
    name = f"{OWN_IMAGE}:{secrets.token_hex(6)}"
    engine.import_image(_pack(), name, {LABEL: "own"})
    try:
        yield name
    finally:
        engine.forget_image(name)


def _pack() -> bytes:
    interpreter = os.path.realpath(sys.executable)
    loader = holder_image.loader_of(interpreter)
    modules = holder_image.modules_of(interpreter, _MODULES)
    placed = {interpreter: f"{PREFIX}/bin/python3"} | _tools()
    for file in modules.values():
        if not file.endswith(".py"):
            placed[file] = f"{_STDLIB}/lib-dynload/{os.path.basename(file)}"
    libraries: dict[str, str] = {}
    for program in placed:
        libraries |= holder_image.libraries_of(loader, program)
    if _LIBC not in libraries:
        raise ResourceUnusable(f"no image can be made of this host's programs: none loads {_LIBC}")
    archive = holder_image.Archive()
    archive.copy(holder_image.interpreter_of(interpreter), loader, 0o755)
    # The loader looks for every library where its own lies.
    place = os.path.dirname(libraries[_LIBC])
    for name, file in sorted(libraries.items()):
        archive.copy(f"{place}/{name}", file, 0o755)
    for file, target in sorted(placed.items()):
        archive.copy(target, file, 0o755)
    for name, file in sorted(modules.items()):
        if file.endswith(".py"):
            archive.copy(_place_of(name, file), file)
    archive.copy(f"{_STDLIB}/os.py", os.__file__)
    if f"{_BIN}/sh" in placed.values():
        archive.link("/bin/sh", f"{_BIN}/sh")  # hooks of git name it so
    archive.directory("/usr/share/git-core/templates")  # git complains where there are none
    archive.directory("/tmp", 0o1777)  # noqa: S108 - of the image
    return archive.content()


def _place_of(name: str, file: str) -> str:
    base = os.path.basename(file)
    parts = name.split(".") if base == "__init__.py" else name.split(".")[:-1]
    return "/".join((_STDLIB, *parts, base))


def _tools() -> dict[str, str]:
    """Programs of the host to copy where it has them, by their path in the image."""
    found: dict[str, str] = {}
    for name in ("sh", "curl"):
        if program := find_program(name):
            found[os.path.realpath(program)] = f"{_BIN}/{name}"
    if git := find_program("git"):
        words = [str(git), "--exec-path"]
        done = subprocess.run(  # noqa: S603 - found where the system keeps programs
            words, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
            text=True, check=False,
        )  # fmt: skip
        remote = f"{done.stdout.strip()}/git-remote-https"
        if done.returncode == 0 and os.path.exists(remote):
            found[os.path.realpath(git)] = f"{_BIN}/git"
            found[os.path.realpath(remote)] = remote
    return found
