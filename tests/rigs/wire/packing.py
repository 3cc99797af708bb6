"""Git objects and packs made by hand, and an upstream that answers a trial's questions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from typing import TYPE_CHECKING, Any

from keyhole.policy.push_trial import QuestionPurpose
from keyhole.wire.git_object import ObjectKind, parse_commit
from keyhole.wire.pack import MemorySource, Pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.policy.push_trial import UpstreamQuestion

OFS_DELTA, REF_DELTA = 6, 7
SIZES = {"sha1": 20, "sha256": 32}
FILE, PROGRAM, LINK, MODULE, TREE = b"100644", b"100755", b"120000", b"160000", b"40000"

Files = "Mapping[str, str | bytes | tuple[bytes, bytes] | Files]"


def name_of(kind: ObjectKind, content: bytes, object_format: str = "sha1") -> bytes:
    """An oid, computed without the code under test."""
    head = b"%b %d\0" % (kind.name.lower().encode(), len(content))
    return hashlib.new(object_format, head + content).digest()


def size_octets(first: int, size: int) -> bytes:
    """Type and size, as they stand before an object."""
    octets = [first << 4 | size & 15]
    size >>= 4
    while size:
        octets[-1] |= 0x80
        octets.append(size & 0x7F)
        size >>= 7
    return bytes(octets)


def number(value: int) -> bytes:
    """A size within a delta."""
    octets = [value & 0x7F]
    while value := value >> 7:
        octets[-1] |= 0x80
        octets.append(value & 0x7F)
    return bytes(octets)


def distance(value: int) -> bytes:
    """How far back a delta's base is."""
    octets = [value & 0x7F]
    while value := value >> 7:
        value -= 1
        octets.append(0x80 | value & 0x7F)
    return bytes(reversed(octets))


def insert(data: bytes) -> bytes:
    """Codes of a delta that add these bytes."""
    pieces = (data[at : at + 127] for at in range(0, len(data), 127))
    return b"".join(bytes([len(piece)]) + piece for piece in pieces)


def copy(start: int, size: int) -> bytes:
    """The code of a delta that copies from its base."""
    code, octets = 0x80, b""
    for bit in range(4):
        if octet := start >> 8 * bit & 0xFF:
            code |= 1 << bit
            octets += bytes([octet])
    for bit in range(3):
        if octet := (size & 0xFFFFFF if size != 0x10000 else 0) >> 8 * bit & 0xFF:
            code |= 0x10 << bit
            octets += bytes([octet])
    return bytes([code]) + octets


def delta(base: bytes, target: bytes) -> bytes:
    """Copies what both begin with, and adds the rest."""
    ends = (at for at, pair in enumerate(zip(base, target, strict=False)) if pair[0] != pair[1])
    same = next(ends, min(len(base), len(target)))
    codes = copy(0, same) if same else b""
    return number(len(base)) + number(len(target)) + codes + insert(target[same:])


class PackWriter:
    """A pack that is written object by object."""

    def __init__(self, object_format: str = "sha1") -> None:
        self.body = b""
        self.count = 0
        self.format = object_format

    def raw(self, data: bytes) -> int:
        """Add something as it is; where it starts."""
        at = 12 + len(self.body)
        self.body += data
        self.count += 1
        return at

    def add(self, kind: int, content: bytes) -> int:
        return self.raw(size_octets(kind, len(content)) + zlib.compress(content))

    def on_place(self, base: int, codes: bytes) -> int:
        """Add a delta on the object at a place."""
        back = distance(12 + len(self.body) - base)
        return self.raw(size_octets(OFS_DELTA, len(codes)) + back + zlib.compress(codes))

    def on_oid(self, base: bytes, codes: bytes) -> int:
        """Add a delta on an object by its oid."""
        return self.raw(size_octets(REF_DELTA, len(codes)) + base + zlib.compress(codes))

    def done(self, count: int | None = None, behind: bytes = b"") -> bytes:
        said = self.count if count is None else count
        data = b"PACK" + (2).to_bytes(4, "big") + said.to_bytes(4, "big") + self.body
        return data + hashlib.new(self.format, data).digest() + behind


