"""A sealed entity tag tells nothing of the tag, and the origin gets its own back (I7)."""

from __future__ import annotations

import base64
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.entity_tags import KEY_BYTES, MAX_TAG, EntityTags

TAGS = EntityTags(bytes(range(KEY_BYTES)))
OTHERS = EntityTags(bytes(KEY_BYTES))

WRITTEN = [b'"33a64df551425fcc55e4d42a148795d9"', b'W/"0815"', b'""', b"unquoted", b'W/"a,b"', b"*"]


@pytest.mark.parametrize("tag", WRITTEN)
def test_what_is_handed_back_is_what_the_origin_said(tag: bytes) -> None:
    sealed = TAGS.seal(tag)
    assert tag.removeprefix(b"W/") not in sealed
    assert sealed.startswith(b'W/"kh.' if tag.startswith(b"W/") else b'"kh.')
    assert TAGS.open(sealed) == tag
    assert TAGS.seal(tag) == sealed  # so that a client sees whether two are the same


def test_a_list_is_opened_tag_by_tag_and_others_stay() -> None:
    """The client may know a tag from an upload, or from a body."""
    one, two = TAGS.seal(b'"one"'), TAGS.seal(b'W/"two"')
    assert TAGS.open(one + b', "other" , ' + two) == b'"one", "other" , W/"two"'
    assert TAGS.open(b"*") == b"*"


def test_no_host_gets_the_tag_of_another() -> None:
    """I7: a host that shows what it is sent would tell the digest; the same host opens it."""
    one, two = TAGS.of("one.example"), TAGS.of("two.example")
    sealed = one.seal(b'"one"')
    assert two.open(sealed) == TAGS.open(sealed) == sealed
    assert TAGS.of("one.example").open(sealed) == b'"one"'


def test_of_another_session_it_is_just_another_tag() -> None:
    """I7: nothing tells what it would have been."""
    sealed = OTHERS.seal(b'"one"')
    assert sealed != TAGS.seal(b'"one"')
    assert TAGS.open(sealed) == sealed
    assert OTHERS.open(sealed) == b'"one"'


def test_a_forged_one_stays_as_it_is() -> None:
    sealed = TAGS.seal(b'"a tag"')
    data = bytearray(base64.urlsafe_b64decode(sealed[4:-1] + b"=" * (-len(sealed[4:-1]) % 4)))
    for at in range(len(data)):
        data[at] ^= 1
        forged = b'"kh.%b"' % base64.urlsafe_b64encode(bytes(data)).rstrip(b"=")
        assert TAGS.open(forged) == forged
        data[at] ^= 1
    for odd in (b'"kh.%b"' % (b"A" * 25), b'"kh.short"', b'"kh.%b"' % (b"A" * 4000)):
        assert TAGS.open(odd) == odd


def test_what_is_empty_or_too_long_is_left_out() -> None:
    """I9."""
    assert TAGS.seal(b"") == b""
    assert TAGS.seal(b"W/") == b""
    assert TAGS.seal(b"x" * (MAX_TAG + 1)) == b""
    assert TAGS.open(TAGS.seal(b"x" * MAX_TAG)) == b"x" * MAX_TAG


@given(st.binary(min_size=1, max_size=MAX_TAG))
def test_any_tag_comes_back(tag: bytes) -> None:
    if tag != b"W/":
        assert TAGS.open(TAGS.seal(tag)) == tag


@given(st.binary(max_size=200))
def test_any_value_is_opened_without_harm(value: bytes) -> None:
    assert TAGS.open(value) == value


def test_the_key_is_not_shown() -> None:
    """I1."""
    assert repr(TAGS) == "EntityTags()"
    for make in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled"):
            make(TAGS)
