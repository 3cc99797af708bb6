"""Collects a learner's findings for a preset, merged host by host.

Every learner fills one. It enforces the rules that are the same for all: only https carries a
credential, a host has one credential, and a preset has a bounded number of hosts (I9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.host.fetch_location import FetchLocation, reading_rule
from keyhole.inject.preset import READS, Preset, PresetHost
from keyhole.model.errors import Refused, Unparsable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyhole.host.found_credential import FoundCredential
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.model.host import HostPattern
    from keyhole.model.rule import AccessRule

MAX_HOSTS = 64
"""Hosts of one preset: some users have a dozen mirrors; a person must be able to review them."""


class _Entry(Struct):
    scopes: dict[tuple[str, ...], None] = field(default_factory=dict)
    rules: dict[str, AccessRule] = field(default_factory=dict)
    credential: FoundCredential | None = None


class PresetDraft:
    """Collects hosts, sources and notes; `finish` makes the `Preset`."""

    def __init__(self, name: str, surroundings: HostEnvironment) -> None:
        self.name = name
        self.surroundings = surroundings
        self._hosts: dict[HostPattern, _Entry] = {}
        self._sources: dict[str, None] = {}
        self._notes: dict[str, None] = {}

    def source(self, text: str) -> None:
        """Remember where a setting was read."""
        self._sources[text] = None

    def note(self, text: str) -> None:
        """Add a note for the person, without a URL as found, which may contain a secret."""
        self._notes[text] = None

    def read(self, path: Path) -> str | None:
        """Read a settings file; one that the sandbox can write is left out, with a note."""
        if not self.surroundings.trusts(path) and path.is_file():
            shown = self.surroundings.shown(path)
            self.note(f"{shown} is not read: it lies in a tree that the sandbox can write")
            return None
        return self.surroundings.read(path)

    def locate(self, text: str, where: str) -> FetchLocation | None:
        """Parse a URL that was found at `where`, or note why it cannot be used."""
        if text.startswith(("/", "file:")):
            self.note(f"{where}: a directory is not a host; bind it under [sandbox] readable")
            return None
        try:
            found = FetchLocation.parse(text)
        except Unparsable as error:
            self.note(f"{where}: one URL is left out: {error.message}")
            return None
        if found.lone_user:
            self.note(
                f"{where}: a user name without a password, for {found.pattern}, is left out; "
                "if it is a token, write a service for that host"
            )
        return found

    def grant(
        self,
        at: FetchLocation,
        where: str,
        *,
        scope: tuple[str, ...] | None = None,
        rules: Iterable[AccessRule] = (),
        credential: FoundCredential | None = None,
    ) -> None:
        """Grant reads of this host, and `rules` besides.

        A credential narrows the grant to `scope` (the URL's own path unless given): a token for
        one feed of a host often opens all of that host's API (I4).
        """
        if at.pattern not in self._hosts and len(self._hosts) == MAX_HOSTS:
            self.note(f"more than {MAX_HOSTS} hosts: the rest is left out")
            return
        self.source(where)
        entry = self._hosts.setdefault(at.pattern, _Entry())
        credential = credential or at.credential
        if credential and at.scheme != "https":
            self.note(f"{where}: the credential for {at.pattern} is not used over plain http")
            credential = None
        if credential and entry.credential and not credential.same_as(entry.credential):
            self.note(
                f"{where}: a second credential for {at.pattern} is left out, the first is used; "
                "write a service for that host if both are needed"
            )
            return
        entry.credential = entry.credential or credential
        if credential and credential.where:
            self.source(credential.where)
        entry.scopes[at.segments if scope is None else scope] = None
        entry.rules |= {rule.text: rule for rule in rules}

    def finish(
        self,
        advice: str,
        *,
        env: Iterable[tuple[str, str]] = (),
        files: Iterable[tuple[str, str]] = (),
    ) -> Preset:
        """Make the preset; `advice` says what to do if no host was found."""
        if not self._hosts:
            raise Refused("; ".join(dict.fromkeys([advice, *self._notes])))
        return Preset(
            name=self.name,
            hosts=tuple(_host(pattern, entry) for pattern, entry in self._hosts.items()),
            env=tuple(env),
            files=tuple(files),
            sources=tuple(self._sources),
            notes=tuple(self._notes),
        )


def _host(pattern: HostPattern, entry: _Entry) -> PresetHost:
    rules = tuple(entry.rules.values())
    if entry.credential is None:
        return PresetHost(pattern, (*READS, *rules))
    reads = tuple(reading_rule(scope) for scope in entry.scopes)
    return PresetHost(pattern, (*reads, *rules), entry.credential.inject, entry.credential.secret)
