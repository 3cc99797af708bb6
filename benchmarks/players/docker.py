"""A container engine to compare with, where one answers, and the smallest image for it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MISSING = "no container engine answers `docker version`"
IMAGE = "keyhole-bench:true"
PATIENCE = 60.0


def program() -> str | None:
    """The client, if an engine answers it."""
    found = shutil.which("docker")
    if found is None:
        return None
    asked = subprocess.run(  # noqa: S603 - found on the path, as a person's own
        [found, "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return found if asked.returncode == 0 else None


@contextmanager
def image(docker: str) -> Iterator[str]:
    """An image that holds true(1) and its libraries; removed at the end."""
    _run(docker, "import", "-", IMAGE, data=_tree())
    try:
        yield IMAGE
    finally:
        _run(docker, "rmi", "--force", IMAGE)


def _tree() -> bytes:
    true = str(Path(shutil.which("true") or "/bin/true").resolve())
    listed = subprocess.run(  # noqa: S603 - a program of the system
        [str(shutil.which("ldd")), true], capture_output=True, text=True, check=True
    )
    words = (word for line in listed.stdout.splitlines() for word in line.split())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in dict.fromkeys(word for word in words if word.startswith("/")):
            tar.add(Path(path).resolve(), path)
        tar.add(true, "/bin/true")
    return packed.getvalue()


def _run(*command: str, data: bytes | None = None) -> None:
    subprocess.run(  # noqa: S603 - the engine's client
        command, input=data, check=True, capture_output=True, timeout=PATIENCE
    )
