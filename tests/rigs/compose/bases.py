"""Base images of this host's own packages: Debian, as far as it is installed here.

No registry is asked. What a package installed is what `dpkg` says it did, and what it needs comes
along, so the image is one from which its programs run as they do on a Debian of one's own.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

from tests.rigs.containers.engines import NoEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

SHELL = ("dash", "coreutils", "grep", "sed", "libc-bin", "base-files", "curl")
RUNTIME = (*SHELL, "python3", "nftables", "libseccomp2", "libstdc++6")
BUILDER = ("python3-pip",)

_NOT_NEEDED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/zoneinfo/")
_MERGED = ("bin", "sbin", "lib", "lib64")
"""Links into /usr, on a Debian of today."""
_MADE = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ld.so.cache", "/etc/nsswitch.conf")
"""Files that no package has, and that are made when one is installed."""

_UNPACKED = ("ii", "iF", "iW", "it")
"""States of an installed package; the last three while a trigger of another one waits or runs."""

_OWN = ("/", "/etc/passwd", "/etc/group", "/tmp")  # noqa: S108 - of the image


def packages(wanted: Iterable[str]) -> set[str]:
    """These and all that they need. NoEngine where one of them is not installed."""
    if shutil.which("dpkg-query") is None:
        raise NoEngine("a base image is made of Debian's packages, and this is no Debian")
    fields = "${Package}\t${db:Status-Abbrev}\t${Pre-Depends}, ${Depends}\n"
    said = _said("dpkg-query", "-W", "-f", fields)
    needs = {}
    for line in said.splitlines():
        name, status, depends = line.split("\t")
        if status[:2] in _UNPACKED:
            needs[name] = [
                choice.split()[0].partition(":")[0]
                for group in depends.split(",")
                for choice in group.split("|")
                if choice.strip()
            ]
    missing = [name for name in wanted if name not in needs]
    if missing:
        raise NoEngine(f"not installed: {', '.join(missing)}")
    found, ahead = set(), list(wanted)
    while ahead:
        name = ahead.pop()
        if name in needs and name not in found:
            found.add(name)
            ahead += needs[name]
    return found


def base(wanted: Iterable[str], beside: Iterable[str] = ()) -> bytes:
    """A root with these packages, as an archive that an engine imports.

    Without those that are there with what it comes beside.
    """
    listed = _said("dpkg", "-L", *sorted(packages(wanted) - packages(beside))).splitlines()
    paths = {p for p in listed if p.startswith("/") and not p.startswith(_NOT_NEEDED)}
    paths |= {path for path in _MADE if os.path.exists(path)}
    # Compiled when the package was installed; without it every start would compile anew.
    compiled = {importlib.util.cache_from_source(p) for p in paths if p.endswith(".py")}
    paths |= {os.path.dirname(path) for path in compiled} | compiled
    buffer = io.BytesIO()
    seen: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in _MERGED:
            if os.path.islink(f"/{name}"):
                _add(tar, f"/{name}", seen)
        for path in sorted(paths):
            _add(tar, path, seen)
        for path, text in (("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", "")):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, seen: set[str]) -> None:
    """By the name under which it really lies: an old package still says /bin/sh."""
    place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if place in seen or not os.path.lexists(place) or place in _OWN:
        return
    seen.add(place)
    link = os.path.islink(place)
    if link and os.readlink(place).startswith("/etc/alternatives/"):
        real = os.path.realpath(place)
        if os.path.isfile(real):
            tar.add(real, place[1:], recursive=False)
        return
    tar.add(place, place[1:], recursive=False)


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout
