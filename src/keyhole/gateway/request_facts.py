"""Makes the facts of a request's head for a judge of bodies.

Used by `http/authorize.py` for requests that are judged by their head, and by `http/judged_body.py`
and `http/judged_messages.py` for those that are judged with their body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.http.field import folded
from keyhole.policy.body import BodyFacts, find_flaw

if TYPE_CHECKING:
    from keyhole.gateway.requests import AuthorizedRequest, BodyJudging

_READ = ("content-type", "content-encoding")


def make_facts(request: AuthorizedRequest, judging: BodyJudging) -> BodyFacts:
    """The facts of a request's head."""
    head, judge = request.head, judging.judge
    found: dict[str, str] = {}
    prefixes = tuple(each[:-1] for each in judge.fields if each.endswith("*"))
    for line in (*head.lines, *(field.line for field in head.collected)):
        sent, _, value = line.decode("latin-1").partition(":")
        # Attack: `x_amz_acl`. An origin that turns names into variables (CGI) reads `x-amz-acl`.
        name = folded(sent.lower().encode("latin-1")).decode("latin-1")
        if name in judge.fields or name in _READ or name.startswith(prefixes):
            found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return BodyFacts(
        judging.host,
        head.word,
        judging.path,
        request.decision,
        head.query or "",
        found,
        flaw=find_flaw(found, empty=head.length == 0, typed=judge.needs_type),
    )
