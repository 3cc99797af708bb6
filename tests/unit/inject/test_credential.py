"""A secret is written as its service wants it, once, and shown nowhere (I1, I6, I8)."""

from __future__ import annotations

import base64
import copy
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.credential import Credential, make_credential
from keyhole.inject.injection import MAX_PARTS, HeaderInjection, parse_injection
from keyhole.inject.renderings import MIN_SCRUBBED
from keyhole.model.errors import CredentialUnusable
from keyhole.model.secret import Secret
from tests.rigs.inject.shelf import NAMES, service

TOKEN = "ghp_Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX"
OTHER = "wJa/rXUtnFEMI+K7MDENG/bPxRfiCYzEXA+PLEKEY"
PLACEHOLDER = "ghp_keyhole00000000000000000000000000000"

BEARER = {"header": "Authorization", "value": "Bearer {secret}"}


def made(
    secret: str,
    *tables: dict[str, str],
    merge: tuple[tuple[str, str], ...] = (),
    placeholder: str = PLACEHOLDER,
) -> Credential:
    ways = [parse_injection(dict(table)) for table in tables]
    return make_credential(Secret(secret), ways, merge, placeholder)


def encoded(text: str) -> bytes:
    return base64.b64encode(text.encode())


# ── what is written ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (BEARER, f"Authorization: Bearer {TOKEN}\r\n".encode()),
        ({"header": "x-api-key", "value": "{secret}"}, f"x-api-key: {TOKEN}\r\n".encode()),
        (
            {"header": "Authorization", "value": "Token token={secret}"},
            f"Authorization: Token token={TOKEN}\r\n".encode(),
        ),
        ({"basic_user": "me"}, b"Authorization: Basic " + encoded(f"me:{TOKEN}") + b"\r\n"),
        ({"basic_user": ""}, b"Authorization: Basic " + encoded(f":{TOKEN}") + b"\r\n"),
        (
            {"header": "Authorization", "value": "Basic {secret:base64}"},
            b"Authorization: Basic " + encoded(TOKEN) + b"\r\n",
        ),
        ({"google": "cloud-platform"}, f"Authorization: Bearer {TOKEN}\r\n".encode()),
    ],
)
def test_a_secret_is_written_into_one_field(table: dict[str, str], line: bytes) -> None:
    credential = made(TOKEN, table)
    assert credential.lines == (line,)
    assert credential.names == {line.partition(b":")[0].lower()}
    assert credential.query == ""
    assert credential.signer is None


def test_a_secret_may_be_a_field_of_the_query() -> None:
    credential = made("a/b+c=d &ü;e#0123456789", {"query": "key"})
    assert credential.query == "key=a%2Fb%2Bc%3Dd%20%26%C3%BC%3Be%230123456789"
    assert credential.lines == ()
    assert credential.names == frozenset()


def test_several_fields_may_be_written() -> None:
    credential = made(
        f"{TOKEN}\nabc-123",
        {"header": "Authorization", "value": "Bearer {secret:1}"},
        {"header": "chatgpt-account-id", "value": "{secret:2}"},
    )
    assert credential.lines == (
        f"Authorization: Bearer {TOKEN}\r\n".encode(),
        b"chatgpt-account-id: abc-123\r\n",
    )
    assert credential.names == {b"authorization", b"chatgpt-account-id"}
    both = made(f"{TOKEN}", {"query": "a"}, {"query": "b"})
    assert both.query == f"a={TOKEN}&b={TOKEN}"


def test_flags_that_a_service_needs_are_bytes() -> None:
    credential = made(TOKEN, BEARER, merge=(("Anthropic-Beta", "oauth-2025-04-20"),))
    assert credential.merge == ((b"anthropic-beta", b"oauth-2025-04-20"),)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_the_last_line_is_no_part_of_a_secret(end: str) -> None:
    """What a command prints ends in one."""
    assert made(TOKEN + end, BEARER).lines == made(TOKEN, BEARER).lines


