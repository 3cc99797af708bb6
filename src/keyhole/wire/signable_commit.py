"""A commit that may be signed: every line of its header is known, and written again from values.

Called by `policy/signing.py`, on both sides of the wall: the data plane refuses early, and the
process that runs the signing program reads the bytes again. Code in the sandbox chose the bytes. A
signature covers bytes without saying what they are, so one spelling of a commit is read and all
else refused: a tag, a push certificate, a header that another reader takes for something else.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Malformed
from keyhole.wire.git_object import MAX_PARENTS, ObjectKind, object_id

MAX_SIGNABLE = 32 * 1024
"""Bytes of a commit: its message may have thirty thousand characters, and a message between two of
our processes holds the commit."""

_IDENTITY = (
    rb"([^\x00-\x1f\x7f<>]{1,600}) <([^\x00-\x20\x7f<>]{1,600})> ([0-9]{1,12}) ([+-][0-9]{4})"
)
_HEADER = {
    digits: re.compile(
        rb"tree ([0-9a-f]{%d})\n((?:parent [0-9a-f]{%d}\n)*)author %b\ncommitter %b\n"
        rb"(?:encoding ([A-Za-z0-9_-]{1,40})\n)?" % (digits, digits, _IDENTITY, _IDENTITY)
    )
    for digits in (40, 64)
}
_FORMATS = {40: "sha1", 64: "sha256"}


class Signer(Struct, frozen=True):
    """An author or a committer, and when."""

    name: bytes
    email: bytes
    seconds: bytes
    zone: bytes

    def to_bytes(self) -> bytes:
        """As git writes it."""
        return b"%b <%b> %b %b" % (self.name, self.email, self.seconds, self.zone)


class SignableCommit(Struct, frozen=True):
    """All of a commit without a signature."""

    tree: bytes
    parents: tuple[bytes, ...]
    author: Signer
    committer: Signer
    encoding: bytes
    message: bytes

    def to_bytes(self) -> bytes:
        """The commit as git writes it: the bytes that are signed."""
        return b"%b\n%b" % (self._header(), self.message)

    def signed_id(self, signature: bytes) -> str:
        """The name that the commit has with this signature in its header."""
        digits = len(self.tree)
        field = b"gpgsig" if _FORMATS[digits] == "sha1" else b"gpgsig-sha256"
        lines = signature.rstrip(b"\n").replace(b"\n", b"\n ")
        content = b"%b%b %b\n\n%b" % (self._header(), field, lines, self.message)
        return object_id(ObjectKind.COMMIT, content, _FORMATS[digits]).hex()

    def _header(self) -> bytes:
        return b"".join(
            (
                b"tree %b\n" % self.tree,
                *(b"parent %b\n" % parent for parent in self.parents),
                b"author %b\ncommitter %b\n" % (self.author.to_bytes(), self.committer.to_bytes()),
                b"encoding %b\n" % self.encoding if self.encoding else b"",
            )
        )


def parse_signable(content: bytes) -> SignableCommit:
    """Read a commit that has no signature yet. Raises Malformed."""
    if len(content) > MAX_SIGNABLE:
        raise Malformed(f"the commit has more than {MAX_SIGNABLE} bytes")
    if b"\x00" in content:
        raise Malformed("the commit has a NUL")  # it ends a text in C
    digits = content.find(b"\n") - len(b"tree ")
    found = _HEADER[digits].match(content) if digits in _HEADER else None
    if found is None:
        raise Malformed("only commits are signed, no tags, certificates or other data")
    if content[found.end() : found.end() + 1] != b"\n":
        raise Malformed("the commit's header has a line that is not signed for")
    parents = tuple(line[len(b"parent ") :] for line in found[2].splitlines())
    if len(parents) > MAX_PARENTS:
        raise Malformed(f"the commit has more than {MAX_PARENTS} parents")
    return SignableCommit(
        found[1],
        parents,
        Signer(*found.group(3, 4, 5, 6)),
        Signer(*found.group(7, 8, 9, 10)),
        found[11] or b"",
        content[found.end() + 1 :],
    )
