"""Logins of nobody: what clients need to start, with a placeholder in it (I1)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from keyhole.inject.stub_files import FAR_FUTURE, NOBODY, stub_files
from tests.rigs.inject.shelf import NAMES, service

TODAY = "2026-07-01"
PLACEHOLDER = "keyhole-" + "a" * 32


def made(**placeholders: str) -> dict[str, Any]:
    return {s.path: json.loads(s.content) for s in stub_files(placeholders, TODAY)}


def claims(token: str) -> Any:  # noqa: ANN401 - JSON
    header, payload, signature = token.split(".")
    assert header
    assert signature
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def test_codex_finds_a_login_that_lasts_and_names_nobody() -> None:
    """It asks for new tokens when theirs end, or eight days after the last time."""
    login = made(codex=PLACEHOLDER)[".codex/auth.json"]
    tokens = login["tokens"]
    assert login["OPENAI_API_KEY"] is None
    assert login["last_refresh"] == f"{TODAY}T00:00:00Z"
    assert tokens["account_id"] == NOBODY
    assert service("codex").hosts[0].names == ((2, NOBODY),)
    for token in (tokens["id_token"], tokens["access_token"]):
        told = claims(token)
        assert told["exp"] == FAR_FUTURE
        assert told["https://api.openai.com/auth"]["chatgpt_account_id"] == NOBODY


def test_a_token_that_is_sent_elsewhere_is_known_by_the_placeholder_in_it() -> None:
    tokens = made(codex=PLACEHOLDER)[".codex/auth.json"]["tokens"]
    assert all(PLACEHOLDER in tokens[n] for n in ("id_token", "access_token", "refresh_token"))


def test_a_key_is_written_as_a_key() -> None:
    assert made(openai="sk-proj-x") == {".codex/auth.json": {"OPENAI_API_KEY": "sk-proj-x"}}


def test_claude_code_starts_without_a_tour_and_with_a_key_that_is_approved_of() -> None:
    assert made(claude="sk-ant-oat01-x") == {".claude.json": {"hasCompletedOnboarding": True}}
    known = made(anthropic="sk-ant-api03-" + "b" * 93 + "AA")[".claude.json"]
    assert known["hasCompletedOnboarding"] is True
    assert known["customApiKeyResponses"] == {"approved": ["b" * 18 + "AA"], "rejected": []}


def test_of_two_services_for_one_client_the_subscription_is_chosen() -> None:
    """Whatever their order: the key is of use to other clients by its variable."""
    assert made(openai="sk-x", codex=PLACEHOLDER) == made(codex=PLACEHOLDER)


def test_most_services_need_no_file() -> None:
    with_files = {name for name in NAMES if stub_files({name: PLACEHOLDER}, TODAY)}
    assert with_files == {"codex", "openai", "claude", "anthropic"}


@pytest.mark.parametrize("name", ["codex", "openai", "claude", "anthropic"])
def test_a_file_lies_below_the_home(name: str) -> None:
    (stub,) = stub_files({name: PLACEHOLDER}, TODAY)
    assert not stub.path.startswith("/")
    assert ".." not in stub.path.split("/")
    assert stub.content.endswith("}\n")
