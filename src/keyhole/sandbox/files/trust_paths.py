"""The paths at which the programs of this host look for trusted authorities, as seen inside.

Called by code that mounts certificates there. Only paths that exist on the host are named. Which
authorities are trusted is not decided here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.inside_path import InsidePath, resolve_inside
from keyhole.sandbox.files.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from keyhole.sandbox.files.mount_plan import Entry

BUNDLES = """
/etc/ssl/certs/ca-certificates.crt
/etc/ssl/certs/ca-bundle.crt
/etc/ssl/cert.pem
/etc/ssl/ca-bundle.pem
/etc/pki/tls/cert.pem
/etc/pki/tls/certs/ca-bundle.crt
/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
/etc/ca-certificates/extracted/tls-ca-bundle.pem
/usr/lib/ssl/cert.pem
""".split()
"""All roots in one PEM file: Debian, Nix, Alpine, SUSE, Fedora, Arch, and OpenSSL's own place."""

TRUSTSTORES = ("/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts")
"""The trust stores that all JVMs of Debian or Fedora share."""

_JVM_TREES = ("usr/lib/jvm", "usr/lib64/jvm", "usr/java")
_OF_A_JVM = ("lib/security/cacerts", "jre/lib/security/cacerts")
"""In a JVM's own directory, since Java 9 and before."""


class TrustStorePaths(Struct, frozen=True):
    """The paths at which programs look for authorities, as mount points."""

    bundles: tuple[str, ...]
    truststores: tuple[str, ...]


def bundle_paths(entries: Sequence[Entry], root: Path) -> tuple[str, ...]:
    """The PEM bundles of the system below `root` (`/`, except in tests), by their mount points."""
    return _places(BUNDLES, entries, root)


def truststore_paths(entries: Sequence[Entry], root: Path) -> tuple[str, ...]:
    """The trust stores of each JVM that is installed, by their mount points."""
    own = [
        f"/{tree}/{name}/{store}"
        for tree in _JVM_TREES
        for name in _names(root / tree)
        for store in _OF_A_JVM
    ]
    return _places((*own, *TRUSTSTORES), entries, root)


def _places(paths: Iterable[str], entries: Sequence[Entry], root: Path) -> tuple[str, ...]:
    there = (path for path in paths if os.path.exists(root / path.removeprefix("/")))
    places = (place for path in there if (place := resolve_inside(path, entries)))
    return tuple(dict.fromkeys(place.path for place in places if _takes_a_file(place)))


def _takes_a_file(place: InsidePath) -> bool:
    """Whether a file can be mounted there: over one that is shown, or where nothing is.

    The latter is for links that lead out of the shown trees; SUSE and Nix keep their roots behind
    such links. In a bound tree nothing can be made, and the runtime's own trees are left alone.
    """
    made = place.is_free and any(is_below(place.path, tree) for tree in ("/etc", "/var/lib"))
    return made or place.is_file


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
