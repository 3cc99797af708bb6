"""Credentials found in settings."""

from __future__ import annotations

import pytest

from keyhole.host.credential import MAX_SECRET, Credential
from keyhole.model.errors import Unparsable
from tests.host.building import PASSWORD


@pytest.mark.parametrize(
    ("made", "how"),
    [
        (Credential.basic("me", PASSWORD), "header Authorization: Basic me:{secret}"),
        (Credential.bearer(PASSWORD), "header Authorization: Bearer {secret}"),
        (Credential.encoded_basic(PASSWORD), "header Authorization: Basic {secret}"),
        (Credential.raw(PASSWORD), "header Authorization: {secret}"),
    ],
)
def test_each_kind_says_how_it_is_written_and_keeps_its_secret(made: Credential, how: str) -> None:
    assert str(made.inject) == how
    assert made.secret.reveal() == PASSWORD
    assert PASSWORD not in repr(made)


@pytest.mark.parametrize("text", ["", " ", "a\r\nX-Evil: 1", "a\0", "x" * (MAX_SECRET + 1)])
def test_what_could_break_a_request_is_refused(text: str) -> None:
    for make in (Credential.bearer, Credential.raw, Credential.encoded_basic):
        with pytest.raises(Unparsable):
            make(text)
    with pytest.raises(Unparsable):
        Credential.basic("me", text)
    assert Credential.basic("me", "x" * MAX_SECRET)


def test_a_header_is_ascii_but_a_basic_password_need_not_be() -> None:
    with pytest.raises(Unparsable):
        Credential.bearer("schlüssel")
    assert Credential.basic("me", "schlüssel")


def test_a_basic_user_has_no_colon() -> None:
    with pytest.raises(Unparsable):
        Credential.basic("me:too", PASSWORD)


def test_two_are_the_same_when_they_write_the_same() -> None:
    mine = Credential.basic("me", PASSWORD)
    assert mine.same_as(Credential.basic("me", PASSWORD).found_in("~/.netrc"))
    assert not mine.same_as(Credential.basic("you", PASSWORD))
    assert not mine.same_as(Credential.basic("me", "other"))
    assert not mine.same_as(Credential.bearer(PASSWORD))
