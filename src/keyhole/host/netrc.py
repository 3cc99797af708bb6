"""Reads logins from netrc and from apt's auth.conf, which is netrc with paths.

Called by the learners whose package manager reads such a file. The standard library's reader does
not know apt's machines (`https://host:port/path`) and stops at unknown words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.found_credential import FoundCredential
from keyhole.model.errors import Unparsable
from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.preset_draft import PresetDraft


class NetrcLogin(Struct, frozen=True):
    """One machine's login."""

    machine: str
    user: str
    _password: str
    where: str

    __repr__ = redacted_repr("user", "_password")

    def speaks_of(self, at: FetchLocation) -> bool:
        """Whether the machine (`[scheme://]host[:port][/path]`) covers this URL."""
        scheme, found, rest = self.machine.rpartition("://")
        name, slash, path = rest.partition("/")
        if found and scheme != at.scheme:
            return False
        if name.lower() not in {at.pattern.name, f"{at.pattern.name}:{at.pattern.port}"}:
            return False
        # apt_auth.conf(5): "matches if the path in the URI starts with the path given".
        return at.path.startswith(slash + path)

    def credential(self) -> FoundCredential | None:
        """The credential of this login, if it is well-formed."""
        try:
            return FoundCredential.basic(self.user, self._password).found_in(self.where)
        except Unparsable:
            return None


def logins(draft: PresetDraft, *paths: Path) -> tuple[NetrcLogin, ...]:
    """The machines of these files in their order; `default` names every host and is left out."""
    return tuple(
        NetrcLogin(machine, user, password, draft.surroundings.shown(path))
        for path in paths
        for machine, user, password in _read(_words(draft.read(path) or ""))
        if machine and password
    )


def user_logins(draft: PresetDraft) -> tuple[NetrcLogin, ...]:
    """Those of the user's own netrc file."""
    surroundings = draft.surroundings
    chosen = surroundings.env.get("NETRC", "")
    path = surroundings.expand(chosen) if chosen else surroundings.home / ".netrc"
    return logins(draft, path)


def login_for(at: FetchLocation, known: Iterable[NetrcLogin]) -> FoundCredential | None:
    """The credential for this URL, from the first login that covers it."""
    return next((login.credential() for login in known if login.speaks_of(at)), None)


def _words(text: str) -> Iterator[str]:
    macro = False
    for line in text.splitlines():
        # A macro's body ends at an empty line and is no login.
        macro = macro and bool(line.strip())
        if line.lstrip().startswith("#") or macro:
            continue
        words = line.split()
        if "macdef" in words:
            macro = True
            words = words[: words.index("macdef")]
        yield from words


def _read(words: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """Machine, user and password of each entry."""
    machine = user = password = ""
    for word in words:
        if word in {"machine", "default"}:
            yield machine, user, password
            machine = next(words, "") if word == "machine" else ""
            user = password = ""
        elif word == "login":
            user = next(words, "")
        elif word == "password":
            password = next(words, "")
        elif word == "account":
            next(words, "")
    yield machine, user, password
