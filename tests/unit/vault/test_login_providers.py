"""Login files and answers are data: whatever is in them, tokens are tokens and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.vault.codex_login import UNDATED, CodexLogin
from keyhole.vault.json_document import (
    MAX_TOKEN,
    claims,
    lifetime,
    moment,
    read_document,
    token,
    write_document,
)
from keyhole.vault.login_provider import LoginTokens
from keyhole.vault.login_providers import PROVIDERS
from keyhole.vault.secret_lifetime import MAX_LIFE
from tests.rigs.vault.tokenserver import unsigned

NAMES = st.sampled_from(
    "claudeAiOauth accessToken refreshToken expiresAt scopes tokens access_token refresh_token "
    "id_token account_id expires_in expiry_date last_refresh scope token_type OPENAI_API_KEY "
    "refresh_token_expires_in other".split()
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.just(unsigned(exp=1e12))
    | st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=8)


def spelled(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True)


@pytest.mark.parametrize("name", PROVIDERS)
@settings(max_examples=40)
@given(document=DOCUMENTS, answer=DOCUMENTS)
def test_any_file_and_any_answer_give_tokens_or_words(
    name: str, document: dict[str, Any], answer: dict[str, Any]
) -> None:
    """I6: no token has a character that could end a header or a line; what is written can be read
    back; a request carries no more than one line for each header."""
    provider = PROVIDERS[name]
    before = spelled(document)
    tokens = provider.tokens(document)
    if isinstance(tokens, LoginTokens):
        assert all(token(line) for line in tokens.access.split("\n"))
        assert "access" not in repr(tokens)
        request = provider.request(document, tokens)
        assert "\n" not in request.url.text + request.kind + request.agent
    renewed = provider.renewed(document, answer, 1.8e9)
    assert spelled(document) == before  # a value, not changed in place
    if renewed is not None:
        assert read_document(write_document(renewed)) == renewed
        assert set(document) <= set(renewed)
        assert renewed.get("other") == document.get("other")


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_nothing(data: bytes) -> None:
    found = read_document(data)
    assert found is None or read_document(write_document(found)) == found


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 9000 + b"}"]
)
def test_a_file_that_is_deep_or_wide_is_none(data: bytes) -> None:
    assert read_document(data) is None


def test_numbers_that_json_does_not_have_are_not_written() -> None:
    assert read_document(b'{"a": 1e999, "b": NaN, "c": -Infinity, "d": 1.5}') == {
        "a": None,
        "b": None,
        "c": None,
        "d": 1.5,
    }


@pytest.mark.parametrize(
    "text", ["", "a b", "a\nb", "a\r", "\x00", "é", "x" * (MAX_TOKEN + 1), 7, None]
)
def test_what_is_no_token(text: object) -> None:
    assert token(text) == ""
    assert token("x" * MAX_TOKEN)


@pytest.mark.parametrize("value", [True, "7", None, 0, -1, 10**400, 1e300, [1]])
def test_what_is_no_moment(value: object) -> None:
    assert moment(value) is None
    assert lifetime(value) is None
    assert moment(1_800_000_000_000, 0.001) == pytest.approx(1_800_000_000)
    assert lifetime(MAX_LIFE) == MAX_LIFE
    assert lifetime(MAX_LIFE + 1) is None


@pytest.mark.parametrize("text", ["", "a.b", "a.!.c", "a.e30.c.d", "a.W10.c", "a.é.c", "a.bm8.c"])
def test_what_has_no_claims(text: str) -> None:
    assert claims(text) == {}
    assert claims(unsigned(exp=7)) == {"exp": 7}


@pytest.mark.parametrize(
    ("last", "expires"),
    [
        ("2026-07-01T00:00:00Z", 1782864000 + UNDATED),
        ("2026-07-01T00:00:00.123456789Z", 1782864000.123456 + UNDATED),
        ("2026-07-01T00:00:00", None),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_codex_token_without_an_end_is_old_after_eight_days(
    last: str | None, expires: float | None
) -> None:
    login = {"access_token": "opaque-token", "account_id": "acct"}
    found = CodexLogin().tokens({"tokens": login, "last_refresh": last})
    assert isinstance(found, LoginTokens)
    assert found.expires == (expires and pytest.approx(expires))


def test_a_codex_login_that_names_no_account_is_refused() -> None:
    assert isinstance(CodexLogin().tokens({"tokens": {"access_token": "opaque-token"}}), str)


def test_when_the_refresh_token_is_another_its_end_is_another_too() -> None:
    claude = PROVIDERS["claude"]
    login = {"accessToken": "a", "refreshToken": "r", "refreshTokenExpiresAt": 1}
    grant = {"access_token": "b", "expires_in": 10}

    def after(**more: object) -> dict[str, Any]:
        renewed = claude.renewed({"claudeAiOauth": dict(login)}, grant | more, 100.0)
        assert renewed
        found: Any = renewed["claudeAiOauth"]
        return dict(found)

    assert after()["refreshTokenExpiresAt"] == 1
    assert "refreshTokenExpiresAt" not in after(refresh_token="s")
    assert after(refresh_token="s", refresh_token_expires_in=5)["refreshTokenExpiresAt"] == 105_000
    assert after(scope="x y")["scopes"] == ["x", "y"]
