"""Requests of Git LFS clients: batches, locks and verifications, read strictly and rebuilt.

Called by `policy/large_files.py`. Only parsed values are sent on, never the received bytes. Nothing
is decided here.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed
from keyhole.wire.lfs_json import (
    read_json,
    read_list,
    read_mapping,
    read_number,
    read_text,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REQUEST = 256 * 1024
"""Bytes of a request: MAX_OBJECTS take some 12 KiB, a lock's path at most 4."""

MAX_OBJECTS = 100
"""Objects of a batch: the client's own default."""

MAX_SIZE = 2**50
"""Bytes of an object: a petabyte, which overflows no server's integer."""

BASIC = "basic"
"""The one transfer that is known: an object is one request."""

HASH = "sha256"

_OID = re.compile(r"[0-9a-f]{64}")


class LfsOperation(enum.StrEnum):
    """The purpose of a batch. The zero value needs read access alone."""

    DOWNLOAD = "download"
    UPLOAD = "upload"


class LargeObject(Struct, frozen=True):
    """One object: SHA-256 of its content, and its size in bytes."""

    oid: str
    size: int


class BatchRequest(Struct, frozen=True):
    """A batch request after parsing."""

    operation: LfsOperation
    objects: tuple[LargeObject, ...]
    ref: str = ""
    """The ref that the client claims the batch is for."""

    def encoded(self) -> bytes:
        """The body to send: only the fields that were parsed, and the one known transfer."""
        said: dict[str, object] = {"operation": self.operation, "transfers": [BASIC]}
        if self.ref:
            said["ref"] = {"name": self.ref}
        said["objects"] = [{"oid": each.oid, "size": each.size} for each in self.objects]
        return write_json(said | {"hash_algo": HASH})


class LockRequest(Struct, frozen=True):
    """A request about locks; fields that its endpoint does not have are empty."""

    path: str = ""
    cursor: str = ""
    limit: int = 0
    ref: str = ""
    force: bool = False

    def encoded(self) -> bytes:
        """The body to send."""
        said: dict[str, object] = {"path": self.path, "cursor": self.cursor, "limit": self.limit}
        said |= {"force": self.force, "ref": {"name": self.ref} if self.ref else None}
        return write_json({name: value for name, value in said.items() if value})


def read_batch_request(data: bytes) -> BatchRequest:
    """The body of `POST objects/batch`."""
    said = read_json(data, MAX_REQUEST)
    try:
        operation = LfsOperation(read_text(said.get("operation"), "operation"))
    except ValueError:
        raise Malformed("operation is something else than download and upload") from None
    check_hash(said)
    if said.get("transfers") is not None and BASIC not in read_list(
        said["transfers"], "transfers", 16
    ):
        raise Malformed("transfers does not hold `basic`")
    found: dict[str, LargeObject] = {}
    for entry in read_list(said.get("objects"), "objects", MAX_OBJECTS):
        large = _large(read_mapping(entry, "an object of LFS"))
        if found.setdefault(large.oid, large) != large:
            raise Malformed("an object of LFS has two sizes")
    if not found:
        raise Malformed("objects is empty")
    return BatchRequest(operation, tuple(found.values()), _ref(said))


def read_lock_request(data: bytes, *names: str) -> LockRequest:
    """The body of a request about locks; these fields are read and the others dropped."""
    said = {name: value for name, value in read_json(data, MAX_REQUEST).items() if name in names}
    force = said.get("force") or False
    if not isinstance(force, bool):
        raise Malformed("force is neither true nor false")
    return LockRequest(
        path=read_text(said.get("path") or "", "path"),
        cursor=read_text(said.get("cursor") or "", "cursor"),
        limit=read_number(said.get("limit") or 0, "limit"),
        ref=_ref(said),
        force=force,
    )


def read_object(data: bytes) -> LargeObject:
    """The body by which a client asks to verify an upload."""
    return _large(read_json(data, MAX_REQUEST))


def write_object(large: LargeObject) -> bytes:
    """The body to send."""
    return write_json({"oid": large.oid, "size": large.size})


def _large(entry: Mapping[str, object]) -> LargeObject:
    oid, size = read_text(entry.get("oid"), "oid"), read_number(entry.get("size"), "size")
    if not _OID.fullmatch(oid):
        raise Malformed("oid is not a SHA-256 in lower-case hexadecimal")
    if not 0 <= size <= MAX_SIZE:
        raise Malformed("size is not that of a file")
    return LargeObject(oid, size)


def check_hash(said: Mapping[str, object]) -> None:
    """Refuse objects that are named by another hash. Raises Malformed."""
    if said.get("hash_algo") not in (None, "", HASH):
        raise Malformed("hash_algo is something else than sha256")


def _ref(said: Mapping[str, object]) -> str:
    ref = said.get("ref")
    return (
        "" if ref is None else read_text(read_mapping(ref, "ref").get("name", ""), "a ref's name")
    )
