"""Tokens of GitHub Apps: for the granted repositories and permissions, and no more (I1, I3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.model.secret import Secret
from keyhole.policy.github_app import AppGrant, app_grant
from keyhole.vault.custody import seal_secret
from keyhole.vault.github_app import read_key
from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.store import Store
from keyhole.vault.vault import Vault
from tests.rigs.policies import loaded
from tests.rigs.vault.appforge import APP, AppForge
from tests.rigs.vault.rig import Programs, World, ref, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trustme

    from keyhole.vault.interface import FetchedSecret

REF = ref(f"github-app:{APP}")
POLICY = """
[services.forge]
secret = "github-app:12345"
repos = ["acme/widgets", "acme/docs"]
push = ["agent/*"]
api = "pull-requests"
"""


@pytest.fixture
def forge(authority: trustme.CA) -> Iterator[AppForge]:
    made = AppForge(authority, host="api.git.example")
    yield made
    made.close()


def grant(text: str = POLICY) -> AppGrant:
    [service] = loaded(text).policy.services
    return app_grant(service)


def fetch(
    tmp_path: Path, forge: AppForge, text: str = POLICY, key: str | None = None
) -> FetchedSecret:
    world = World(tmp_path)
    Store(world.store).keep_plain(f"github-app-{APP}", seal_secret((key or forge.pem).encode()))
    ground = world.ground(Programs({}))
    reach = forge.server.reach()
    return Vault(replace(ground, reach=reach, apps={REF: grant(text)})).fetch(REF)


def refused(tmp_path: Path, forge: AppForge, text: str = POLICY, key: str | None = None) -> str:
    """Why there is no token; neither the key nor a token is in the error (I8)."""
    with pytest.raises(SecretUnavailable) as caught:
        fetch(tmp_path, forge, text, key)
    said = told(caught.value)
    assert forge.pem.split("\n")[3] not in said
    assert not any(token in said for token in forge.tokens)
    return str(caught.value)


def test_a_token_is_for_the_granted_repositories_and_permissions(
    tmp_path: Path, forge: AppForge
) -> None:
    """Not for `secret`, where the app is installed too, and not for its administration."""
    given = fetch(tmp_path, forge)
    minted = forge.tokens[given.secret.reveal()]
    assert minted.repositories == ["docs", "widgets"]
    assert minted.permissions == {
        "metadata": "read",
        "contents": "write",
        "pull_requests": "write",
        "issues": "write",
        "checks": "read",
    }
    assert given.life is not None
    assert 3000 < given.life.ends - given.life.begins < 3700
    assert given.hidden == ()


def test_reading_needs_no_permission_to_write(tmp_path: Path, forge: AppForge) -> None:
    text = POLICY.replace('push = ["agent/*"]\napi = "pull-requests"', "")
    forge.permissions = {"metadata": "read", "contents": "read"} | dict.fromkeys(
        ("pull_requests", "issues"), "read"
    )
    minted = forge.tokens[fetch(tmp_path, forge, text).secret.reveal()]
    assert set(minted.permissions.values()) == {"read"}


def test_each_token_is_a_new_one_so_that_it_is_renewed_before_it_ends(
    tmp_path: Path, forge: AppForge
) -> None:
    first, second = fetch(tmp_path, forge), fetch(tmp_path, forge)
    assert first.secret.reveal() != second.secret.reveal()
    assert first.life is not None
    assert first.life.renewal < first.life.ends - 200


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"repositories": [{"full_name": "acme/secret"}]}, "other repositories"),
        ({"repositories": []}, "other repositories"),
        ({"repositories": None}, "other repositories"),
        ({"repository_selection": "all"}, "more repositories"),
        ({"permissions": {"administration": "write"}}, "may do more"),
        ({"permissions": {"contents": "admin"}}, "may do more"),
        ({"permissions": {}}, "may do more"),
        ({"token": "ghs_\x1b[2J"}, "in a form that is understood"),
        ({"expires_at": "soon"}, "in a form that is understood"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "clock"),
    ],
)
def test_a_token_that_is_not_what_was_asked_for_is_not_used(
    tmp_path: Path, forge: AppForge, change: dict[str, object], why: str
) -> None:
    forge.bend = change
    assert why in refused(tmp_path, forge)


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, forge: AppForge) -> None:
    del forge.permissions["pull_requests"]
    assert "lacks permissions that this policy needs (pull_requests: write)" in refused(
        tmp_path, forge
    )
    forge.installed = {"docs"}
    assert "not installed for each repository" in refused(
        tmp_path, forge, POLICY.replace('api = "pull-requests"', 'api = "off"')
    )
    forge.installed = set()
    assert "not installed for acme/docs" in refused(tmp_path, forge)


def test_a_key_that_is_none_or_anothers_is_told_apart(tmp_path: Path, forge: AppForge) -> None:
    assert "not an app's private key" in refused(tmp_path, forge, key="x" * 40)
    other = AppForge(forge.authority)
    other.close()
    assert "does not accept the app's key" in refused(tmp_path, forge, key=other.pem)
    assert read_key(Secret("no key")) is None


def test_a_key_that_is_not_stored_says_what_to_type(tmp_path: Path, forge: AppForge) -> None:
    world = World(tmp_path)
    with pytest.raises(SecretUnavailable, match="keyhole secret set github-app-12345"):
        Vault(replace(world.ground(Programs({})), apps={REF: grant()})).fetch(REF)


def test_a_forge_that_cannot_be_reached_is_named(tmp_path: Path, forge: AppForge) -> None:
    forge.close()
    assert "api.git.example cannot be reached" in refused(tmp_path, forge)


def test_an_enterprise_server_is_asked_below_its_own_path(
    tmp_path: Path, authority: trustme.CA
) -> None:
    forge = AppForge(authority, host="github.corp.example", prefix="/api/v3")
    text = POLICY + 'forge = "github"\nhosts = ["github.corp.example"]\n'
    text = text.replace("services.forge", "services.ours")
    try:
        given = fetch(tmp_path, forge, text)
    finally:
        forge.close()
    assert given.secret.reveal() in forge.tokens
    assert forge.server.asked[0].target == "/api/v3/repos/acme/docs/installation"
