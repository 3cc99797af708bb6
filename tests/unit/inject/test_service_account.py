"""A key file becomes an access token by way of Google alone, and is never quoted (I1, I4, I8)."""

from __future__ import annotations

import base64
import functools
import json
import pickle
from collections.abc import Callable
from typing import TypeAlias, cast
from urllib.parse import parse_qs

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.injection import GoogleInjection
from keyhole.inject.service_account import (
    ASSERTION_SECONDS,
    CLOCK_SLACK,
    MAX_ANSWER,
    MAX_FILE,
    MAX_LIFE,
    MAX_TOKEN,
    GoogleAccount,
    RefreshLogin,
    ServiceAccount,
    read_account,
    read_token,
    token_request,
)
from keyhole.model.errors import CredentialUnusable, Unparsable
from keyhole.model.secret import Secret

NOW = 1782907200.75
EMAIL = "robot@acme.iam.gserviceaccount.com"
CLOUD = GoogleInjection(("cloud-platform",))

MakeFile: TypeAlias = Callable[..., dict[str, object]]


@functools.cache
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def pem(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, password: bytes = b"") -> str:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock).decode("ascii")


def robot(**changes: object) -> dict[str, object]:
    """A service account's file, as the console hands it out."""
    return {
        "type": "service_account",
        "project_id": "acme",
        "private_key_id": "0123456789abcdef",
        "private_key": pem(key()),
        "client_email": EMAIL,
        "client_id": "1234567890",
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": "https://oauth2.googleapis.com/token",
        "universe_domain": "googleapis.com",
    } | changes


REFRESH = "1//0refresh-token+of/ann=="
CLIENT_SECRET = "d-client&secret+of=gcloud"


def person(**changes: object) -> dict[str, object]:
    """The file of `gcloud auth application-default login`."""
    return {
        "type": "authorized_user",
        "client_id": "764086051850.apps.googleusercontent.com",
        "client_secret": CLIENT_SECRET,
        "refresh_token": REFRESH,
        "quota_project_id": "acme",
    } | changes


def account(file: dict[str, object], injection: GoogleInjection = CLOUD) -> GoogleAccount:
    return read_account(Secret(json.dumps(file)), injection)


def form(found: GoogleAccount) -> dict[str, str]:
    body = token_request(found, NOW).body.decode("ascii")
    return {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}


def decoded(part: str) -> dict[str, object]:
    text = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    return cast("dict[str, object]", json.loads(text))


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


