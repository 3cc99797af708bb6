"""The roots that this host trusts, as one clean list, and the context that verifies origins.

Called by `app`: the list is merged with the session's certificate for the sandbox, the context is
used by the gateway to dial. Neither this module nor OpenSSL on its behalf reads the environment
(SSL_CERT_FILE, SSLKEYLOGFILE). Before the caller reads the file that `find_bundle` names, it must
check that the sandbox could not have written it (I11).
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
import ssl
import stat
from pathlib import Path

from keyhole.model.errors import ResourceUnusable
from keyhole.system.tls import verifying_context

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch, Gentoo, NixOS
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL, Amazon Linux
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora and RHEL, the name that programs know
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",  # Arch, the target of its other names
    "/etc/ssl/cert.pem",  # Alpine without the package, and OpenSSL's own habit
)
"""Files in which distributions keep all roots; the first that is not empty is used."""

MAX_BUNDLE = 8 * 1024 * 1024
"""Bytes of a list of roots: forty times Mozilla's."""

MAX_CONTEXTS = 8
"""Contexts remembered, a megabyte each. One process rarely sees more than one `ca_file`."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]{1,4}")
_LINE = 64
"""Characters of base64 on a line (RFC 7468 §2)."""


def find_bundle(root: Path = Path("/")) -> Path | None:
    """The file, or else the directory, with this host's roots."""
    compiled = ssl.get_default_verify_paths()
    # The openssl_ paths are compiled in; `cafile` and `capath` would come from the environment.
    for name in (*BUNDLES, compiled.openssl_cafile):
        path = root / name.lstrip("/")
        if path.is_file() and path.stat().st_size:
            return path
    directory = root / compiled.openssl_capath.lstrip("/")
    return directory if directory.is_dir() and _hashed_in(directory) else None


def system_bundle(path: Path | None = None) -> bytes:
    """The roots of this host, or of the file or directory that is named: PEM, each once."""
    place = path or find_bundle()
    if place is None:
        raise ResourceUnusable("this host has no list of trusted roots; install ca-certificates")
    try:
        files = _hashed_in(place) if place.is_dir() else [place]
        found = _merged_once(*(_read(each) for each in files))
    except OSError as error:
        raise ResourceUnusable(f"{place}: {error.strerror}") from None
    except ResourceUnusable as error:
        raise ResourceUnusable(f"{place}: {error}") from None
    if not found:
        raise ResourceUnusable(f"{place}: no certificate in it")
    return found


def merge_certificates(*bundles: bytes) -> bytes:
    """All certificates of these texts in PEM, each once, in their order, and nothing else.

    Comments are dropped, and so is a private key in the same file (I1). A certificate that
    stands in a list twice has broken a client.
    """
    return b"".join(_pem(each) for each in certificates(*bundles))


@functools.lru_cache(2)
def _merged_once(*bundles: bytes) -> bytes:
    """The host's list, parsed once for all sessions of a gateway."""
    return merge_certificates(*bundles)


def certificates(*bundles: bytes) -> list[bytes]:
    """The certificates (DER) of these texts, each once."""
    found: dict[bytes, None] = {}
    for bundle in bundles:
        for block in _BLOCK.findall(bundle):
            try:
                found[base64.b64decode(b"".join(block.split()), validate=True)] = None
            except binascii.Error:
                raise ResourceUnusable("a certificate in it is not base64") from None
    return list(found)


def upstream_context(extra: bytes | None = None, system: bytes | None = None) -> ssl.SSLContext:
    """A client's context that trusts the host's roots (or `system`) and these (PEM), no others.

    The same lists give the same context, since parsing them takes tens of milliseconds. Sessions
    may share it: it holds no key, and a TLS session is resumed only by the connection that kept it.
    It must not be changed.
    """
    return _context(system_bundle() if system is None else system, extra)


def check_added(extra: bytes) -> None:
    """Check roots (PEM) that a policy adds, by themselves: the host's own list takes tens of
    milliseconds to parse, and is parsed where origins are dialled. Raises ResourceUnusable."""
    _trust(verifying_context(), extra, "the added roots")


@functools.lru_cache(MAX_CONTEXTS)
def _context(system: bytes, extra: bytes | None) -> ssl.SSLContext:
    context = verifying_context()
    _trust(context, system, "the host's roots")
    if extra is not None:
        _trust(context, extra, "the added roots")
    return context


def _trust(context: ssl.SSLContext, bundle: bytes, what: str) -> None:
    try:
        pem = merge_certificates(bundle)
        if not pem:
            raise ResourceUnusable("no certificate in it (PEM is read)")
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ResourceUnusable, ssl.SSLError) as error:
        raise ResourceUnusable(f"{what}: {error}") from None


def _hashed_in(directory: Path) -> list[Path]:
    """The certificates of a directory that was prepared for OpenSSL, without its dead links."""
    names = (each for each in directory.iterdir() if _HASHED.fullmatch(each.name))
    return sorted(each for each in names if each.is_file())


def _read(path: Path) -> bytes:
    # Opening a FIFO in its place would block for ever.
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ResourceUnusable("not a regular file")
        data = file.read(MAX_BUNDLE + 1)
    if len(data) > MAX_BUNDLE:
        raise ResourceUnusable(f"more than {MAX_BUNDLE // 2**20} MiB")
    return data


def _pem(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return b"\n".join((b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""))