def test_what_a_secret_says_of_other_fields_is_not_read() -> None:
    """Were it, a secret could name another one's line."""
    text = "{secret:2}{secret}0123456789"
    assert made(text, BEARER).lines == (f"Authorization: Bearer {text}\r\n".encode(),)


def test_a_header_carries_latin_characters_as_a_byte_each() -> None:
    assert made("größe-0123456789", BEARER).lines == (
        b"Authorization: Bearer gr\xf6\xdfe-0123456789\r\n",
    )


def test_keys_for_signing_are_handed_to_the_signer() -> None:
    credential = made(
        f"AKIAIOSFODNN7QQQQQQQ\n{OTHER}\nsession-token-0123456789",
        {"sigv4": "bedrock", "region": "eu-west-1"},
        placeholder="AKIAKEYHOLE000000000\nsecret-placeholder",
    )
    assert credential.lines == ()
    signer = credential.signer
    assert signer is not None
    assert signer.access_key == "AKIAIOSFODNN7QQQQQQQ"
    assert signer.secret_key.reveal() == OTHER
    assert signer.session_token is not None
    assert signer.injection.region == "eu-west-1"
    assert (signer.placeholder_id, signer.placeholder_secret) == (
        "AKIAKEYHOLE000000000",
        "secret-placeholder",
    )


def test_one_placeholder_may_stand_for_both_keys() -> None:
    signer = made(
        f"AKIAIOSFODNN7QQQQQQQ\n{OTHER}", {"sigv4": "s3"}, placeholder="AKIAKEYHOLE000000000"
    ).signer
    assert signer is not None
    assert signer.placeholder_id == signer.placeholder_secret == "AKIAKEYHOLE000000000"


# ── what cannot be written ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("secret", "table", "why"),
    [
        ("", BEARER, "empty"),
        ("\n", BEARER, "empty"),
        (f"{TOKEN}\n\n", BEARER, "empty line"),
        (f"{TOKEN}\n\n{OTHER}", BEARER, "empty line"),
        (f"{TOKEN}\r\nX-Evil: 1", BEARER, "several lines"),
        (f"{TOKEN}\n{OTHER}", BEARER, "several lines"),
        (f"{TOKEN}\n{OTHER}", {"basic_user": "me"}, "several lines"),
        (f"{TOKEN}\n{OTHER}", {"query": "key"}, "several lines"),
        (
            f"{TOKEN}\n{OTHER}",
            {"header": "Authorization", "value": "Basic {secret:base64}"},
            "several lines",
        ),
        (TOKEN, {"header": "x", "value": "{secret:2}"}, "no line 2"),
        ("\n".join([TOKEN] * (MAX_PARTS + 1)), {"header": "x", "value": "{secret:1}"}, "more than"),
        (f"{TOKEN}\rX-Evil: 1", BEARER, "control"),
        (f"{TOKEN}\0", BEARER, "control"),
        (f"{TOKEN}\x7f", BEARER, "control"),
        (f"{TOKEN}\t", BEARER, "control"),
        (f"{TOKEN}\x85X-Evil: 1", BEARER, "control"),
        (f"{TOKEN}\u2028", {"query": "key"}, "control"),
        (f" {TOKEN}", BEARER, "space at an end"),
        (f"{TOKEN} ", BEARER, "space at an end"),
        (f"{TOKEN}€", BEARER, "cannot carry"),
        (TOKEN, {"sigv4": "s3"}, "two or three lines"),
        (f"AKIA\n{OTHER} x", {"sigv4": "s3"}, "does not look like"),
    ],
)
def test_a_secret_that_cannot_be_written_is_refused_and_not_shown(
    secret: str, table: dict[str, str], why: str
) -> None:
    """I8, and no second header is smuggled in by what a file or a command says."""
    with pytest.raises(CredentialUnusable) as refusal:
        made(secret, table)
    assert why in refusal.value.message
    shown = "".join(traceback.format_exception(refusal.value)) + repr(refusal.value.args)
    assert TOKEN[:8] not in shown
    assert OTHER[:8] not in shown


