"""Refusals that a person is not told: the listed ones, and no other."""

from __future__ import annotations

import pytest

from keyhole.inject.quiet_refusals import QuietRefusals

QUIET = QuietRefusals(
    ("t.example", "*.sentry.example", "api.example POST /log/**", "api.example GET /ping", "://")
)


@pytest.mark.parametrize(
    ("host", "covered"),
    [
        ("t.example", True),
        ("o1.sentry.example", True),
        ("sentry.example", False),
        ("api.example", False),
        ("limits.upload", False),
        ("not a host", False),
    ],
)
def test_a_host_alone_covers_connections(host: str, covered: bool) -> None:
    assert QUIET.covers_connection(host) is covered
    assert not QuietRefusals().covers_connection(host)


@pytest.mark.parametrize(
    ("host", "word", "path", "covered"),
    [
        ("api.example", "POST", "/log/a/b?x=1", True),
        ("api.example", "GET", "/ping", True),
        ("api.example", "GET", "/log/a", False),
        ("api.example", "POST", "/v1/messages", False),
        ("api.example", "POST", "/log/../v1", False),
        ("t.example", "POST", "/log", False),
        ("other.example", "POST", "/log", False),
    ],
)
def test_a_rule_covers_requests(host: str, word: str, path: str, covered: bool) -> None:
    """A host alone covers none: where the policy names the host, a refusal there is news."""
    assert QUIET.covers_request(host, word, path) is covered
