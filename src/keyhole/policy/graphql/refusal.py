"""Why a document is refused."""

from __future__ import annotations

from keyhole.model.decision import Reason
from keyhole.model.errors import KeyholeError

MAX_WORDS = 200
"""Characters of a refusal, of which the client chose some."""


class GraphqlRefused(KeyholeError):
    """The client's fault: a document that is not sent. It says which part of it is closed."""

    def __init__(self, why: str, reason: Reason = Reason.GRAPHQL, rule: str | None = None) -> None:
        words = why.encode("ascii", "replace").decode()[:MAX_WORDS]
        super().__init__("".join(c if c.isprintable() else "?" for c in words))
        self.code = reason
        self.rule = rule
