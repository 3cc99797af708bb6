"""The entries of git's index, without what git notes about the files on disk.

`git status`, a prompt and an editor write the person's index again, with new times and inodes and
the same entries. That is no change of the person's: without this module every review beside a
`git status` would end in a conflict, and commits would be applied without the index that belongs to
them. The format is in git's Documentation/gitformat-index.txt. The bytes may come from a sandbox:
an index that is not understood has no digest, and counts as changed.
"""

from __future__ import annotations

import hashlib
import struct

MAX_INDEX = 32 << 20
"""Bytes of an index that is read: some three hundred thousand files."""

_HEADER = struct.Struct(">4sII")
_MODE_AT = 24
"""Times, device and inode come before the mode; user, group and size after it."""
_ID_AT = 40
_EXTENDED = 0x4000
_SPLIT = b"link"
"""The extension of an index whose entries are in another file."""


def is_index(name: str) -> bool:
    """Whether a path in a tree is that of an index: of a repository, a worktree or a submodule."""
    above, found, own = name.rpartition("/")
    if not found or own != "index":
        return False
    parts = above.split("/")
    at = parts.index(".git") if ".git" in parts else len(parts)
    return at == len(parts) - 1 or parts[at + 1 : at + 2] in (["worktrees"], ["modules"])


def entries_digest(data: bytes) -> str:
    """A digest of the entries; empty if the index is not understood."""
    for name in ("sha1", "sha256"):
        size = hashlib.new(name, usedforsecurity=False).digest_size
        body, checksum = data[:-size], data[-size:]
        if hashlib.new(name, body, usedforsecurity=False).digest() == checksum:
            try:
                return _digest(body, size)
            except (IndexError, ValueError, struct.error):
                return ""
    return ""


def _digest(body: bytes, size: int) -> str:
    magic, version, count = _HEADER.unpack_from(body)
    if magic != b"DIRC" or version not in (2, 3, 4):
        return ""
    digest = hashlib.sha256(b"%d " % count)
    at, path = _HEADER.size, b""
    for _ in range(count):
        flags_at = at + _ID_AT + size
        (flags,) = struct.unpack_from(">H", body, flags_at)
        path_at = flags_at + (4 if flags & _EXTENDED else 2)
        if version == 4:
            path, end = _shortened_path(body, path_at, path)
        else:
            nul = body.index(b"\0", path_at)
            path = body[path_at:nul]
            # Padded with one to eight NULs to a multiple of eight.
            end = at + (nul - at + 8) // 8 * 8
        digest.update(body[at + _MODE_AT : at + _MODE_AT + 4])
        digest.update(body[at + _ID_AT : path_at])
        digest.update(b"%d " % len(path) + path)
        at = end
    while at < len(body):
        kind, length = struct.unpack_from(">4sI", body, at)
        if kind == _SPLIT:
            return ""
        at += 8 + length
    return digest.hexdigest()


def _shortened_path(body: bytes, at: int, last: bytes) -> tuple[bytes, int]:
    """The path of version 4: how many bytes of the last one are dropped, and the rest."""
    byte = body[at]
    dropped = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = body[at]
        dropped = ((dropped + 1) << 7) | (byte & 0x7F)
    end = body.index(b"\0", at + 1)
    if dropped > len(last):
        raise ValueError("more is dropped than there is")
    return last[: len(last) - dropped] + body[at + 1 : end], end + 1
