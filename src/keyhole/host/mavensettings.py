"""What one settings.xml of Maven says: mirrors, repositories of active profiles, servers.

Called by `maven`. It reads the file's words; what they grant is decided there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host.mavenxml import children, text_of
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element


@dataclass(frozen=True, slots=True)
class Repository:
    """A `mirror`, `repository` or `pluginRepository`; its URL as found may hold a password."""

    kind: str
    id: str
    url: str = field(repr=False)
    mirror_of: str = ""

    def stands_for(self, name: str) -> bool:
        """Whether Maven asks this mirror instead of the repository of that id."""
        names = {part.strip() for part in self.mirror_of.split(",")}
        return bool({"*", "external:*", name} & names) and f"!{name}" not in names


@dataclass(frozen=True, slots=True)
class Server:
    """The login for the repository or mirror of the same id."""

    id: str
    user: str = field(repr=False)
    password: str = field(repr=False)


def servers(root: Element) -> Iterator[Server]:
    """The logins, as written."""
    for server in _grandchildren(root, "servers", "server"):
        yield Server(
            text_of(server, "id"), text_of(server, "username"), text_of(server, "password")
        )


def repositories(root: Element) -> Iterator[Repository]:
    """The mirrors that are not there to block, and the repositories of profiles that are active."""
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


def _repository(element: Element, kind: str) -> Repository:
    return Repository(
        kind, text_of(element, "id"), text_of(element, "url"), text_of(element, "mirrorOf")
    )


def _is_default(profile: Element) -> bool:
    return any(text_of(a, "activeByDefault") == "true" for a in children(profile, "activation"))


def _grandchildren(element: Element, group: str, name: str) -> Iterator[Element]:
    for found in children(element, group):
        yield from children(found, name)
