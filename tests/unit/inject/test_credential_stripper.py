"""The client's own credentials do not travel; all else does, as it was sent (I6)."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.request import RequestReader, Treatment
from keyhole.inject.credential_stripper import (
    MAX_PROTOCOL,
    MIN_TOKEN,
    CredentialStripper,
    written_slots,
)
from keyhole.inject.injection import parse_injection
from keyhole.inject.slots import GLOBAL_SLOTS, Slot, SlotLocation
from tests.rigs.inject.shelf import NAMES, service

DROP, KEEP, COLLECT = Treatment.DROP, Treatment.KEEP, Treatment.COLLECT


def surgery(
    strip: tuple[str, ...] = (), keep: tuple[str, ...] = (), collect: tuple[str, ...] = ()
) -> CredentialStripper:
    return CredentialStripper(map(Slot.parse, strip), map(Slot.parse, keep), collect)


PLAIN = surgery()


# ── header fields ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "slot", [s for s in GLOBAL_SLOTS if s.place is SlotLocation.HEADER], ids=str
)
def test_a_global_slot_is_emptied_whatever_the_service_says_of_others(slot: Slot) -> None:
    """I6."""
    name = slot.name.replace("*", "x").encode()
    assert PLAIN.treat(name) is DROP
    assert surgery(("header:x-own",), ("header:x-other",)).treat(name) is DROP


@pytest.mark.parametrize("name", [b"accept", b"user-agent", b"x-api-version", b"anthropic-beta"])
def test_other_fields_travel(name: bytes) -> None:
    """The control."""
    assert PLAIN.treat(name) is KEEP


def test_a_services_own_slots_are_emptied_too() -> None:
    """I6."""
    own = surgery(("header:x-tfs-*", "header:Circle-Name"))
    assert own.treat(b"x-tfs-fedauthredirect") is DROP
    assert own.treat(b"circle-name") is DROP
    assert own.treat(b"x-tf") is KEEP
    assert PLAIN.treat(b"circle-name") is KEEP


@pytest.mark.parametrize(
    ("strip", "keep", "stays", "goes"),
    [
        # What a service keeps wins over the global list, where it is as long.
        ("", "header:authorization", "authorization", "x-api-key"),
        ("", "header:x-goog-iam-*", "x-goog-iam-a", "x-goog-api-key"),
        # A wide `keep` does not open what the list names alone.
        ("", "header:x-goog-*", "x-goog-request", "x-goog-api-key"),
        ("", "header:x-goog-*", "x-goog-api-keys", "x-goog-iam-a"),
        # Within a service's own words the longer speaks.
        ("header:x-own-*", "header:x-own-id", "x-own-id", "x-own-key"),
        ("header:x-own-key", "header:x-own-*", "x-own-id", "x-own-key"),
        ("header:x-own-*", "header:x-own-pub-*", "x-own-pub-a", "x-own-key"),
        # Of equals it is stripped.
        ("header:x-own", "header:x-own", "x-other", "x-own"),
        ("header:authorization", "header:authorization", "accept", "authorization"),
    ],
)
def test_the_longest_slot_speaks(strip: str, keep: str, stays: str, goes: str) -> None:
    """I6."""
    own = surgery((strip,) if strip else (), (keep,))
    assert own.treat(stays.encode()) is KEEP
    assert own.treat(goes.encode()) is DROP


def test_what_the_gateway_reads_never_goes_on_by_itself() -> None:
    own = surgery(("header:x-own",), (), ("Range", "authorization", "x-own"))
    assert own.treat(b"range") is COLLECT
    assert own.treat(b"authorization") is COLLECT
    assert own.treat(b"x-own") is COLLECT
    assert PLAIN.treat(b"range") is KEEP


def test_a_name_that_is_almost_that_of_a_slot_is_dropped_by_the_reader() -> None:
    """I6: `X_Api_Key` is `X-Api-Key` to a server that turns names into variables."""
    head = b"GET / HTTP/1.1\r\nHost: a.example\r\nX_Api_Key: mine\r\nX-Goog_Iam-Q: mine\r\nX_Y: 1"
    request = RequestReader("a.example", 443, PLAIN.treat, {}).parse(head)
    assert request.lines == [b"X_Y: 1\r\n"]
    assert request.collected == []


@pytest.mark.parametrize(
    ("table", "slot"),
    [
        ({"header": "X-Own-Key", "value": "{secret}"}, "header:x-own-key"),
        ({"basic_user": "me"}, "header:authorization"),
        ({"query": "Key"}, "query:key"),
        ({"sigv4": "s3"}, "header:authorization"),
        ({"google": "cloud-platform"}, "header:authorization"),
    ],
)
def test_where_the_gateway_writes_the_client_does_not(table: dict[str, object], slot: str) -> None:
    """I6: exactly one credential, even where the service keeps such a field elsewhere."""
    written = written_slots([parse_injection(table)])
    assert written == (Slot.parse(slot),)
    kept = CredentialStripper(written, [Slot.parse(slot)], ())
    name = slot.partition(":")[2]
    if slot.startswith("header"):
        assert kept.treat(name.encode()) is DROP
    else:
        assert kept.query(f"{name}=mine&a=1") == "a=1"


# ── the query ─────────────────────────────────────────────────────────────────────────────────────


SPELLINGS = """
KEY Access_Token %6bey %4B%45%59 access%5Ftoken %E2%84%AAey +key key%20 key%00.js key[] key%5B0%5D
""".split()
PHP_SPELLINGS = """
api.key api%2Ekey api+key api[key api%5Bkey Api-Key api.key[] api.key%00.js
""".split()


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("", ""),
        ("a=1&b=2", "a=1&b=2"),
        ("key=x", ""),
        ("key", ""),
        ("key=", ""),
        ("key=x&a=1", "a=1"),
        ("a=1&key=x", "a=1"),
        ("a=1&key=x&b=2", "a=1&b=2"),
        ("a=1;key=x&b=2", "a=1&b=2"),
        ("a=1&key=x;b=2", "a=1;b=2"),
        ("key=x;key=y&key=z", ""),
        ("key=x&key=y&a=1&key=z", "a=1"),
        # However the name is spelled.
        # The Kelvin sign is a K to who folds case.
        *((f"{name}=x&a=1", "a=1") for name in SPELLINGS),
        # PHP reads all of these as `api_key`.
        *((f"{name}=x&a=1", "a=1") for name in PHP_SPELLINGS),
        ("X-Amz-Signature=x&x-amz-date=y&a=1", "a=1"),
        ("x-amz-=x", ""),
        # Nothing else is touched, reordered or written anew.
        ("b=%7e&a=%2F+x&&c;;=&d==key", "b=%7e&a=%2F+x&&c;;=&d==key"),
        ("&key=x&&b=%41&", "&&b=%41&"),
        ("keys=x&my_key=y&a=key", "keys=x&my_key=y&a=key"),
        ("a=key%3Dx&a=%26key%3Dx", "a=key%3Dx&a=%26key%3Dx"),
        ("x[key]=1", "x[key]=1"),
        ("api[key]=1&a.b=2&page[size]=3", "api[key]=1&a.b=2&page[size]=3"),
        ("%FF=1&%zz=2", "%FF=1&%zz=2"),
    ],
)
def test_fields_of_emptied_slots_leave_the_query(query: str, left: str) -> None:
    """I6."""
    assert PLAIN.query(query) == left


def test_a_query_field_that_a_service_keeps_travels() -> None:
    """Addresses that an API signed: their signature is the only credential there."""
    signed = surgery((), ("query:x-amz-*", "query:sig"))
    query = "X-Amz-Signature=x&sig=y&a=1"
    assert signed.query(f"{query}&token=z") == query
    assert PLAIN.query(query) == "a=1"
    narrowed = surgery(("query:x-amz-security-token",), ("query:x-amz-*",))
    assert narrowed.query("x-amz-date=1&x-amz-security-token=z") == "x-amz-date=1"


def test_a_name_that_a_service_keeps_is_not_read_as_another() -> None:
    """A slot of just that name speaks; one that covers it by a prefix opens nothing (I6)."""
    assert surgery((), ("query:api-key",)).query("api-key=x&api.key=y") == "api-key=x"
    assert surgery((), ("query:api*",)).query("api-key=x&api-version=y") == "api-version=y"
    assert PLAIN.query("api-key=x&api-version=y") == "api-version=y"


SPELLED = st.text(string.ascii_letters + string.digits + "%&;=+[]._-*", max_size=60)


@given(SPELLED)
def test_what_is_left_of_any_query_is_its_fields_in_order(query: str) -> None:
    """I6: and a second look finds nothing more to take."""
    left = PLAIN.query(query)
    assert PLAIN.query(left) == left
    fields = iter(re.split("[&;]", query))
    assert not left or all(field in fields for field in re.split("[&;]", left))
    for field in re.split("[&;]", left):
        name = field.partition("=")[0].lower()
        assert name not in {s.name for s in GLOBAL_SLOTS if s.place is SlotLocation.QUERY}


# ── cookies ───────────────────────────────────────────────────────────────────────────────────────

KEEPER = surgery((), ("cookie:__cf_bm", "cookie:cf_chl_*"))


def test_cookies_travel_only_where_a_service_keeps_some() -> None:
    """I6."""
    assert PLAIN.treat(b"cookie") is DROP
    assert PLAIN.cookies(b"__cf_bm=1; session=2") == b""
    assert KEEPER.treat(b"cookie") is COLLECT
    assert KEEPER.treat(b"authorization") is DROP
    # Kept and stripped, it is stripped.
    assert surgery(("cookie:a",), ("cookie:a",)).treat(b"cookie") is DROP
    assert surgery((), ("header:cookie",)).treat(b"cookie") is KEEP


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (b"__cf_bm=abc.D-1_2", b"__cf_bm=abc.D-1_2"),
        (b"a=1; __cf_bm=x; session=2; cf_chl_3=y=z", b"__cf_bm=x; cf_chl_3=y=z"),
        (b"__cf_bm=x;cf_chl_=y;", b"__cf_bm=x; cf_chl_=y"),
        (b"__cf_bm=", b"__cf_bm="),
        (b"session=2", b""),
        (b"", b""),
        (b";;", b""),
        (b"__cf_bm", b""),
        (b"=x", b""),
        (b"x__cf_bm=1; __cf_bm2=1; session=__cf_bm=1", b""),
        # A server that reads quotes or commas would find a second cookie in these.
        (b'__cf_bm="a; session=2"', b""),
        (b'__cf_bm="a"', b""),
        (b"__cf_bm=a, session=2", b""),
        (b"__cf_bm=a\tsession=2", b""),
        (b"__cf_bm=a session=2", b""),
        (b"__cf_bm=\xff", b""),
        (b"__cf_bm =a", b""),
    ],
)
def test_the_kept_cookies_are_left(value: bytes, left: bytes) -> None:
    """I6."""
    assert KEEPER.cookies(value) == left


# ── sub-protocols of WebSocket ────────────────────────────────────────────────────────────────────

TOKEN = b"Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (b"realtime, openai-beta.realtime-v1", b"realtime, openai-beta.realtime-v1"),
        (b"graphql-transport-ws,graphql-ws", b"graphql-transport-ws, graphql-ws"),
        (b"json.reliable.webpubsub.azure.v1", b"json.reliable.webpubsub.azure.v1"),
        (b"v4.base64.channel.k8s.io", b"v4.base64.channel.k8s.io"),
        (b"wamp.2.json, mqttv3.1, v10.stomp", b"wamp.2.json, mqttv3.1, v10.stomp"),
        (b"realtime, openai-insecure-api-key.sk-x", b"realtime"),
        (b"OpenAI-Insecure-Api-Key.x, realtime", b"realtime"),
        (b"openai-organization.org-x, openai-project.p, a", b"a"),
        (b"base64url.bearer.authorization.k8s.io.YWJj, binary.k8s.io", b"binary.k8s.io"),
        (b"token, " + TOKEN, b"token"),
        (b"access_token, keyhole" + TOKEN.lower(), b"access_token"),
        (b"aws-appsync-event-ws, header-eyJob3N0IjoiYSJ9", b"aws-appsync-event-ws"),
        (b"550e8400-e29b-41d4-a716-446655440000", b""),
        (b"00000000123456789012", b""),
        (b"abcdefghijklmnopqrstuvwxyz", b""),
        (b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln", b""),
        (b"realtime, a b, c;d, \xff, , e", b"realtime, e"),
        (b"", b""),
        (b"-" * MAX_PROTOCOL, b"-" * MAX_PROTOCOL),
        (b"-" * (MAX_PROTOCOL + 1) + b", a", b"a"),
    ],
)  # fmt: skip
def test_sub_protocols_that_carry_a_key_are_left_out(value: bytes, left: bytes) -> None:
    """I6: the others stay in their order, since a client compares the one that is chosen."""
    assert PLAIN.protocols(value) == left
    assert PLAIN.treat(b"sec-websocket-protocol") is COLLECT


@given(st.text(string.ascii_letters + string.digits + "-_", min_size=MIN_TOKEN, max_size=80))
def test_a_placeholder_is_no_sub_protocol(noise: str) -> None:
    """Whatever is around it: it carries a mark and a long random run."""
    made = f"{noise}keyhole{TOKEN.decode()}"
    assert PLAIN.protocols(f"realtime, {made}".encode()) == b"realtime"


def test_a_service_can_empty_the_field_altogether() -> None:
    own = surgery(("header:sec-websocket-protocol",))
    assert own.protocols(b"realtime") == b""
    assert PLAIN.protocols(b"realtime") == b"realtime"


# ── the catalogue ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_what_a_service_of_the_catalogue_says_is_done(name: str) -> None:
    """I6: each host's `strip` goes, its `keep` stays, and where it writes the client does not."""
    for host in service(name).hosts:
        written = written_slots(host.inject)
        made = CredentialStripper((*host.strip, *written), host.keep, ())
        for slot in (*host.strip, *written, *host.keep):
            text = slot.name.replace("*", "x")
            field = f"{text}=1"
            stays = slot in host.keep
            match slot.place:
                case SlotLocation.HEADER if text == "sec-websocket-protocol":
                    assert made.protocols(b"realtime") == b""
                case SlotLocation.HEADER:
                    assert made.treat(text.encode()) is (KEEP if stays else DROP)
                case SlotLocation.QUERY:
                    assert made.query(field) == (field if stays else "")
                case SlotLocation.COOKIE:
                    assert made.cookies(f"{text}=1".encode()) == (
                        f"{text}=1".encode() if stays else b""
                    )


def test_the_catalogue_has_services_that_strip_and_keep() -> None:
    """The control of the test above."""
    hosts = [host for name in NAMES for host in service(name).hosts]
    assert sum(bool(host.keep) for host in hosts) > 5
    assert sum(bool(host.strip) for host in hosts) > 5
