"""Reads logins from netrc and from apt's auth.conf, which is netrc with paths.

Called by the learners whose package manager reads such a file. The standard library's reader does
not know apt's machines (`https://host:port/path`) and stops at what it does not expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host.credential import Credential
from keyhole.model.errors import Unparsable
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from keyhole.host.draft import Draft
    from keyhole.host.location import Location


@dataclass(frozen=True, slots=True)
class Login:
    """One machine's login."""

    machine: str
    user: str = field(repr=False)
    _password: str = field(repr=False)
    where: str

    def speaks_of(self, at: Location) -> bool:
        """Whether the machine (`[scheme://]host[:port][/path]`) covers this URL."""
        scheme, found, rest = self.machine.rpartition("://")
        name, slash, path = rest.partition("/")
        if found and scheme != at.scheme:
            return False
        if name.lower() not in {at.pattern.name, f"{at.pattern.name}:{at.pattern.port}"}:
            return False
        # apt_auth.conf(5): "matches if the path in the URI starts with the path given".
        return at.path.startswith(slash + path)

    def credential(self) -> Credential | None:
        """What it lets one write, if it is well-formed."""
        try:
            return Credential.basic(self.user, self._password).found_in(self.where)
        except Unparsable:
            return None


def logins(draft: Draft, *paths: Path) -> tuple[Login, ...]:
    """The machines of these files in their order; `default` names every host and is left out."""
    return tuple(
        Login(machine, user, password, draft.surroundings.shown(path))
        for path in paths
        for machine, user, password in _read(_words(draft.read(path) or ""))
        if machine and password
    )


def user_logins(draft: Draft) -> tuple[Login, ...]:
    """Those of the user's own netrc file."""
    surroundings = draft.surroundings
    chosen = surroundings.env.get("NETRC", "")
    path = surroundings.expand(chosen) if chosen else surroundings.home / ".netrc"
    return logins(draft, path)


def login_for(at: Location, known: Iterable[Login]) -> Credential | None:
    """The credential for this URL: the first login that speaks of it."""
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
