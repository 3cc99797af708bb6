"""The slots that are emptied are those of the facts, and no spelling of one escapes (I6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.slots import GLOBAL_SLOTS, Slot, SlotLocation
from keyhole.model.errors import Unparsable

# facts/services-and-clients.md §0.3, word for word but for its slashes. `Sec-WebSocket-Protocol` is
# not a slot there: only some of its entries carry keys, so services that use it name it themselves.
HEADERS = """
Authorization Proxy-Authorization Cookie x-api-key api-key apikey x-goog-api-key
x-goog-user-project x-goog-iam-* Ocp-Apim-Subscription-Key PRIVATE-TOKEN JOB-TOKEN Deploy-Token
Sudo X-Auth-Email X-Auth-Key X-Auth-User-Service-Key X-Auth-Token DD-API-KEY DD-APPLICATION-KEY
X-NuGet-ApiKey npm-otp X-GitHub-OTP X-Gitea-OTP X-Forgejo-OTP Signature x-ssh-certificate
X-Sentry-Auth X-Amz-Security-Token chatgpt-account-id x-openai-actor-authorization
OpenAI-Organization OpenAI-Project Stripe-Account Stripe-Context
"""
QUERY = """
key api_key apikey access_token private_token job_token token auth application_key sentry_key sig
X-Amz-*
"""
TRICKS = "$httpHeaders"
"""By this a query says what a header should, to Google's front ends."""

PROXIED = """
X-Serverless-Authorization X-Authorization X-Access-Token X-Vault-Token CF-Access-Client-Id
CF-Access-Client-Secret X-Forwarded-Access-Token Remote-User X-Forwarded-User X-Remote-User
"""
"""Read in the place of `Authorization`, or believed as the word of a proxy: Cloud Run, Vault,
Cloudflare, and what stands behind oauth2-proxy or a web server that has asked for a password."""
OAUTH = """
oauth_token auth_token authorization bearer_token client_secret refresh_token id_token
"""
"""What OAuth and its relatives call a credential where it rides in the query."""


def test_the_global_slots_are_those_of_the_facts() -> None:
    """I6: whatever the service, these never travel."""
    expected = {Slot(SlotLocation.HEADER, name.lower()) for name in f"{HEADERS} {PROXIED}".split()}
    query = f"{QUERY} {TRICKS} {OAUTH}"
    expected |= {Slot(SlotLocation.QUERY, name.lower()) for name in query.split()}
    assert set(GLOBAL_SLOTS) == expected
    assert len(GLOBAL_SLOTS) == len(expected)


def is_emptied(place: SlotLocation, name: str) -> bool:
    return any(slot.covers(place, name) for slot in GLOBAL_SLOTS)


@pytest.mark.parametrize("name", ["X-Goog-IAM-Authorization-Token", "x-goog-iam-selector"])
def test_a_star_at_the_end_covers_every_name_that_begins_so(name: str) -> None:
    assert is_emptied(SlotLocation.HEADER, name)
    assert is_emptied(SlotLocation.QUERY, "X-Amz-Signature")
    assert not is_emptied(SlotLocation.HEADER, "x-goog-request-params")
    assert not is_emptied(SlotLocation.HEADER, "x-goog-iam")


@pytest.mark.parametrize(
    "name", ["Accept", "User-Agent", "anthropic-version", "x-api-key-2", "authorizations"]
)
def test_headers_that_carry_no_credential_travel(name: str) -> None:
    """The control: the list is not everything."""
    assert not is_emptied(SlotLocation.HEADER, name)
    assert is_emptied(SlotLocation.HEADER, "Authorization")


@given(st.sampled_from(GLOBAL_SLOTS), st.data())
def test_no_case_of_a_name_escapes(slot: Slot, data: st.DataObject) -> None:
    """I6."""
    name = slot.name.replace("*", "x")
    spelled = "".join(c.upper() if data.draw(st.booleans()) else c for c in name)
    assert slot.covers(slot.place, spelled)


def test_a_slot_is_of_one_place() -> None:
    slot = Slot.parse("header:x-key")
    assert slot.covers(SlotLocation.HEADER, "X-Key")
    assert not slot.covers(SlotLocation.QUERY, "x-key")
    assert not slot.covers(SlotLocation.HEADER, "x-keys")


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("header:X-Api-Key", Slot(SlotLocation.HEADER, "x-api-key")),
        ("query:token", Slot(SlotLocation.QUERY, "token")),
        ("cookie:__cf_bm", Slot(SlotLocation.COOKIE, "__cf_bm")),
        ("cookie:cf_chl_*", Slot(SlotLocation.COOKIE, "cf_chl_*")),
    ],
)
def test_a_slot_is_a_place_and_a_name(text: str, slot: Slot) -> None:
    assert Slot.parse(text) == slot
    assert Slot.parse(str(slot)) == slot


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a slot is"),
        ("x-api-key", "a slot is"),
        ("header:", "a slot is"),
        ("header", "a slot is"),
        ("body:token", "a slot is"),
        ("Header:x", "a slot is"),
        ("header:a b", "a slot is"),
        ("header:a\n", "a slot is"),
        ("header:é", "a slot is"),
        ("header: x", "a slot is"),
        ("header:*", "at the end"),
        ("header:**", "at the end"),
        ("header:a*b", "at the end"),
        ("query:*token", "at the end"),
    ],
)
def test_a_slot_in_any_other_form_is_refused(text: str, why: str) -> None:
    """A `keep` of `header:*` would let everything travel."""
    with pytest.raises(Unparsable) as refusal:
        Slot.parse(text)
    assert why in refusal.value.message


def test_a_bare_name_is_answered_with_the_place_it_lacks() -> None:
    with pytest.raises(Unparsable) as refusal:
        Slot.parse("x-api-key")
    assert refusal.value.hint == "header:x-api-key"


@given(st.text(max_size=12))
def test_any_text_is_a_slot_or_refused(text: str) -> None:
    for typed in (text, f"header:{text}"):
        try:
            slot = Slot.parse(typed)
        except Unparsable:
            continue
        assert slot.covers(slot.place, slot.name.replace("*", ""))
