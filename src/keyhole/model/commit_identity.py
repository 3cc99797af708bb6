"""The identity of a commit: a name and a mail address, as git writes them.

Parsed from a policy's `sandbox.git_user`; made from the host's git settings. It is written into a
config file inside, so it is one line and bounded.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable

MAX_PART = 256
"""Characters of a name or an address (RFC 5321 allows an address 254)."""

_TRIMMED = "".join(map(chr, range(33))) + ",:;<>\"\\'"
"""Characters that git drops at both ends of a name or address (`crud` in its ident.c)."""

_EXAMPLE = "as in 'Ada <ada@corp.example>'"
_WRITTEN = re.compile(r"([^<>]*[^<>\s])\s*<([^<>\s]+)>")


class CommitIdentity(Struct, frozen=True):
    """Either part may be empty: git itself then reports that it is missing."""

    name: str = ""
    email: str = ""

    @classmethod
    def parse(cls, text: str) -> CommitIdentity:
        """Read `Name <mail>`."""
        found = _WRITTEN.fullmatch(text.strip())
        if not found or not is_plain(found[1]) or not is_plain(found[2]):
            raise Unparsable(
                "a person is a name and a mail address", "as in 'Ada <ada@corp.example>'"
            )
        return cls(found[1], found[2])

    def spellings(self) -> frozenset[tuple[str, str]]:
        """The name and address as git writes them into a commit: as they are, or without
        punctuation at their ends; a dot (`Ada Jr.`) is dropped by older versions of git only."""
        return frozenset(
            (self.name.strip(ends), self.email.strip(ends)) for ends in (_TRIMMED, f"{_TRIMMED}.")
        )

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


def is_plain(part: str) -> bool:
    """Whether git could write it into a commit as it is: one printable line, no angle bracket."""
    return 0 < len(part) <= MAX_PART and part.isprintable() and not set("<>") & set(part)