class History:
    """Objects by oid, as they are made."""

    def __init__(self, object_format: str = "sha1") -> None:
        self.format = object_format
        self.objects: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._clock = 1_700_000_000

    def put(self, kind: ObjectKind, content: bytes) -> bytes:
        oid = name_of(kind, content, self.format)
        self.objects[oid] = (kind, content)
        return oid

    def tree(self, files: Mapping[str, Any]) -> bytes:
        """A tree of files: text is a file, a pair is mode and oid, a mapping is a directory."""
        entries = []
        for text, value in files.items():
            name = os.fsencode(text)
            if isinstance(value, tuple):
                mode, oid = value
            elif isinstance(value, (str, bytes)):
                content = value.encode() if isinstance(value, str) else value
                mode, oid = FILE, self.put(ObjectKind.BLOB, content)
            else:
                mode, oid = TREE, self.tree(value)
            entries.append((name + b"/" if mode == TREE else name, mode, name, oid))
        lines = (b"%b %b\0%b" % (mode, name, oid) for _, mode, name, oid in sorted(entries))
        return self.put(ObjectKind.TREE, b"".join(lines))

    def commit(self, files: Mapping[str, Any] | bytes, *parents: bytes, text: str = "x") -> bytes:
        """A commit of files, or of a tree."""
        tree = files if isinstance(files, bytes) else self.tree(files)
        self._clock += 1
        who = b"A <a@example.com> %d +0000" % self._clock
        lines = [b"tree " + tree.hex().encode()]
        lines += [b"parent " + parent.hex().encode() for parent in parents]
        lines += [b"author " + who, b"committer " + who, b"", text.encode(), b""]
        return self.put(ObjectKind.COMMIT, b"\n".join(lines))

    def tag(self, target: bytes, kind: str = "commit") -> bytes:
        head = (
            f"object {target.hex()}\ntype {kind}\ntag v1\ntagger A <a@example.com> 1 +0000\n\nx\n"
        )
        return self.put(ObjectKind.TAG, head.encode())

    def parents(self, oid: bytes) -> tuple[bytes, ...]:
        return parse_commit(self.objects[oid][1], SIZES[self.format]).parents

    def reach(self, *starts: bytes) -> dict[bytes, None]:
        """Commits that these reach, through tags; those that are not here are left out."""
        found: dict[bytes, None] = {}
        stack = list(starts)
        while stack:
            oid = stack.pop()
            kind, content = self.objects.get(oid, (ObjectKind.BLOB, b""))
            if kind is ObjectKind.TAG:
                stack.append(bytes.fromhex(content[7 : 7 + 2 * SIZES[self.format]].decode()))
            elif kind is ObjectKind.COMMIT and oid not in found:
                found[oid] = None
                stack += self.parents(oid)
        return found

    def below(self, *starts: bytes) -> dict[bytes, None]:
        """All objects of these commits and trees: trees and blobs too."""
        found: dict[bytes, None] = {}
        stack = list(starts)
        size = SIZES[self.format]
        while stack:
            oid = stack.pop()
            if oid in found or oid not in self.objects:
                continue
            found[oid] = None
            kind, content = self.objects[oid]
            if kind is ObjectKind.COMMIT:
                stack.append(parse_commit(content, size).tree)
            while kind is ObjectKind.TREE and content:
                at = content.index(b"\0") + 1
                stack.append(content[at : at + size])
                content = content[at + size :]
        return found

    def pack(self, oids: Iterable[bytes]) -> bytes:
        writer = PackWriter(self.format)
        for oid in oids:
            writer.add(*self.objects[oid])
        return writer.done()

    def push(self, new: Iterable[bytes], tips: Iterable[bytes] = ()) -> bytes:
        """What a client sends that knows the tips: what is new, and no object of what is not."""
        old = self.reach(*tips)
        wanted = [oid for oid in self.reach(*new) if oid not in old]
        known = self.below(*old)
        tags = [oid for oid in new if self.objects[oid][0] is ObjectKind.TAG]
        return self.pack(tags + [oid for oid in self.below(*wanted) if oid not in known])


class Upstream:
    """A repository that answers as a server does: what it has, by what its tips reach."""

    def __init__(self, history: History, *tips: bytes, also: Iterable[bytes] = ()) -> None:
        self.history = history
        self.tips = tips
        self.has = history.below(*history.reach(*tips, *also))
        for oid in (*tips, *also):
            self.has[oid] = None
        self.asked: list[UpstreamQuestion] = []
        self.deaf = False

    def answer(self, question: UpstreamQuestion) -> Pack | None:
        """The pack for a question; None where the server refuses it."""
        data = self.pack(question)
        return None if data is None else Pack(MemorySource(data), self.history.format)

    def pack(self, question: UpstreamQuestion) -> bytes | None:
        """The bytes of that pack."""
        self.asked.append(question)
        wants, haves = (list(map(bytes.fromhex, o)) for o in (question.wants, question.haves))
        if self.deaf or not all(want in self.has for want in wants):
            return None  # `upload-pack: not our ref`
        if question.ask is QuestionPurpose.OBJECTS:
            # Asked for both, git leaves out a tree that one of the commits has.
            assert len({self.history.objects[want][0] for want in wants}) == 1
            return self.history.pack(wants)
        known = self.history.reach(*(have for have in haves if have in self.has))
        return self.history.pack(oid for oid in self.history.reach(*wants) if oid not in known)


def git(directory: Path, *words: str, told: bytes = b"") -> bytes:
    """Run the real git in a repository of no settings."""
    done = _run(directory, words, told)
    done.check_returncode()
    return done.stdout


def git_affirms(directory: Path, *words: str) -> bool:
    """Ask the real git something that it answers by how it ends."""
    code = _run(directory, words).returncode
    assert code in (0, 1)
    return code == 0


def _run(
    directory: Path, words: tuple[str, ...], told: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    environment = {"HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "A", f"GIT_{who}_EMAIL": "a@example.com"}
    return subprocess.run(
        ["/usr/bin/git", "-C", directory, *words],
        input=told, env=environment, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
