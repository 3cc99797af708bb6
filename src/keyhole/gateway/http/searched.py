"""The needles of a session by host: its present secrets and the earlier ones (I7).

The door uses it for each inspected host, and updates it when a session gets other credentials. All
connections of a host share one value, which changes in place: a stream that began before a change
is searched for the new secrets too, since an origin may echo on one connection a secret that it got
on another. It sends nothing and keeps no credential that could be written.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from keyhole.inject.entity_tags import KEY_BYTES, EntityTags
from keyhole.inject.scrub import Needles

if TYPE_CHECKING:
    from keyhole.gateway.session import Interception
    from keyhole.gateway.upstream.minting import Minting
    from keyhole.inject.credential import Credential
    from keyhole.model.host import Host, HostPattern
    from keyhole.policy.rulebook import Rulebook

MAX_PAST = 32
"""Earlier secrets of one host that are searched for. Each costs about 90 µs for every 64 KiB of
responses. A secret that was replaced 32 times since is a token that has expired."""


class Searched:
    """The needles of one session's hosts."""

    __slots__ = ("_hosts", "_past", "_present", "tags")

    def __init__(self, book: Rulebook, interception: Interception | None) -> None:
        # Weak: under a wildcard the sandbox chooses the names, so only needles in use are kept
        # (I9).
        self._hosts: WeakValueDictionary[Host, Needles] = WeakValueDictionary()
        self._past: dict[HostPattern, list[Needles]] = {}
        self._present = _present(book, interception)
        self.tags = EntityTags(secrets.token_bytes(KEY_BYTES))

    def of(self, host: Host) -> Needles:
        """The needles for a host's responses; one value for as long as it is in use."""
        found = self._hosts.get(host)
        if found is None:
            found = self._hosts[host] = Needles()
            self._fill(host, found)
        return found

    def refresh(self, host: Host) -> None:
        """A token of this host was minted: renew the needles."""
        self._fill(host, self.of(host))

    def change(self, book: Rulebook, interception: Interception | None) -> None:
        """Search for the new credentials from now on, and remember the earlier ones."""
        before, self._present = self._present, _present(book, interception)
        for pattern, credentials in before.items():
            now = [each.needles for each in self._present.get(pattern, ())]
            past = self._past.get(pattern, [])
            for each in credentials:
                old = each.needles
                if old and not any(known.covers(old) for known in (*now, *past)):
                    past = [*past, old][-MAX_PAST:]
            if past:
                self._past[pattern] = past
        for host, found in list(self._hosts.items()):
            self._fill(host, found)

    def _fill(self, host: Host, found: Needles) -> None:
        now = [
            each.needles
            for pattern, credentials in self._present.items()
            if pattern.matches(host)
            for each in credentials
        ]
        old = [
            each for pattern, past in self._past.items() if pattern.matches(host) for each in past
        ]
        found.become((*now, *old))


def _present(
    book: Rulebook, interception: Interception | None
) -> dict[HostPattern, list[Credential | Minting]]:
    """The credentials of all accounts, by the pattern of their hosts."""
    if interception is None:
        return {}
    found: dict[HostPattern, list[Credential | Minting]] = {}
    for pattern, rules in book.inspected():
        for git in (False, True):
            credential = interception.credential(rules, git=git)
            if credential is not None:
                found.setdefault(pattern, []).append(credential)
    return found
