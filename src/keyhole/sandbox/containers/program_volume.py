"""Writes our programs into a volume that no engine fills.

Called by a gateway that is itself a container, for sandboxes that mount the volume read-only. The
files are those of the holder's image, from the gateway's own image.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

from keyhole.sandbox.containers import holder_image

if TYPE_CHECKING:
    from pathlib import Path

_KEY = "key"
"""The file that is written last: the digest of the others."""


def fill_program_volume(directory: Path, nft: str, further: tuple[str, ...] = ()) -> None:
    """Write the present programs, with these further modules, into the directory, and remove
    everything else. Raises OSError, ResourceUnusable."""
    archive = holder_image.build_holder_image(holder_image.HolderPrograms.of(nft), further)
    # By a digest of all files: a later image may have a newer library and the same interpreter.
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
    """The archive is our own, so its names are trusted. Modes are set regardless of the umask."""
    top = holder_image.TREE.removeprefix("/")
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
