"""The system's trees that are shown, read-only: programs, libraries, and the few settings they
need.

Nothing of /run, /sys, /boot, /root, /home or /var is shown: they hold sockets of the host's
services, its secrets and its people's files (I1, I2). /proc, /dev and /tmp are made by the runtime.
"""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from keyhole.model.text import visible
from keyhole.sandbox.files.credential_patterns import text_looks_secret
from keyhole.sandbox.files.mount_plan import Bind, Entry, Mask, MountKind, Symlink, Tmpfs

_TREES = ("usr", "nix/store", "gnu/store")
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
RUN_BYTES = 16 << 20
VAR_TMP_BYTES = 1 << 30
"""Bytes of scratch space in memory: enough for a build's temporary files, too little to exhaust the
host."""
_MAX_SETTING = 1 << 20
"""Bytes of one settings file; larger ones are not settings, and are left out."""

_PLAIN = """
ld.so.cache ld.so.conf ld.so.conf.d alternatives
ssl/certs ssl/cert.pem ssl/openssl.cnf ca-certificates ca-certificates.conf
pki/ca-trust pki/tls/certs pki/tls/cert.pem pki/tls/openssl.cnf pki/java crypto-policies
localtime timezone locale.alias locale.conf mime.types magic protocols services rpc ethertypes
networks host.conf gai.conf os-release debian_version lsb-release fedora-release redhat-release
alpine-release arch-release shells login.defs inputrc terminfo fonts xml sgml manpath.config dpkg
python3* perl java-*-openjdk java bash_completion.d apt/trusted.gpg.d apt/keyrings
""".split()
_CHECKED = """
bash.bashrc bashrc profile profile.d maven
apt/sources.list apt/sources.list.d apt/apt.conf apt/apt.conf.d apt/preferences apt/preferences.d
pip.conf wgetrc gemrc
""".split()
"""Files in which people leave passwords: each is shown only if none is found in it. Never shown:
npmrc, apt/auth.conf, apt/auth.conf.d, environment, gitconfig, ssh, ssl/private, pki/tls/private."""
_OF_PACKAGE_MANAGERS = (
    "usr/etc/npmrc",
    "usr/local/etc/npmrc",
    "usr/pip.conf",
    "usr/local/pip.conf",
)
"""Settings inside the shown trees: masked if they hold a credential."""


class SystemFiles(Struct, frozen=True):
    """The entries for the system, and the files that were left out."""

    entries: tuple[Entry, ...]
    withheld: tuple[str, ...]


def system_files(root: Path, needed_links: frozenset[str]) -> SystemFiles:
    """Entries for the system whose files lie below `root` (`/`, except in tests).

    `needed_links` are further links at the top (`home`, if it leads to var/home) to recreate.
    """
    entries: list[Entry] = []
    withheld: list[str] = []
    entries += [
        Bind(os.path.realpath(root / name), f"/{name}", MountKind.DIR)
        for name in _TREES
        if (root / name).is_dir()
    ]
    for name in (*_TOP, *sorted(needed_links)):
        path = root / name
        if path.is_symlink():
            entries.append(Symlink(f"/{name}", os.readlink(path)))
        elif path.is_dir():
            entries.append(Bind(str(path), f"/{name}", MountKind.DIR))
    for name in _OF_PACKAGE_MANAGERS:
        if _is_file(root / name) and _secret_in(root / name):
            entries.append(Mask(f"/{name}", MountKind.FILE))
            withheld.append(f"/{name}")
    for pattern in _PLAIN:
        entries += [e for n in _matching(root, pattern) if (e := _shown(root, n))]
    for pattern in _CHECKED:
        for name in _matching(root, pattern):
            entry = _shown(root, name)
            entries += _checked(entry, withheld) if entry else []
    entries.append(Symlink("/etc/mtab", "/proc/self/mounts"))
    entries.append(Tmpfs("/run", RUN_BYTES))
    entries.append(Tmpfs("/var/tmp", VAR_TMP_BYTES, 0o1777))  # noqa: S108 - inside
    return SystemFiles(tuple(entries), tuple(map(visible, withheld)))


def _matching(root: Path, pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    return sorted(name for name in os.listdir(root / "etc") if fnmatchcase(name, pattern))


def _shown(root: Path, name: str) -> Bind | Symlink | None:
    path = root / "etc" / name
    target = f"/etc/{name}"
    if path.is_symlink():
        to = os.readlink(path)
        # Programs read the zone's name from the target of /etc/localtime, so a link stays one.
        if os.path.normpath(os.path.join(os.path.dirname(target), to)).startswith("/usr/"):
            return Symlink(target, to)
    real = os.path.realpath(path)
    # Not an /etc/ssl/certs that leads into a home directory.
    if not any(real.startswith(f"{root / home}/") for home in ("etc", *_TREES)):
        return None
    kind = _kind(real)
    return Bind(real, target, kind) if kind else None


def _checked(entry: Bind | Symlink, withheld: list[str]) -> list[Entry]:
    if isinstance(entry, Symlink):
        return [entry]
    if entry.kind is MountKind.FILE:
        if _secret_in(Path(entry.source)):
            withheld.append(entry.target)
            return []
        return [entry]
    found: list[Entry] = [entry]
    for directory, _, files in os.walk(entry.source):
        for name in sorted(files):
            path = os.path.join(directory, name)
            if _kind(path) is MountKind.FILE and _secret_in(Path(path)):
                target = entry.target + path.removeprefix(entry.source)
                found.append(Mask(target, MountKind.FILE))
                withheld.append(target)
    return found


def _secret_in(path: Path) -> bool:
    """Whether it contains a credential, or might: a file that cannot be read whole is hidden."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _MAX_SETTING else None
    except OSError:
        return True
    return data is None or text_looks_secret(data.decode("utf-8", "replace")) is not None


def _kind(path: str) -> MountKind | None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return MountKind.DIR
    return MountKind.FILE if stat.S_ISREG(mode) else None


def _is_file(path: Path) -> bool:
    return _kind(str(path)) is MountKind.FILE
