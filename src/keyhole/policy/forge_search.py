"""Judges a search with GitHub's REST API, which `gh search` uses: only within a granted repository.

The query must be confined to granted repositories, like that of a GraphQL search
(`graphql/search_query.py`). A GraphQL document can be rewritten to confine it; a URL cannot, so a
query that would need that is refused. The answer keeps only results of granted repositories.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed, RequestUnfit, ResponseUnfit
from keyhole.model.repository import Forge, Repository
from keyhole.policy.body import BodyJudgement
from keyhole.policy.collected_answer import CollectedAnswer
from keyhole.policy.graphql.search_query import confine_search
from keyhole.wire.parameters import read_parameters
from keyhole.wire.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import GitGrant
    from keyhole.wire.strict_json import JsonValue

_PLACES = frozenset({("search", "issues"), ("search", "code")})
_ROOT = ("api", "v3")
_FIELDS = frozenset({"q", "sort", "order", "per_page", "page", "advanced_search"})
_SUCCESS = range(200, 300)


def is_search(path: RequestPath) -> bool:
    """Whether this path is a search that is judged."""
    segments = path.folded()
    return (segments[2:] if segments[:2] == _ROOT else segments) in _PLACES


def judge_search(git: GitGrant, facts: BodyFacts) -> BodyJudgement:
    """Judge the text of a search."""
    by = facts.decision
    try:
        _check(git, facts.query)
    except RequestUnfit as error:
        decision = RequestDecision(Verdict.DENY, Reason(error.reason), by.rule, by.service)
        return BodyJudgement(decision, error.message)
    except Malformed as error:
        decision = RequestDecision(Verdict.DENY, Reason.FEATURE_CLOSED, by.rule, by.service)
        return BodyJudgement(decision, f"the search cannot be judged: {error.why}")
    return BodyJudgement(by, reader=SearchAnswer(git))


def _check(git: GitGrant, query: str) -> None:
    """Raises RequestUnfit or Malformed."""
    found: dict[str, str] = {}
    for each in read_parameters(query):
        # Attack: the server may read `Q=`, `%71=` or a second `q=` instead of the judged one.
        if each.name not in _FIELDS or each.name in found:
            raise Malformed("a field of its address is not known, or stands there twice")
        found[each.name] = each.value
    try:
        text = unquote_plus(found.get("q", ""), errors="strict")
    except UnicodeDecodeError:
        raise Malformed("its text is not UTF-8") from None
    if "(" in text or ")" in text:
        raise Malformed("parentheses are closed")
    confine_search(text, git.repos)


class SearchAnswer(CollectedAnswer):
    """Leaves out results of repositories that are not granted."""

    def __init__(self, git: GitGrant) -> None:
        super().__init__()
        self._git = git

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """As `AnswerRewriter`. An error of GitHub has no results, so it passes unread.
        Attack: a range of it (206), which a client asks for to have it passed."""
        return status in _SUCCESS

    def end(self) -> bytes:
        """As `AnswerRewriter`."""
        answer = read_json(self._collected())
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise ResponseUnfit(Reason.GRAPHQL, "the answer is not one of a search")
        kept = [item for item in items if self._is_granted(item)]
        whole = {"total_count": len(kept), "incomplete_results": False, "items": kept}
        if isinstance(answer, dict) and len(kept) == len(items):
            whole["total_count"] = answer.get("total_count", len(kept))
        return json.dumps(whole).encode()

    def _is_granted(self, item: JsonValue) -> bool:
        if not isinstance(item, dict):
            return False
        inner = item.get("repository")
        names = [inner.get("full_name")] if isinstance(inner, dict) else []
        address = item.get("repository_url")
        if isinstance(address, str):
            names.append(address.rpartition("/repos/")[2])
        found = [
            Repository.from_segments(Forge.GITHUB, tuple(str(name).split("/"))) for name in names
        ]
        return bool(found) and all(each in self._git.repos for each in found)