def test_a_service_account_asks_with_an_assertion_that_its_key_signed() -> None:
    """RFC 7523; held against google-auth when it was written."""
    sent = form(account(robot()))
    assert set(sent) == {"grant_type", "assertion"}
    assert sent["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    header, claims, signature = sent["assertion"].split(".")
    assert "=" not in sent["assertion"]
    assert decoded(header) == {"alg": "RS256", "typ": "JWT", "kid": "0123456789abcdef"}
    issued = int(NOW) - CLOCK_SLACK
    assert decoded(claims) == {
        "iss": EMAIL,
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "aud": "https://oauth2.googleapis.com/token",
        "iat": issued,
        "exp": issued + ASSERTION_SECONDS,
    }
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    signed = f"{header}.{claims}".encode()
    key().public_key().verify(raw, signed, PKCS1v15(), SHA256())
    with pytest.raises(InvalidSignature):  # the control: it is this text that is signed
        key().public_key().verify(raw, signed + b"x", PKCS1v15(), SHA256())


def test_a_login_asks_with_its_refresh_token_for_no_more_than_the_policy_says() -> None:
    """RFC 6749 §6."""
    assert form(account(person())) == {
        "grant_type": "refresh_token",
        "client_id": "764086051850.apps.googleusercontent.com",
        "client_secret": CLIENT_SECRET,
        "refresh_token": REFRESH,
        "scope": "https://www.googleapis.com/auth/cloud-platform",
    }


@pytest.mark.parametrize("file", [robot, person])
def test_scopes_are_those_of_the_policy(file: MakeFile) -> None:
    wide = GoogleInjection(("bigquery", "devstorage.read_only"))
    expected = (
        "https://www.googleapis.com/auth/bigquery https://www.googleapis.com/auth/"
        "devstorage.read_only"
    )
    found = account(file(scopes=["https://www.googleapis.com/auth/drive"]), wide)
    assert " ".join(found.scopes) == expected
    sent = form(found)
    scope = decoded(sent["assertion"].split(".")[1])["scope"] if "assertion" in sent else ""
    assert expected == (scope or sent["scope"])


@pytest.mark.parametrize("file", [robot, person])
@pytest.mark.parametrize(
    "address",
    ["https://evil.example/token", "http://oauth2.googleapis.com/token", "file:///x", "", None, 7],
)
def test_no_file_says_where_the_assertion_or_the_refresh_token_goes(
    file: MakeFile, address: object
) -> None:
    """I4: an assertion is worth a token to whoever takes it to Google first."""
    plain = token_request(account(file()), NOW)
    found = token_request(
        account(file(token_uri=address, auth_uri=address, token_url=address)), NOW
    )
    assert (found.host, found.path) == ("oauth2.googleapis.com", "/token")
    assert found == plain


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_without_a_universe_is_of_the_usual_one() -> None:
    file = robot()
    del file["universe_domain"]
    assert isinstance(account(file), ServiceAccount)
    assert isinstance(account(person(universe_domain="googleapis.com")), RefreshLogin)


NOT_A_FILE = "a key file as gcloud writes it"
NOT_A_KEY = "not an RSA key of 2048"

# Made when they are used: a key takes its time, and has no place in the name of a test.
WRONG: dict[str, tuple[Callable[[], str], str]] = {
    "nothing": (lambda: "", NOT_A_FILE),
    "a token": (lambda: "ya29.not-a-file-but-a-token", NOT_A_FILE),
    "a list": (lambda: "[]", NOT_A_FILE),
    "a text": (lambda: '"text"', NOT_A_FILE),
    "half an object": (lambda: "{", NOT_A_FILE),
    "too long": (lambda: json.dumps(robot(note="x" * MAX_FILE)), NOT_A_FILE),
    "too deep": (lambda: "[" * MAX_FILE, NOT_A_FILE),
    "a long number": (lambda: "9" * 5000, NOT_A_FILE),
    "no type": (lambda: "{}", "'type' is neither"),
    "another type": (lambda: json.dumps(robot(type="external_account")), "'type' is neither"),
    "a list of types": (lambda: json.dumps(robot(type=["service_account"])), "'type' is neither"),
    "a universe": (lambda: json.dumps(robot(universe_domain="evil.example")), "another universe"),
    "no universe": (lambda: json.dumps(robot(universe_domain=None)), "another universe"),
    "no address": (lambda: json.dumps(robot(client_email=None)), "'client_email' is missing"),
    "a name": (lambda: json.dumps(robot(client_email="robot")), "'client_email' is missing"),
    "two lines": (lambda: json.dumps(robot(client_email=f"{EMAIL}\nX")), "'client_email' is"),
    "a number as id": (lambda: json.dumps(robot(private_key_id=7)), "'private_key_id' is"),
    "an empty id": (lambda: json.dumps(robot(private_key_id="")), "'private_key_id' is missing"),
    "no key": (lambda: json.dumps(robot(private_key=None)), NOT_A_KEY),
    "a password": (lambda: json.dumps(robot(private_key="hunter2")), NOT_A_KEY),
    "half a character": (lambda: json.dumps(robot(private_key="\ud800")), NOT_A_KEY),
    "another kind of key": (
        lambda: json.dumps(robot(private_key=pem(ec.generate_private_key(ec.SECP256R1())))),
        NOT_A_KEY,
    ),
    "a locked key": (lambda: json.dumps(robot(private_key=pem(key(), b"hunter2"))), NOT_A_KEY),
    "a short key": (
        lambda: json.dumps(robot(private_key=pem(rsa.generate_private_key(65537, 1024)))),  # noqa: S505 - that is the point
        NOT_A_KEY,
    ),
    "no client": (lambda: json.dumps(person(client_id=None)), "'client_id' is missing"),
    "a blank": (lambda: json.dumps(person(client_secret="a b")), "'client_secret' is missing"),
    "no login": (lambda: json.dumps(person(refresh_token="")), "'refresh_token' is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_any_other_file_is_refused_and_not_quoted(name: str) -> None:
    """I8: what is said lands in terminals and CI logs."""
    make, why = WRONG[name]
    text = make()
    with pytest.raises(Unparsable, match=why) as refusal:
        read_account(Secret(text), CLOUD)
    chain: BaseException | None = refusal.value
    while chain is not None:
        assert not any(part in f"{chain!r}" for part in ("MII", "hunter2", "ya29", REFRESH, EMAIL))
        chain = chain.__cause__


@pytest.mark.parametrize("file", [robot, person])
def test_what_is_read_shows_nothing_secret(file: MakeFile) -> None:
    """I8."""
    found = account(file())
    asked = token_request(found, NOW)
    shown = f"{found!r} {asked!r}"
    assert "oauth2.googleapis.com" in shown
    assert not any(
        part in shown for part in ("MII", "PRIVATE", CLIENT_SECRET, REFRESH, "assertion")
    )
    with pytest.raises(TypeError):
        pickle.dumps(found)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────

ACCESS = "ya29.c.b0Aaekm1K" + "x-_Y9" * 40 + "......"


def answer(**changes: object) -> bytes:
    whole = {"access_token": ACCESS, "expires_in": 3599, "token_type": "Bearer"} | changes
    return json.dumps({k: v for k, v in whole.items() if v is not None}).encode()


def test_a_token_is_read_with_how_long_it_lasts() -> None:
    token = read_token(200, answer(scope="x", id_token="y"))
    assert token.secret.reveal() == ACCESS
    assert token.expires_in == 3599
    assert ACCESS not in repr(token)
    assert read_token(200, answer(token_type="bearer", expires_in=MAX_LIFE)).expires_in == MAX_LIFE
    assert read_token(200, answer(access_token="x" * MAX_TOKEN))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 60_000,
        answer() + b" " * MAX_ANSWER,
        answer(access_token=None),
        answer(access_token=""),
        answer(access_token=7),
        answer(access_token=f"{ACCESS}\r\nHost: evil.example"),
        answer(access_token=f"{ACCESS}\n"),
        answer(access_token="x" * (MAX_TOKEN + 1)),
        answer(access_token="é" * 20),
        answer(token_type=None),
        answer(token_type="mac"),
        answer(expires_in=None),
        answer(expires_in="3599"),
        answer(expires_in=True),
        answer(expires_in=0),
        answer(expires_in=-1),
        answer(expires_in=MAX_LIFE + 1),
    ],
)
def test_an_answer_in_any_other_form_is_no_token(body: bytes) -> None:
    """I9, and I4: no answer adds a line to a request."""
    with pytest.raises(CredentialUnusable) as refusal:
        read_token(200, body)
    assert refusal.value.message == "Google's answer holds no token in a form that is understood"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (400, b'{"error": "invalid_grant"}', "revoked, expired or unknown"),
        (400, b'{"error": "invalid_scope"}', "of this scope"),
        (401, b'{"error": "invalid_client"}', "client is unknown"),
        (401, b'{"error": "unauthorized_client"}', "in this way"),
        (403, b'{"error": "access_denied"}', "not allowed"),
        (400, b'{"error": {"code": 400}}', "it answered 400"),
        (400, b"", "it answered 400"),
        (302, answer(), "it answered 302"),
        (404, b"<html>", "it answered 404"),
        (429, b"{}", "it answered 429"),
        (500, b"", "it answered 500"),
        (503, b'{"error": "internal_failure"}', "it answered 503"),
    ],
)
def test_a_refusal_is_said_in_words_of_our_own(status: int, body: bytes, why: str) -> None:
    with pytest.raises(CredentialUnusable) as refusal:
        read_token(status, body)
    assert why in refusal.value.message


@given(st.integers(100, 599), st.sampled_from(["error", "error_description", "access_token"]))
def test_no_refusal_quotes_the_answer(status: int, name: str) -> None:
    """I8: an answer may quote the assertion or the refresh token that it refuses."""
    body = json.dumps({"error": "invalid_grant", name: f"bad {REFRESH} {ACCESS}"}).encode()
    with pytest.raises(CredentialUnusable) as refusal:
        read_token(status, body)
    said = f"{refusal.value} {refusal.value!r} {refusal.value.message}"
    assert REFRESH not in said
    assert ACCESS not in said


@given(st.integers(100, 599), st.binary(max_size=60))
def test_any_answer_is_a_token_or_a_refusal(status: int, body: bytes) -> None:
    with pytest.raises(CredentialUnusable):
        read_token(status, body)
