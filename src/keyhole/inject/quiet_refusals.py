"""Refusals that nobody needs to read: an agent's telemetry and the like. The log has each of them.

An agent's profile lists them as texts; the gateway asks before it tells a person of a refusal.
`HOST` is for connections to a host that the policy does not name, `HOST METHOD /path` for requests
to one that it does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.host import Host, HostPattern
from keyhole.model.path import RequestPath
from keyhole.model.rule import AccessRule

if TYPE_CHECKING:
    from collections.abc import Iterable


class QuietRefusal(Struct, frozen=True):
    """Connections to a host, or some requests to it."""

    host: HostPattern
    rule: AccessRule | None

    @classmethod
    def parse(cls, text: str) -> QuietRefusal:
        """Read `HOST` or `HOST METHOD /path`."""
        host, _, rule = text.partition(" ")
        return cls(HostPattern.parse(host), AccessRule.parse(rule) if rule else None)


class QuietRefusals:
    """The list of one session."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._refusals: list[QuietRefusal] = []
        for text in texts:
            # One that cannot be read hides nothing.
            with contextlib.suppress(Unparsable):
                self._refusals.append(QuietRefusal.parse(text))

    def covers_connection(self, host: str) -> bool:
        """Whether a refused connection to this host is not told."""
        return any(each.rule is None for each in self._of(host))

    def covers_request(self, host: str, word: str, path: str) -> bool:
        """Whether a refused request is not told."""
        rules = [each.rule for each in self._of(host) if each.rule is not None]
        if not rules:
            return False
        try:
            segments = RequestPath.parse(path.partition("?")[0]).segments
        except Unparsable:
            return False
        return any(rule.allows(word) and rule.path.matches(segments) for rule in rules)

    def _of(self, host: str) -> list[QuietRefusal]:
        if not self._refusals:
            return []
        try:
            name = Host.parse(host)
        except Unparsable:
            return []  # a limit's name stands in its place
        return [each for each in self._refusals if each.host.matches(name)]
