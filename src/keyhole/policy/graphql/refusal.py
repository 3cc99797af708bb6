"""Why a document is refused."""

from __future__ import annotations

from keyhole.model.decision import Reason
from keyhole.model.errors import RequestUnfit

MAX_WORDS = 200
"""Characters of a refusal, of which the client chose some."""


def refusal(why: str, reason: Reason = Reason.GRAPHQL, rule: str = "") -> RequestUnfit:
    """The error of a document that is not sent. It names the part that is denied."""
    words = why.encode("ascii", "replace").decode()[:MAX_WORDS]
    return RequestUnfit(reason, "".join(c if c.isprintable() else "?" for c in words), rule)
