"""The preset `maven`: the repositories and mirrors that Maven uses on this host.

Called through `presets`. It reads the user's and the installation's settings.xml; the built-in
repository comes from `superpom`, unless a mirror stands in for it.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from keyhole.host import maven_settings, super_pom
from keyhole.host.found_credential import FoundCredential
from keyhole.host.maven_xml import parse
from keyhole.host.preset_draft import PresetDraft
from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from xml.etree.ElementTree import Element

    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = (
    "no Maven on this host says which repository it uses; "
    "set a mirror in ~/.m2/settings.xml, or name your repository under [egress] allow"
)

_BUILTIN = "Maven's built-in default"
# Maven decrypts text between unescaped braces, with a key that Keyhole does not read.
_ENCRYPTED = re.compile(r"(?<!\\)\{.*(?<!\\)\}")
_REFERENCE = re.compile(r"\$\{env\.([^${}]+)\}")


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that Maven fetches from on this host."""
    return _Learner(surroundings).learn()


class _Learner:
    def __init__(self, surroundings: HostEnvironment) -> None:
        self.draft = PresetDraft("maven", surroundings)
        self.surroundings = surroundings
        self.credentials: dict[str, FoundCredential] = {}

    def learn(self) -> Preset:
        settings = list(self._settings())
        for where, root in settings:
            for server in maven_settings.servers(root):
                self._keep(where, server)
        found = [(where, r) for where, root in settings for r in maven_settings.repositories(root)]
        mirrors = [repository for _, repository in found if repository.mirror_of]
        given: list[tuple[maven_settings.MavenRepository, FetchLocation]] = []
        for where, repository in found:
            at = self.draft.locate(self._expand(repository.url), where)
            if at:
                given.append((repository, at))
                self._grant(at, where, repository.id, () if repository.mirror_of else mirrors)
        for name, url in super_pom.repositories(self.surroundings):
            at = self.draft.locate(url, _BUILTIN)
            if at:
                self._grant(at, _BUILTIN, name, mirrors)
        files = [(".m2/settings.xml", _settings_inside(given))] if given else []
        return self.draft.finish(ADVICE, files=files)

    def _settings(self) -> Iterator[tuple[str, Element]]:
        """The settings files that can be read; the user's comes first, because it wins."""
        paths = [self.surroundings.home / ".m2" / "settings.xml"]
        installed = super_pom.home(self.surroundings)
        if installed:
            paths.append(installed / "conf" / "settings.xml")
        for path in paths:
            text = self.draft.read(path)
            root = parse(text)
            if root is not None:
                yield self.surroundings.shown(path), root
            elif text is not None:
                self.draft.note(f"{self.surroundings.shown(path)} is not read: its XML is refused")

    def _keep(self, where: str, server: maven_settings.MavenServer) -> None:
        user, password = self._expand(server.user), self._expand(server.password)
        if not (user and password):
            return  # a private key or a header of its own
        if "${" in user + password:
            self.draft.note(f"{where}: the password of {server.id!a} names what is not set")
        elif _ENCRYPTED.search(password):
            self.draft.note(f"{where}: the encrypted password of {server.id!a} is not used")
        else:
            try:
                found = FoundCredential.basic(user, password).found_in(where)
                self.credentials.setdefault(server.id, found)
            except Unparsable as error:
                self.draft.note(f"{where}: server {server.id!a} is left out: {error.message}")

    def _grant(
        self,
        at: FetchLocation,
        where: str,
        name: str,
        mirrors: Iterable[maven_settings.MavenRepository],
    ) -> None:
        """Grant a repository, unless Maven asks a mirror in its place."""
        if not any(mirror.stands_for(name) for mirror in mirrors):
            self.draft.grant(at, where, credential=at.credential or self.credentials.get(name))

    def _expand(self, text: str) -> str:
        """Replace `${env.NAME}` where it is set, as Maven does in its settings."""
        return _REFERENCE.sub(lambda found: self.surroundings.env.get(found[1], found[0]), text)


def _settings_inside(given: list[tuple[maven_settings.MavenRepository, FetchLocation]]) -> str:
    """A settings.xml with the same mirrors and repositories, and no server."""

    def elements(kind: str) -> str:
        return "".join(
            f"<{kind}><id>{escape(found.id)}</id><url>{escape(at.url)}</url>"
            + (f"<mirrorOf>{escape(found.mirror_of)}</mirrorOf>" if found.mirror_of else "")
            + f"</{kind}>\n"
            for found, at in given
            if found.kind == kind
        )

    return (
        f"<settings>\n<mirrors>\n{elements('mirror')}</mirrors>\n"
        "<profiles><profile><id>keyhole</id>\n"
        f"<repositories>\n{elements('repository')}</repositories>\n"
        f"<pluginRepositories>\n{elements('pluginRepository')}</pluginRepositories>\n"
        "</profile></profiles>\n"
        "<activeProfiles><activeProfile>keyhole</activeProfile></activeProfiles>\n</settings>\n"
    )
