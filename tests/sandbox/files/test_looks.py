"""What looks like a credential (I1)."""

from __future__ import annotations

import pytest

from keyhole.sandbox.files.looks import name_looks_secret, text_looks_secret, value_looks_secret


@pytest.mark.parametrize(
    "name",
    """GITHUB_TOKEN NPM_TOKEN API_KEY ANTHROPIC_API_KEY apiKey SECRET CLIENT_SECRET_ID MY_PASSWORD
    DB_PASSWD AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN MYSQL_PWD GH_PAT DB_PASS KEY token API_KEY_2
    GOOGLE_APPLICATION_CREDENTIALS SSH_PASSPHRASE NPM_CONFIG__AUTH PGPASSWORD _authToken""".split(),
)
def test_a_name_that_holds_a_credential_by_custom_is_known(name: str) -> None:
    assert name_looks_secret(name)


@pytest.mark.parametrize(
    "name",
    """KEYBOARD KEYMAP XKB_LAYOUT MAX_TOKENS TOKENIZERS_PARALLELISM PATH PWD OLDPWD MONKEY COMPASS
    AWS_REGION PUBLIC_KEY NODE_ENV PASSENGER AUTHOR BYPASS_CACHE TURKEY DATABASE_URL
    SSL_CERT_FILE""".split(),
)
def test_a_name_that_only_resembles_one_passes(name: str) -> None:
    assert not name_looks_secret(name)


@pytest.mark.parametrize(
    "value",
    [
        "ghp_" + "a" * 36,
        "github_pat_" + "a" * 40,
        "glpat-" + "a" * 20,
        "sk-ant-" + "a" * 40,
        "xoxb-1234567890-abc",
        "AKIA" + "A" * 16,
        "before npm_" + "a" * 36 + " after",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln",
        "-----BEGIN RSA PRIVATE KEY-----",
        "https://user:pass@host/",
        "https://token@host/",
        "postgres://u:p@db/x",
    ],
)
def test_a_value_of_a_known_shape_is_known(value: str) -> None:
    assert value_looks_secret(value)


@pytest.mark.parametrize(
    "value",
    ["", "1", "https://host/a@b", "ssh://git@host/x", "git@host:a/b", "task-management-for-all-of",
     "https://$USER:$PASS@host/", "-----BEGIN CERTIFICATE-----", "mask-" + "a" * 20, "user@host"],
)  # fmt: skip
def test_a_value_that_only_resembles_one_passes(value: str) -> None:
    assert value_looks_secret(value) is None


def test_a_sample_in_a_comment_is_no_password() -> None:
    sample = "<settings><!-- <password>x</password> --></settings>"
    assert text_looks_secret(sample) is None
    assert text_looks_secret("<settings><password>x</password></settings>")


def test_a_setting_is_known_by_its_name_when_it_has_a_value() -> None:
    assert text_looks_secret("export API_TOKEN='x'\n")
    assert text_looks_secret('api_key: "x"\n')
    assert text_looks_secret("API_TOKEN=$OTHER\nAPI_KEY=\n# PASSWORD=x\n") is None
