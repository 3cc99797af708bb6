"""Repositories in the one spelling of their forge.

A grant for `acme/widgets` and a request for `/Acme/Widgets.git/` must meet as one value where the
forge treats them as one, and must not meet where it does not (I4).
"""

from __future__ import annotations

import enum
import re

from msgspec import Struct

from keyhole.model.errors import Unparsable


class Forge(enum.StrEnum):
    """Kinds of git hosts, by how their paths name a repository."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    BITBUCKET = "bitbucket"
    AZURE_DEVOPS = "azure-devops"
    GENERIC = "generic"


MAX_DEPTH = 21
"""Segments of a name: GitLab allows 20 nested groups and the project."""


class _Shape(Struct, frozen=True):
    example: str
    segment: re.Pattern[str]
    depth: range
    ignores_case: bool = True
    strips_git: bool = True


_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")
_GITLAB = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]{0,254}")  # `-` alone begins its own pages
_BITBUCKET = re.compile(r"~?[A-Za-z0-9._-]{1,128}")
# Spaces are usual; a name does not begin with '_', so that `org/_git/name` is no project's.
_AZURE = re.compile(r"[A-Za-z0-9-](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9_-])?")
_GENERIC = re.compile(r"[A-Za-z0-9._~+@-]{1,128}")

_SHAPES = {
    Forge.GITHUB: _Shape("acme/widgets", _PLAIN, range(2, 3)),
    Forge.GITEA: _Shape("acme/widgets", _PLAIN, range(2, 3)),
    Forge.GITLAB: _Shape("acme/group/widgets", _GITLAB, range(2, MAX_DEPTH + 1)),
    Forge.BITBUCKET: _Shape("acme/widgets", _BITBUCKET, range(2, 3)),
    # There '.git' is part of the name.
    Forge.AZURE_DEVOPS: _Shape("org/project/widgets", _AZURE, range(3, 4), strips_git=False),
    Forge.GENERIC: _Shape("team/widgets", _GENERIC, range(1, MAX_DEPTH + 1), ignores_case=False),
}


class Repository(Struct, frozen=True, order=True):
    """A repository's canonical path on its host."""

    path: tuple[str, ...]

    @classmethod
    def parse(cls, forge: Forge, text: str) -> Repository:
        """Read `owner/name` as a policy writes it."""
        shape = _SHAPES[forge]
        if "://" in text or text.startswith("git@"):
            raise Unparsable("a repository is named without its host", _guess(text))
        if "*" in text:
            raise Unparsable("repositories are named one by one, without wildcards")
        found = cls.from_segments(forge, tuple(text.strip("/").split("/")))
        if found is None:
            raise Unparsable(
                f"not a repository of the forge kind '{forge}'", f"as in '{shape.example}'"
            )
        return found

    @classmethod
    def from_segments(cls, forge: Forge, segments: tuple[str, ...]) -> Repository | None:
        """The repository that these path segments name, or None for anything unusual."""
        shape = _SHAPES[forge]
        if len(segments) not in shape.depth:
            return None
        if shape.strips_git:
            segments = (*segments[:-1], segments[-1].removesuffix(".git"))
            if shape.ignores_case and segments[-1].lower().endswith(".git"):
                return None  # `.GIT` or a second one: no forge has such a name, some drop it too
        if not all(shape.segment.fullmatch(s) and s.strip(".") for s in segments):
            return None
        return cls(tuple(s.lower() for s in segments) if shape.ignores_case else segments)

    def __str__(self) -> str:
        return "/".join(self.path)


def ignores_case(forge: Forge) -> bool:
    """Whether this kind of host treats `Acme` and `acme` as one."""
    return _SHAPES[forge].ignores_case


def _guess(text: str) -> str | None:
    """`https://host/acme/widgets.git` and `git@host:acme/widgets` are near-misses."""
    found = re.fullmatch(r"(?:[a-z+]+://[^/]+/|git@[^:]+:)([\w./-]+)", text)
    return found[1].strip("/").removesuffix(".git") if found else None
