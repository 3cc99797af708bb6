"""Searches are confined to granted repositories (I3)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import RequestUnfit
from keyhole.model.repository import Forge, Repository
from keyhole.policy.graphql.search_query import MAX_TEXT, confine_search

GRANTED = {Repository.parse(Forge.GITHUB, name) for name in ("acme/widgets", "acme/docs")}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("repo:acme/widgets", "repo:acme/widgets"),
        ("repo:Acme/Widgets is:pr", "repo:acme/widgets is:pr"),
        ('is:open repo:"acme/docs" fix', "repo:acme/docs is:open fix"),
        ("( foo bar ) repo:acme/widgets type:issue", "repo:acme/widgets foo bar type:issue"),
        ('repo:acme/widgets label:"help wanted" -label:x "a b"',
         'repo:acme/widgets label:"help wanted" -label:x "a b"'),
        ("repo:acme/widgets author:@me created:>=2026-01-01 sort:created-asc -word  ",
         "repo:acme/widgets author:@me created:>=2026-01-01 sort:created-asc -word"),
        ("repo:acme/widgets\tstate:open\nümlaut", "repo:acme/widgets state:open ümlaut"),
    ],
)  # fmt: skip
def test_a_search_within_a_repository_is_written_anew(text: str, sent: str) -> None:
    assert confine_search(text, GRANTED) == sent
    assert confine_search(sent, GRANTED) == sent


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "needs repo:"),
        ("foo", "needs repo:"),
        ("repo:acme/vault", "not granted"),
        ("repo:acme", "not granted"),
        ("repo:acme/widgets/x", "not granted"),
        ("repo:acme/widgets repo:acme/vault", "not granted"),
        ("repo:acme/widgets repo:acme/docs", "one repo:"),
        ("-repo:acme/widgets", "'-repo:'"),
        ("repo:acme/widgets -repo:acme/docs", "'-repo:'"),
        ('"repo:acme/widgets"', "quoted word with ':'"),
        ('"repo:acme/widgets" repo:acme/vault', "quoted word with ':'"),
        ("REPO:acme/widgets", "cannot be judged"),
        ("repo:acme/widgets OR x", "operators"),
        ("repo:acme/widgets or x", "operators"),
        ("repo:acme/widgets AND x", "operators"),
        ("repo:acme/widgets NOT x", "operators"),
        ("repo:acme/widgets (a OR b)", "operators"),
        ("repo:acme/widgets org:acme", "'org:'"),
        ("repo:acme/widgets user:acme", "'user:'"),
        ("repo:acme/widgets owner:acme", "'owner:'"),
        ("repo:acme/widgets team:acme/x", "'team:'"),
        ("repo:acme/widgets project:acme/1", "'project:'"),
        ("repo:acme/widgets unheard-of:x", "'unheard-of:'"),
        ("repo:acme/widgets\u3000OR\u3000x", "a character"),
        ("repo:acme/widgets\u200b", "a character"),
        ("repo:acme/widgets\x0brepo:acme/vault", "a character"),
        ("repo:acme/widgets\u00a0repo:acme/vault", "a character"),
        ("repo:acme/widgets repo:", "cannot be judged"),
        ("repo: acme/widgets", "cannot be judged"),
        ('repo:acme/widgets "unclosed', "cannot be judged"),
        ('repo:acme/widgets x"y"', "cannot be judged"),
        ("repo:acme/widgets a\\b", "cannot be judged"),
        ("repo:acme/widgets:x", "cannot be judged"),
        ("repo:acme/widgets created:10:20", "cannot be judged"),
        ("repo:acme/widgets " + "x" * MAX_TEXT, "at most"),
    ],
)
def test_a_search_that_may_reach_elsewhere_is_refused(text: str, why: str) -> None:
    """I3. The controls are above."""
    with pytest.raises(RequestUnfit, match=why):
        confine_search(text, GRANTED)
