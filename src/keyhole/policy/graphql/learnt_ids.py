"""The node ids that a session has learnt from answers about granted repositories.

An id is opaque, so a document with an id is judged by what an earlier answer said about it. The
memory is bounded, and belongs to one session (I9, I12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from keyhole.model.repository import Repository

MAX_IDS = 20_000
"""Ids that a session remembers, about 5 MB. The oldest are forgotten; the client must then fetch
them again."""

MAX_ID = 256
"""Characters of an id. GitHub's have 12 to 60."""


class Branches(Struct, frozen=True):
    """The head and base branches of a pull request."""

    head: str
    base: str
    crosses: bool
    """Whether its head is in another repository."""


class LearntNode(Struct, frozen=True):
    """What an answer said about an id."""

    type: str
    repository: Repository | None = None
    """None for an object that belongs to no repository, such as a user."""
    branches: Branches | None = None


class LearntIds:
    """The ids that one session has learnt."""

    def __init__(self) -> None:
        self._known: dict[str, LearntNode] = {}
        self.generation = 0
        """Counts up when a branch of a pull request may have changed. Branches are not learnt from
        the answer to an earlier request."""

    def learn(self, node_id: object, node: LearntNode) -> None:
        """Remember an id."""
        if not isinstance(node_id, str) or not 0 < len(node_id) <= MAX_ID:
            return
        known = self._known.pop(node_id, None)
        if known is not None and known.type == node.type and node.branches is None:
            node = LearntNode(node.type, node.repository, known.branches)
        self._known[node_id] = node
        if len(self._known) > MAX_IDS:
            del self._known[next(iter(self._known))]

    def find(self, node_id: object) -> LearntNode | None:
        """What is known about an id."""
        return self._known.get(node_id) if isinstance(node_id, str) else None

    def forget_branches(self) -> None:
        """Forget the branches of all pull requests: one of them is being changed."""
        self.generation += 1
        for node_id, node in self._known.items():
            if node.branches is not None:
                self._known[node_id] = LearntNode(node.type, node.repository)
