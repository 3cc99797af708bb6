"""Git's commits, trees and tags, as far as a push is judged by them (gitformat-commit, -pack).

Called by `wire/pack.py` and `policy/push_trial.py`. The pushing client chose an object's bytes:
one spelling is read and every other refused, so that no forge finds a parent, a tree or a name in
them that was not seen here. Nothing is decided here, and blobs have no reader.
"""

from __future__ import annotations

import enum
import hashlib
import re
from itertools import islice
from operator import gt

from msgspec import Struct

from keyhole.model.errors import Malformed

MAX_PARENTS = 256
"""Parents of one commit. The largest known octopus has 66."""

TREE_MODE = b"40000"
SYMLINK_MODE = b"120000"
GITLINK_MODE = b"160000"

OID_BYTES = {"sha1": 20, "sha256": 32}


class ObjectKind(enum.IntEnum):
    """The four kinds of object, by their number in a pack."""

    COMMIT = 1
    TREE = 2
    BLOB = 3
    TAG = 4


_NAMES = {kind: kind.name.lower().encode() for kind in ObjectKind}
_BY_NAME = {name: kind for kind, name in _NAMES.items()}

TreeEntry = tuple[bytes, bytes, bytes]
"""Mode, name and oid of what a tree holds."""


class Commit(Struct, frozen=True):
    """A commit's tree and parents, by oid."""

    tree: bytes
    parents: tuple[bytes, ...]


class Tag(Struct, frozen=True):
    """The object that an annotated tag points at, and the kind that the tag claims for it."""

    target: bytes
    kind: ObjectKind


# Git reads parents only directly behind the tree; others read them anywhere in the header.
_COMMIT = {
    size: re.compile(
        rb"tree ([0-9a-f]{%d})\n((?:parent [0-9a-f]{%d}\n)*)author " % ((2 * size,) * 2)
    )
    for size in OID_BYTES.values()
}
_LATE_LINK = re.compile(rb"^(?:tree|parent)\b|\x00", re.MULTILINE)
_TAG = {
    size: re.compile(rb"object ([0-9a-f]{%d})\ntype (commit|tree|blob|tag)\ntag " % (2 * size))
    for size in OID_BYTES.values()
}
# The five modes that git writes, each in one spelling, and 100664, which git wrote until 2005 for
# files that a group may write. Trees of that time are pushed again with every change beside such a
# file, and git's own check takes it for 100644; so it passes, as a file.
# The last alternative takes the rest at once: searching on for an entry was quadratic (I12).
_ENTRY = {
    size: re.compile(
        rb"(40000|100644|100755|120000|160000|100664) ([^\x00/]++)\x00(.{%d})|.++" % size, re.DOTALL
    )
    for size in OID_BYTES.values()
}
_HOLLOW = frozenset((b".", b"..", b".git"))


def object_id(kind: ObjectKind, content: bytes, object_format: str) -> bytes:
    """The name that an object has by its content."""
    digest = start_object_id(kind, len(content), object_format)
    digest.update(content)
    return digest.digest()


def start_object_id(kind: ObjectKind, size: int, object_format: str) -> hashlib._Hash:
    """The hash of an object's name, before its content is added."""
    head = b"%b %d\x00" % (_NAMES[kind], size)
    # SHA-1 is git's choice; a server that accepts packs checks for crafted collisions itself.
    if object_format == "sha1":
        return hashlib.sha1(head, usedforsecurity=False)
    return hashlib.sha256(head)


def parse_commit(content: bytes, oid_bytes: int) -> Commit:
    """Read a commit's header."""
    found = _COMMIT[oid_bytes].match(content)
    if found is None:
        raise Malformed("a commit does not begin with its tree, its parents and its author")
    end = content.find(b"\n\n", found.end())
    # A parent that only some servers see would bypass this walk; NUL ends a text in C
    if _LATE_LINK.search(content, found.end(), end if end >= 0 else len(content)):
        raise Malformed("a commit's header has a tree, a parent or a NUL behind its author")
    parents = tuple(bytes.fromhex(line[7:].decode()) for line in found[2].splitlines())
    if len(parents) > MAX_PARENTS:
        raise Malformed(f"a commit has more than {MAX_PARENTS} parents")
    return Commit(bytes.fromhex(found[1].decode()), parents)


def parse_tag(content: bytes, oid_bytes: int) -> Tag:
    """Read an annotated tag's header."""
    found = _TAG[oid_bytes].match(content)
    if found is None:
        raise Malformed("a tag does not begin with its object, its type and its name")
    return Tag(bytes.fromhex(found[1].decode()), _BY_NAME[found[2]])


def parse_tree(content: bytes, oid_bytes: int) -> list[TreeEntry]:
    """Read all entries of a tree."""
    # Each match begins where the one before it ends.
    entries: list[TreeEntry] = _ENTRY[oid_bytes].findall(content)
    if entries and not entries[-1][0]:
        raise Malformed("a tree has an entry without a plain mode, a name or an oid")
    names = {name for _, name, _ in entries}
    if len(names) != len(entries):
        # One server would take the first, another the last.
        raise Malformed("a tree has two entries of one name")
    if not _HOLLOW.isdisjoint(name.lower() for name in names if name[0] == _DOT):
        raise Malformed("a tree has an entry named '.', '..' or '.git'")
    # "sorted by name", a subtree as if its name ended in a slash: a search that halves relies on it
    order = [name + b"/" if mode == TREE_MODE else name for mode, name, _ in entries]
    if any(map(gt, order, islice(order, 1, None))):
        raise Malformed("a tree's entries are not in order")
    return entries


def kind_of_mode(mode: bytes) -> ObjectKind:
    """The kind of object that an entry of this mode claims to be."""
    return _KIND_OF_MODE.get(mode, ObjectKind.BLOB)


_KIND_OF_MODE = {TREE_MODE: ObjectKind.TREE, GITLINK_MODE: ObjectKind.COMMIT}


_DOT = ord(".")
