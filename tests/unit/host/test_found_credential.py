"""Credentials found in settings."""

from __future__ import annotations

import pytest

from keyhole.host.found_credential import MAX_SECRET, FoundCredential
from keyhole.model.errors import Unparsable
from tests.rigs.host.building import PASSWORD


@pytest.mark.parametrize(
    ("made", "how"),
    [
        (FoundCredential.basic("me", PASSWORD), "header Authorization: Basic me:{secret}"),
        (FoundCredential.bearer(PASSWORD), "header Authorization: Bearer {secret}"),
        (FoundCredential.encoded_basic(PASSWORD), "header Authorization: Basic {secret}"),
        (FoundCredential.raw(PASSWORD), "header Authorization: {secret}"),
    ],
)
def test_each_kind_says_how_it_is_written_and_keeps_its_secret(
    made: FoundCredential, how: str
) -> None:
    assert str(made.inject) == how
    assert made.secret.reveal() == PASSWORD
    assert PASSWORD not in repr(made)


@pytest.mark.parametrize("text", ["", " ", "a\r\nX-Evil: 1", "a\0", "x" * (MAX_SECRET + 1)])
def test_what_could_break_a_request_is_refused(text: str) -> None:
    for make in (FoundCredential.bearer, FoundCredential.raw, FoundCredential.encoded_basic):
        with pytest.raises(Unparsable):
            make(text)
    with pytest.raises(Unparsable):
        FoundCredential.basic("me", text)
    assert FoundCredential.basic("me", "x" * MAX_SECRET)


def test_a_header_is_ascii_but_a_basic_password_need_not_be() -> None:
    with pytest.raises(Unparsable):
        FoundCredential.bearer("schlüssel")
    assert FoundCredential.basic("me", "schlüssel")


def test_a_basic_user_has_no_colon() -> None:
    with pytest.raises(Unparsable):
        FoundCredential.basic("me:too", PASSWORD)


def test_two_are_the_same_when_they_write_the_same() -> None:
    mine = FoundCredential.basic("me", PASSWORD)
    assert mine.same_as(FoundCredential.basic("me", PASSWORD).found_in("~/.netrc"))
    assert not mine.same_as(FoundCredential.basic("you", PASSWORD))
    assert not mine.same_as(FoundCredential.basic("me", "other"))
    assert not mine.same_as(FoundCredential.bearer(PASSWORD))