def test_characters_beyond_a_header_can_be_encoded() -> None:
    """The control of the one above."""
    assert made(f"{TOKEN}€", {"basic_user": "me"}).lines
    assert made(f"{TOKEN}€", {"query": "key"}).query.endswith("%E2%82%AC")


def test_one_header_is_written_once() -> None:
    """I6: exactly one credential."""
    with pytest.raises(CredentialUnusable) as refusal:
        made(TOKEN, BEARER, {"basic_user": "me"})
    assert "Authorization" in refusal.value.message


def test_a_placeholder_is_not_taken_for_a_secret() -> None:
    """Whoever stores what a sandbox printed is told, rather than answered 401."""
    with pytest.raises(CredentialUnusable) as refusal:
        made(PLACEHOLDER, BEARER)
    assert "placeholder" in refusal.value.message


# ── what is looked for ────────────────────────────────────────────────────────────────────────────


def test_a_secret_is_looked_for_in_answers() -> None:
    """I7, with the control: what only looks like it is left alone."""
    needles = made(TOKEN, BEARER).needles
    assert needles.replace(TOKEN.encode()) == PLACEHOLDER.encode()
    assert not needles.found_in(TOKEN[:-1].encode())


def test_the_rendered_value_of_basic_is_looked_for_whole() -> None:
    """I7: the base64 of user and secret together."""
    credential = made(TOKEN, {"basic_user": "x-access-token"})
    value = credential.lines[0].removeprefix(b"Authorization: Basic ").rstrip()
    clean = credential.needles.replace(value)
    assert base64.b64decode(clean) == f"x-access-token:{PLACEHOLDER}".encode()


def test_the_password_within_an_encoded_pair_is_looked_for_by_itself() -> None:
    """I7: a server decodes `user:password` and echoes what it does not accept."""
    pair = f"me@corp.example:{TOKEN}"
    table = {"header": "Authorization", "value": "Basic {secret:base64}"}
    credential = made(pair, table)
    assert credential.lines == (b"Authorization: Basic " + encoded(pair) + b"\r\n",)
    assert credential.needles.found_in(f"wrong token {TOKEN}".encode())
    assert credential.needles.found_in(encoded(pair))
    assert not credential.needles.found_in(b"me@corp.example:")
    assert not made(pair, BEARER).needles.found_in(TOKEN.encode())


def test_every_part_of_a_secret_is_looked_for() -> None:
    tables = {"header": "x", "value": "{secret:1}"}
    needles = made(f"{TOKEN}\n{OTHER}\nshort", tables).needles
    assert needles.found_in(TOKEN.encode())
    assert needles.found_in(OTHER.encode())
    assert needles.found_in(encoded(OTHER))
    assert not needles.found_in(b"short")


def test_what_is_hidden_is_looked_for_in_every_rendering_and_written_nowhere() -> None:
    """I1, I7: a refresh token belongs to the login whose access token is sent."""
    ways = [HeaderInjection("Authorization", "Bearer {secret}")]
    plain = make_credential(Secret(TOKEN), ways, (), PLACEHOLDER)
    hiding = make_credential(Secret(TOKEN), ways, (), PLACEHOLDER, [Secret(OTHER)])
    assert (hiding.lines, hiding.query) == (plain.lines, plain.query)
    for text in (OTHER.encode(), encoded(OTHER), OTHER.encode().hex().encode()):
        assert hiding.needles.found_in(b"x " + text + b" x")
        assert not plain.needles.found_in(b"x " + text + b" x")
    assert hiding.needles.found_in(TOKEN.encode())


def test_each_part_has_its_own_stand_in_where_there_are_several() -> None:
    needles = made(
        f"{TOKEN}\n{OTHER}", {"header": "x", "value": "{secret:1}"}, placeholder="one-\ntwo-"
    ).needles
    assert needles.replace(TOKEN.encode()) == b"one-" * 10
    assert needles.replace(OTHER.encode()) == b"two-" * 10 + b"t"


