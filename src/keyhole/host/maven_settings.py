"""Reads one settings.xml of Maven: mirrors, repositories of active profiles, servers.

Called by `maven`, which decides what to grant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.maven_xml import children, text_of
from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element


class MavenRepository(Struct, frozen=True):
    """A `mirror`, `repository` or `pluginRepository`; its URL as found may hold a password."""

    kind: str
    id: str
    url: str
    mirror_of: str = ""

    __repr__ = redacted_repr("url")

    def stands_for(self, name: str) -> bool:
        """Whether Maven asks this mirror instead of the repository of that id."""
        names = {part.strip() for part in self.mirror_of.split(",")}
        return bool({"*", "external:*", name} & names) and f"!{name}" not in names


class MavenServer(Struct, frozen=True):
    """The login for the repository or mirror of the same id."""

    id: str
    user: str
    password: str

    __repr__ = redacted_repr("user", "password")


def servers(root: Element) -> Iterator[MavenServer]:
    """The logins, as written."""
    for server in _grandchildren(root, "servers", "server"):
        yield MavenServer(
            text_of(server, "id"), text_of(server, "username"), text_of(server, "password")
        )


def repositories(root: Element) -> Iterator[MavenRepository]:
    """The mirrors that do not block, and the repositories of active profiles."""
    for mirror in _grandchildren(root, "mirrors", "mirror"):
        if text_of(mirror, "blocked") != "true":
            yield _repository(mirror, "mirror")
    chosen = {
        (profile.text or "").strip()
        for profile in _grandchildren(root, "activeProfiles", "activeProfile")
    }
    for profile in _grandchildren(root, "profiles", "profile"):
        if text_of(profile, "id") in chosen or _is_default(profile):
            for group, kind in (
                ("repositories", "repository"),
                ("pluginRepositories", "pluginRepository"),
            ):
                for repository in _grandchildren(profile, group, kind):
                    yield _repository(repository, kind)


def _repository(element: Element, kind: str) -> MavenRepository:
    return MavenRepository(
        kind, text_of(element, "id"), text_of(element, "url"), text_of(element, "mirrorOf")
    )


def _is_default(profile: Element) -> bool:
    return any(text_of(a, "activeByDefault") == "true" for a in children(profile, "activation"))


def _grandchildren(element: Element, group: str, name: str) -> Iterator[Element]:
    for found in children(element, group):
        yield from children(found, name)
