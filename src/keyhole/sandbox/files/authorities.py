"""Where the programs of this host look for the authorities they trust, as seen inside.

Called by whoever has certificates to put there. Only what the host has is named: a file that no
program of this host reads helps nobody. Which authorities are trusted is not decided here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.sandbox.files.paths import is_below
from keyhole.sandbox.files.sight import Place, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from keyhole.sandbox.files.fileplan import Entry

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
"""What the JVMs of Debian and Fedora share."""

_JVM_TREES = ("usr/lib/jvm", "usr/lib64/jvm", "usr/java")
_OF_A_JVM = ("lib/security/cacerts", "jre/lib/security/cacerts")
"""Since Java 9, and before."""


def bundle_places(entries: Sequence[Entry], root: Path) -> tuple[str, ...]:
    """The PEM bundles of the system below `root` (`/`, but in tests), by their mount points."""
    return _places(BUNDLES, entries, root)


def truststore_places(entries: Sequence[Entry], root: Path) -> tuple[str, ...]:
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
    places = (place for path in there if (place := place_of(path, entries)))
    return tuple(dict.fromkeys(place.path for place in places if _takes_a_file(place)))


def _takes_a_file(place: Place) -> bool:
    """Whether a file can be mounted there: over one that is shown, or where nothing is.

    The latter is for links that lead out of what is shown; SUSE and Nix keep their roots behind
    such. In a bound tree nothing can be made, and the runtime's own trees are not for it.
    """
    made = place.is_free and any(is_below(place.path, tree) for tree in ("/etc", "/var/lib"))
    return made or place.is_file


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