def test_a_name_among_the_parts_is_replaced_by_the_one_that_clients_know() -> None:
    """The id of an account is in answers, and a client compares it with that of its login."""
    way = HeaderInjection("x", "{secret:1}")
    secret = Secret(f"{TOKEN}\n{OTHER}")
    shown = "0" * len(OTHER)
    credential = make_credential(secret, [way], (), PLACEHOLDER, (), [(2, shown)])
    assert credential.needles.replace(b"<" + OTHER.encode() + b">") == f"<{shown}>".encode()
    assert not credential.needles.found_in(encoded(OTHER))
    assert credential.needles.found_in(encoded(TOKEN))


def test_an_access_keys_id_is_looked_for_as_it_is_and_the_key_in_every_rendering() -> None:
    needles = made(f"AKIAIOSFODNN7QQQQQQQ\n{OTHER}", {"sigv4": "s3"}).needles
    assert needles.found_in(b"AKIAIOSFODNN7QQQQQQQ")
    assert not needles.found_in(encoded("AKIAIOSFODNN7QQQQQQQ"))
    assert needles.found_in(OTHER.encode())
    assert needles.found_in(encoded(OTHER))


@pytest.mark.parametrize("table", [BEARER, {"basic_user": "me"}, {"query": "key"}])
def test_a_short_secret_is_used_and_not_looked_for(table: dict[str, str]) -> None:
    short = "x" * (MIN_SCRUBBED - 1)
    assert not made(short, table).needles
    assert made(short + "y", table).needles


def test_without_a_placeholder_a_mark_stands_in() -> None:
    assert (
        made(TOKEN, BEARER, placeholder="").needles.replace(TOKEN.encode()).startswith(b"keyhole")
    )


# ── custody ───────────────────────────────────────────────────────────────────────────────────────


def test_a_credential_shows_nothing_of_the_secret() -> None:
    """I1, I8."""
    credential = made(f"AKIAIOSFODNN7QQQQQQQ\n{OTHER}", {"sigv4": "s3"})
    for each in (credential, made(TOKEN, BEARER, {"query": "key"})):
        assert repr(each) == str(each) == "Credential(…)"
        for take in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                take(each)
        with pytest.raises(AttributeError):
            each.query = ""  # type: ignore[misc]


def test_a_credential_of_nothing_writes_nothing() -> None:
    """I3: the zero."""
    nothing = Credential()
    assert not nothing.lines
    assert not nothing.names
    assert not nothing.query
    assert not nothing.needles
    assert nothing.signer is None


# ── any secret, any service ───────────────────────────────────────────────────────────────────────


@given(st.text(min_size=1, max_size=40))
def test_any_secret_is_one_field_of_one_line_or_refused(secret: str) -> None:
    """I6: however hostile the characters, the head gains one line."""
    for value in ("Bearer {secret}", "Basic {secret:base64}", "{secret:1}"):
        try:
            credential = make_credential(
                Secret(secret), [HeaderInjection("Authorization", value)], (), PLACEHOLDER
            )
        except CredentialUnusable:
            continue
        [line] = credential.lines
        assert line.startswith(b"Authorization: ")
        assert line.endswith(b"\r\n")
        assert not set(line[:-2]) & {*range(0x20), 0x7F}
        assert line.count(b"\r\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_service_of_the_catalogue_can_be_given_a_secret(name: str) -> None:
    for host in service(name).hosts:
        if host.inject:
            ways = " ".join(map(str, host.inject))
            two = "{secret:2}" in ways or "signature" in ways
            parts = f"AKIAIOSFODNN7QQQQQQQ\n{OTHER}" if two else TOKEN
            credential = make_credential(Secret(parts), host.inject, host.merge, PLACEHOLDER)
            assert credential.lines or credential.query or credential.signer
            assert credential.needles
