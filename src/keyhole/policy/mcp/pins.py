"""Which tools a person has accepted, by a digest of what a model sees of them.

Attack: a server shows a harmless tool until it is trusted, and then changes its description into
instructions for the model. The first list of a service is accepted; from then on a changed tool is
noted, and refused where the policy says `pin = true`.
"""

from __future__ import annotations

import enum
import hashlib
from typing import TYPE_CHECKING

from keyhole.policy.mcp.raw_messages import write_sorted
from keyhole.policy.mcp_grant import MAX_TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.mcp.raw_messages import RawTool


class PinState(enum.Enum):
    """How a tool compares with what was accepted."""

    SAME = enum.auto()
    FIRST = enum.auto()
    """Nothing of this service was accepted before: it is accepted now."""
    NEW = enum.auto()
    """Others were accepted before, and it was not among them."""
    CHANGED = enum.auto()


def digest_tool(tool: RawTool) -> str:
    """The digest of what a model sees of a tool. Servers write the members of a schema in another
    order for each version of MCP, so the order does not count."""
    return hashlib.sha256(write_sorted(tool)).hexdigest()


class ToolPins:
    """The digests of one service's tools in one session."""

    def __init__(self, accepted: Mapping[str, str], *, pin: bool) -> None:
        self._accepted = dict(accepted)
        self._first = not accepted
        self._pin = pin
        self._current: dict[str, str] = {}

    def see(self, name: str, digest: str) -> PinState:
        """Compare a tool of a list with the accepted one, or with the last one that was seen."""
        known = self._accepted.get(name)
        if self._current.get(name) == digest:
            return PinState.SAME  # it was noted when it was first seen so
        if len(self._current) < MAX_TOOLS or name in self._current:
            self._current[name] = digest
        if known is None:
            if not self._first:
                return PinState.NEW
            if len(self._accepted) < MAX_TOOLS:
                self._accepted[name] = digest
            return PinState.FIRST
        return PinState.SAME if known == digest else PinState.CHANGED

    def refuses(self, name: str) -> bool:
        """Whether a tool is refused, because it is not as it was accepted."""
        if not self._pin:
            return False
        known = self._accepted.get(name)
        if known is None:
            return not self._first
        return self._current.get(name, known) != known
