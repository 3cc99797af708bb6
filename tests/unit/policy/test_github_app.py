"""The bounds of an app's token follow from the grant, and nothing else (I3)."""

from __future__ import annotations

import pytest

from keyhole.policy.github_app import MAX_REPOSITORIES, AppGrant, app_grant
from tests.rigs.policies import faults, loaded

BASE = '[services.forge]\nsecret = "github-app:12345"\nrepos = ["Acme/Widgets"]\n'


def grant(more: str = "", base: str = BASE) -> AppGrant:
    [service] = loaded(base + more).policy.services
    return app_grant(service)


def needed(more: str) -> dict[str, str]:
    return dict(grant(more).needed)


def test_reading_is_the_least() -> None:
    found = grant()
    assert (found.api.text, found.owner) == ("https://api.git.example", "acme")
    assert found.repositories == ("widgets",)
    assert dict(found.needed) == {
        "metadata": "read",
        "contents": "read",
        "pull_requests": "read",
        "issues": "read",
    }
    assert dict(found.useful) == {"actions": "read", "checks": "read", "statuses": "read"}


def test_git_alone_needs_nothing_of_the_api() -> None:
    found = grant('api = "off"')
    assert dict(found.needed) == {"metadata": "read", "contents": "read"}
    assert found.useful == ()


def test_a_push_or_a_tag_writes_contents_and_no_workflows() -> None:
    assert needed('push = ["agent/*"]')["contents"] == "write"
    assert needed('tags = ["v*"]')["contents"] == "write"
    assert "workflows" not in needed('push = ["agent/*"]')
    assert needed('push = ["agent/*"]\ndeny_paths = []')["workflows"] == "write"
    assert "workflows" not in needed("deny_paths = []")


def test_pull_requests_are_written_where_they_are_granted() -> None:
    found = needed('api = "pull-requests"')
    assert (found["pull_requests"], found["issues"], found["contents"]) == (
        "write",
        "write",
        "read",
    )
    assert needed('api = "merge"')["contents"] == "write"


def test_a_server_of_ones_own_has_its_interface_below_a_path() -> None:
    base = BASE.replace("services.forge", "services.ours") + 'forge = "github"\n'
    assert grant('hosts = ["github.corp.example:8443"]', base).api.text == (
        "https://github.corp.example:8443/api/v3"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[services.model]\nsecret = "github-app:1"\n', "for a service of GitHub"),
        ('[services.lab]\nsecret = "github-app:1"\nrepos = ["a/b"]\n', "for a service of GitHub"),
        ('[services.forge]\nsecret = "github-app:1"\n', "repositories that are named"),
        (BASE.replace('"]', '", "other/docs"]'), "one owner"),
        (
            BASE.replace('"Acme/Widgets"', ", ".join(f'"a/r{n}"' for n in range(501))),
            "at most 500 repositories",
        ),
        (
            BASE.replace("services.forge", "services.x")
            + 'forge = "github"\nhosts = ["*.github.corp.example"]\n',
            "which host's app",
        ),
    ],
)
def test_what_no_token_can_be_minted_for_is_a_fault(text: str, why: str) -> None:
    assert MAX_REPOSITORIES == 500
    assert any(why in fault.message for fault in faults(text)), faults(text)
