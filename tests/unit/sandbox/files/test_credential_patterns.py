"""What looks like a credential (I1)."""

from __future__ import annotations

import time
from random import Random

import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.inject.placeholder import TokenShape
from keyhole.sandbox.files.credential_patterns import (
    credential_by_shape,
    gives_secret,
    name_looks_secret,
    text_looks_secret,
    value_looks_secret,
)


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


BODY = "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"


@pytest.mark.parametrize(
    "text",
    [
        f"ghp_{BODY}", f"gho_{BODY}", f"github_pat_{BODY[:22]}_{BODY}", f"glpat-{BODY[:20]}",
        f"sk-proj-{BODY}", f"sk-ant-api03-{BODY}-{BODY}AA", f"sk_live_{BODY[:24]}",
        f"AKIA{BODY[:16].upper()}", f"AIza{BODY[:35]}", f"xoxb-8412907365-{BODY[:24]}",
        f"npm_{BODY}", f"pypi-AgEIcHlwaS5vcmc{BODY}", f"hf_{BODY}", f"dop_v1_{HEX}",
        f"SG.{BODY[:22]}.{BODY}", f"eyJ{BODY}.eyJ{BODY}.{BODY}", f'"Bearer gsk_{BODY}"',
        "-----BEGIN PRIVATE KEY-----", f"postgres://app:{BODY}@db.corp.io/x",
        f"https://x-access-token:ghs_{BODY}@github.com/a/b", f"https://me:{BODY}@forge.corp.io/",
    ],
)  # fmt: skip
def test_a_credential_in_a_file_is_known_by_its_shape(text: str) -> None:
    """I1, wherever it stands in the file."""
    assert credential_by_shape(text.encode())
    assert credential_by_shape(f'{{"a": "b",\n "c": "{text}"}}\n'.encode())


@pytest.mark.parametrize(
    "text",
    [
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "ghp_" + "a" * 36, "${GITHUB_TOKEN}",
        "ghp_1234567890abcdefghijklmnopqrstuvwxyz", "AKIAIOSFODNN7EXAMPLE", "sk-your-key-goes-here",
        "sk-learn-extensions-contrib", "pypi-publish-to-the-registry", "npm_config_registry",
        "glpat-YOUR_TOKEN_HERE_PLEASE", "task-ghp", "eyJ0eXAi", "risk-assessment-of-the-year",
        "postgres://postgres:postgres@db/app", "postgres://app:S3cretPass@localhost:5432/app",
        "postgres://app:secret@db.corp.io/x", "https://user:${TOKEN}@corp.io/",
        "https://user:<password>@corp.io/", "https://user:%s@corp.io/", "mysql://a:b1c2@127.0.0.1/",
        "https://u:p4ss0rd@svc.example/", "redis://cache:cache@cache.corp.io", "https://a@b.io/",
        "-----BEGIN CERTIFICATE-----", "https://u:***@corp.io", "ssh://git@corp.io/x",
    ],
)  # fmt: skip
def test_samples_variables_and_local_passwords_are_no_credentials(text: str) -> None:
    assert credential_by_shape(text.encode()) is None


def test_a_placeholder_of_ours_is_no_credential() -> None:
    """An agent that writes its own settings has one; the shapes are those of the catalogue."""
    catalogue = FileCatalogue()
    shapes = [t.placeholder for t in catalogue.values() if t.placeholder]
    found = 0
    for shape in (*shapes, TokenShape.parse("{jwt}")):
        for seed in range(5):
            made = shape.placeholder(Random(seed).randbytes(4096))  # noqa: S311 - a stand-in
            assert credential_by_shape(f'"{made}"'.encode()) is None, made
            unmarked = made.replace("keyhole", "q7RtZ2m").replace("KEYHOLE", "Q7RTZ2M")
            found += credential_by_shape(f'"{unmarked}"'.encode()) is not None
    assert found > 50  # the control: without the mark many are known


@pytest.mark.parametrize(
    "piece",
    ["eyJaaaaaaaaaa-", "eyJaaaaaaaaaa.", "sk-", "SG.aaaaaaaaaaaaaaaaaaaa", "://a:b", "://", "AKIA",
     "-----BEGIN ", "PRIVATE KE", "ghp_", "://a:b@", "a:", "<!--", "xoxb-", " ", "a=",
     "sk-a1B2c3D4", "a", "--a", "-", "a: bearer ", "--token "],
)  # fmt: skip
def test_looking_costs_time_in_proportion(piece: str) -> None:
    """I9, I12: files of the project are what a sandbox wrote before."""
    times = []
    for size in (1 << 16, 1 << 18):
        text = "<" + piece * (size // len(piece))
        start = time.process_time()
        credential_by_shape(text.encode())
        text_looks_secret(text)
        gives_secret(text)
        times.append(time.process_time() - start)
    assert times[1] < 12 * times[0] + 0.1  # four times as much; quadratic would be sixteen


@pytest.mark.parametrize(
    "text",
    ["Bash(mysql -u root -phunter22 shop:*)", "/bin/mysqldump -phunter22", "sshpass -p hunter22",
     "curl -u me:hunter22 https://a.example", "curl -ume:hunter22 x", "redis-cli -a hunter22 ping",
     "curl --user=me:hunter22 x", "docker login -u me -p hunter22", "smbclient -U me%hunter22",
     "a && mariadb '-phunter22'"],
)  # fmt: skip
def test_a_password_behind_a_short_flag_is_known(text: str) -> None:
    assert gives_secret(text)


@pytest.mark.parametrize(
    "text",
    ["Bash(mysql -p:*)", "mysql -p shop", "mysql -p$PASS shop", "curl -u me https://a.example",
     "curl -u me:$PASS x", "docker run -p 8080:80 x", "mkdir -p build", "redis-cli -a", "cp -a x y",
     "sshpass -p -x", "Bash(mysql:*)", "curl -u me: x"],
)  # fmt: skip
def test_the_same_flag_without_a_password_passes(text: str) -> None:
    assert not gives_secret(text)


def test_a_sample_in_a_comment_is_no_password() -> None:
    sample = "<settings><!-- <password>x</password> --></settings>"
    assert text_looks_secret(sample) is None
    assert text_looks_secret("<settings><password>x</password></settings>")


def test_a_setting_is_known_by_its_name_when_it_has_a_value() -> None:
    assert text_looks_secret("export API_TOKEN='x'\n")
    assert text_looks_secret('api_key: "x"\n')
    assert text_looks_secret("API_TOKEN=$OTHER\nAPI_KEY=\n# PASSWORD=x\n") is None


@pytest.mark.parametrize(
    "text",
    ["PGPASSWORD=hunter22 psql", "export A_TOKEN='hunter22'", "x --password hunter22",
     "x --api-key=hunter22", '{"a": 1, "clientSecret": "hunter22"}', "cookie: a=hunter22",
     "curl -H 'X-Api-Key: hunter22'", "https://a.example/?token=hunter22",
     "Authorization: Bearer hunter22"],
)  # fmt: skip
def test_a_value_behind_the_name_of_a_credential_is_known(text: str) -> None:
    assert gives_secret(text)


@pytest.mark.parametrize(
    "text",
    ["PGPASSWORD=$PASS psql", "--token ${TOKEN}", "Authorization: Bearer $TOKEN", "key: language",
     "password: string", "Bash(git push:*)", "max_tokens: 8192", "token: <your token>", "TOKEN=",
     "API_KEY=your-key-here", "WebFetch(domain:docs.example.org)", "use the token of your account"],
)  # fmt: skip
def test_a_reference_a_kind_or_a_sample_is_none(text: str) -> None:
    assert not gives_secret(text)
