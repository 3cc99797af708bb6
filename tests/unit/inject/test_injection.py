"""How a credential is written: in few forms, none of which can reframe a request (I4, I6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.injection import (
    FIELDS,
    FRAMING_HEADERS,
    KEYS,
    MAX_PARTS,
    MINTING_SERVICES,
    BasicInjection,
    GoogleInjection,
    HeaderInjection,
    Injection,
    QueryInjection,
    SignatureInjection,
    parse_injection,
)
from keyhole.model.errors import Unparsable


@pytest.mark.parametrize(
    ("table", "injection", "shown"),
    [
        (
            {"header": "Authorization", "value": "Bearer {secret}"},
            HeaderInjection("Authorization", "Bearer {secret}"),
            "header Authorization: Bearer {secret}",
        ),
        (
            {"header": "x-api-key", "value": "{secret}"},
            HeaderInjection("x-api-key", "{secret}"),
            "header x-api-key: {secret}",
        ),
        (
            {"header": "A", "value": "Basic {secret:base64}"},
            HeaderInjection("A", "Basic {secret:base64}"),
            "header A: Basic {secret:base64}",
        ),
        (
            {"header": "A", "value": "{secret:1}, {secret:2}"},
            HeaderInjection("A", "{secret:1}, {secret:2}"),
            "header A: {secret:1}, {secret:2}",
        ),
        (
            {"basic_user": "x-access-token"},
            BasicInjection("x-access-token"),
            "header Authorization: Basic x-access-token:{secret}",
        ),
        ({"basic_user": ""}, BasicInjection(""), "header Authorization: Basic :{secret}"),
        ({"query": "api_key"}, QueryInjection("api_key"), "query api_key={secret}"),
        (
            {"sigv4": "bedrock"},
            SignatureInjection("bedrock"),
            "signature AWS4-HMAC-SHA256 for bedrock",
        ),
        (
            {"sigv4": "*"},
            SignatureInjection(""),
            "signature AWS4-HMAC-SHA256 for the service of the host",
        ),
        (
            {"sigv4": "s3", "region": "auto"},
            SignatureInjection("s3", "auto"),
            "signature AWS4-HMAC-SHA256 for s3 in auto",
        ),
        (
            {"google": "cloud-platform"},
            GoogleInjection(("cloud-platform",)),
            "header Authorization: Bearer (Google token for cloud-platform)",
        ),
        (
            {"google": "bigquery devstorage.read_only"},
            GoogleInjection(("bigquery", "devstorage.read_only")),
            "header Authorization: Bearer (Google token for bigquery devstorage.read_only)",
        ),
    ],
)
def test_the_keys_of_a_table_say_which_form_it_is(
    table: dict[str, object], injection: Injection, shown: str
) -> None:
    assert parse_injection(table) == injection
    assert str(injection) == shown
    assert set(table) <= set(KEYS)


@pytest.mark.parametrize("header", sorted(FRAMING_HEADERS))
def test_a_credential_is_never_written_where_a_request_is_framed_or_routed(header: str) -> None:
    """I4: `Host` or `Content-Length` from a secret would send the request elsewhere."""
    for spelling in (header, header.upper(), header.title()):
        with pytest.raises(Unparsable, match="frames or routes"):
            parse_injection({"header": spelling, "value": "{secret}"})
    assert parse_injection({"header": f"x-{header}", "value": "{secret}"})


def test_the_headers_that_frame_a_request_are_known() -> None:
    assert {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer",
            "expect"} <= FRAMING_HEADERS  # fmt: skip


@pytest.mark.parametrize(
    "header",
    ["", " ", "a b", "a:", ":authority", "a\r\nX: y", "a\n", "a\0", "é", "a(b)", "a/b", "a\t",
     '"a"', "\u212aey"],
)  # fmt: skip
def test_a_header_name_is_a_token(header: str) -> None:
    """RFC 9110 §5.6.2: no line can be broken from here."""
    with pytest.raises(Unparsable, match="not a header name") as refusal:
        parse_injection({"header": header, "value": "{secret}"})
    assert refusal.value.message.isascii()
    assert refusal.value.message.isprintable()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "writes no credential"),
        ("Bearer", "writes no credential"),
        ("Bearer secret", "writes no credential"),
        ("Bearer {secret}\r\nX: y", "printable ASCII"),
        ("Bearer {secret}\n", "printable ASCII"),
        ("{secret}\0", "printable ASCII"),
        ("\t{secret}", "printable ASCII"),
        ("{secret}é", "printable ASCII"),
        ("{SECRET}", "no other field"),
        ("{token}", "no other field"),
        ("{}", "no other field"),
        ("{secret:0}", "no other field"),
        (f"{{secret:{MAX_PARTS + 1}}}", "no other field"),
        ("{secret:hex}", "no other field"),
        ("{secret} {other}", "no other field"),
        ("{secret", "no other field"),
        ("secret}", "no other field"),
        ("{{secret}}", "no other field"),
        ("{secret}}", "no other field"),
        ("{ secret }", "no other field"),
        ("{secret!r}", "no other field"),
        ("{secret.__class__}", "no other field"),
        ("{0}", "no other field"),
    ],
)
def test_a_value_is_printable_and_names_the_secret_and_nothing_else(value: str, why: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        parse_injection({"header": "Authorization", "value": value})
    assert why in refusal.value.message


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_can_be_named(field: str) -> None:
    value = f"x {{{field}}} y"
    injection = parse_injection({"header": "Authorization", "value": value})
    assert injection == HeaderInjection("Authorization", value)


@pytest.mark.parametrize("user", ["a:b", ":", "a\n", "a\0", "é", "\x7f", "\t"])
def test_a_basic_user_has_no_colon_and_no_control_character(user: str) -> None:
    """RFC 7617 §2: what stands before the first colon is the user."""
    assert parse_injection({"basic_user": "a b"}) == BasicInjection("a b")
    with pytest.raises(Unparsable, match="without ':'"):
        parse_injection({"basic_user": user})


@pytest.mark.parametrize("key", ["", "a&b", "a=b", "a b", "a%20", "a#", "é", "a\n", "a;b", "a+b"])
def test_a_query_field_is_one_plain_name(key: str) -> None:
    assert parse_injection({"query": "x-api.key_~1"})
    with pytest.raises(Unparsable, match="one field"):
        parse_injection({"query": key})


@pytest.mark.parametrize("service", ["", "Bedrock", "a b", "a/b", "é", "a\n"])
def test_a_signed_service_is_a_lower_case_word(service: str) -> None:
    assert parse_injection({"sigv4": "execute-api"})
    for table in ({"sigv4": service}, {"sigv4": service, "region": "eu-west-1"}):
        with pytest.raises(Unparsable, match="signed for"):
            parse_injection(dict(table))


@pytest.mark.parametrize("service", sorted(MINTING_SERVICES))
def test_nothing_is_signed_for_a_service_that_hands_out_keys(service: str) -> None:
    """I1: an answer of STS or IAM is a key inside."""
    assert {"sts", "iam"} <= MINTING_SERVICES
    assert parse_injection({"sigv4": "s3"})
    with pytest.raises(Unparsable, match="hands out keys"):
        parse_injection({"sigv4": service})


@pytest.mark.parametrize("region", ["", "EU", "eu west", "eu/west", "é", "a\n"])
def test_a_region_is_a_lower_case_word(region: str) -> None:
    assert parse_injection({"sigv4": "s3", "region": "us-gov-west-1"})
    with pytest.raises(Unparsable, match="lower-case word"):
        parse_injection({"sigv4": "s3", "region": region})


@pytest.mark.parametrize(
    ("scopes", "hint"),
    [
        ("", "cloud-platform"),
        (" cloud-platform", "cloud-platform"),
        ("cloud-platform  bigquery", "cloud-platform"),
        ("Cloud-Platform", "cloud-platform"),
        ("https://www.googleapis.com/auth/bigquery", "bigquery"),
        ("https://www.googleapis.com/auth/bigquery drive.file", "bigquery drive.file"),
        ("https://evil.example/auth/bigquery", "cloud-platform"),
        ("https://www.googleapis.com/auth/\x1b[2J", "cloud-platform"),
        ("a,b", "cloud-platform"),
        ("é", "cloud-platform"),
    ],
)
def test_scopes_are_named_by_their_last_part(scopes: str, hint: str) -> None:
    with pytest.raises(Unparsable, match="by their last part") as refusal:
        parse_injection({"google": scopes})
    assert refusal.value.hint == hint
    assert parse_injection({"google": hint})


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"value": "{secret}"},
        {"header": "A", "value": "{secret}", "query": "k"},
        {"basic_user": "u", "query": "k"},
        {"header": "A", "basic_user": "u"},
        {"bearer": "{secret}"},
        {"Header": "A", "value": "{secret}"},
        {"query": "k", "sigv4": "s"},
        {"region": "eu-west-1"},
        {"google": "cloud-platform", "sigv4": "s"},
    ],
)
def test_a_table_of_no_form_or_of_two_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(Unparsable, match="'inject' is one of") as refusal:
        parse_injection(table)
    assert "Bearer {secret}" in (refusal.value.hint or "")


def test_a_header_without_a_value_is_told_what_to_add() -> None:
    with pytest.raises(Unparsable, match="wants a 'value'") as refusal:
        parse_injection({"header": "Authorization"})
    assert refusal.value.hint == 'value = "Bearer {secret}"'


@pytest.mark.parametrize("value", [1, True, None, ["{secret}"], {"a": "b"}, 1.5])
def test_every_value_is_text(value: object) -> None:
    for table in ({"header": "A", "value": value}, {"basic_user": value}, {"query": value}):
        with pytest.raises(Unparsable, match="is text"):
            parse_injection(table)


@given(st.text(max_size=20), st.text(max_size=30))
def test_whatever_is_accepted_stays_on_one_line(header: str, value: str) -> None:
    """I4: no text in a policy adds a header, and any text is read or refused."""
    try:
        injection = parse_injection({"header": header, "value": f"{{secret}}{value}"})
    except Unparsable:
        return
    assert isinstance(injection, HeaderInjection)
    written = f"{injection.header}: {injection.value}"
    assert written.isascii()
    assert written.isprintable()
    assert ":" not in injection.header
