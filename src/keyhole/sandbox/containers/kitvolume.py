"""Our programs as files in a volume, where nobody asks an engine to fill one.

Called by the gateway that is a container itself, for sandboxes which mount that volume read-only.
The files are those of the holder's image, from the gateway's own image.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

from keyhole.sandbox.containers import closure

if TYPE_CHECKING:
    from pathlib import Path

_KEY = "key"
"""The file that is written last, with what the others are."""


def fill_kit(directory: Path, nft: str) -> None:
    """Have today's programs in there, and nothing else. Raises OSError, Missing."""
    archive = closure.pack(closure.Programs.of(nft))
    # By all that is in it: a later image may have a newer library beside the same interpreter.
    key = hashlib.sha256(archive).hexdigest()
    try:
        if (directory / _KEY).read_text("ascii") == key:
            return
    except FileNotFoundError:
        pass
    (directory / _KEY).unlink(missing_ok=True)
    for each in directory.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    _unpack(archive, directory)
    _write(directory / _KEY, key.encode("ascii"), 0o444)


def _unpack(archive: bytes, directory: Path) -> None:
    """It is our own, so its names are; modes as they are there, whatever the umask."""
    top = closure.TREE.removeprefix("/")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            place = directory / os.path.relpath(member.name, top)
            if member.isdir():
                place.mkdir(exist_ok=True)
                place.chmod(0o755)
            elif (content := tar.extractfile(member)) is not None:
                _write(place, content.read(), member.mode)


def _write(place: Path, content: bytes, mode: int) -> None:
    with place.open("xb") as file:
        file.write(content)
    place.chmod(mode)
