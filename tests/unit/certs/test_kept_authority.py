"""A CA that outlives the gateway that signs with it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyhole.certs.kept_authority import (
    KEPT_LIFETIME,
    kept_certificate,
    new_kept_authority,
    open_kept_authority,
)
from keyhole.model.errors import Unparsable


def test_two_gateways_sign_with_the_same_authority() -> None:
    kept = new_kept_authority("pod")
    assert open_kept_authority(kept).pem == open_kept_authority(kept).pem
    assert kept_certificate(kept, timedelta(days=1)) == open_kept_authority(kept).pem
    assert b"PRIVATE" not in kept_certificate(kept, timedelta(days=1))


def test_one_that_ends_too_soon_is_not_used() -> None:
    kept = new_kept_authority("pod")
    with pytest.raises(Unparsable, match="too soon"):
        kept_certificate(kept, KEPT_LIFETIME + timedelta(hours=1))


def test_a_key_of_another_certificate_is_refused() -> None:
    one, two = new_kept_authority("one"), new_kept_authority("two")
    mark = b"-----BEGIN PRIVATE KEY-----"
    mixed = one.partition(mark)[0] + mark + two.partition(mark)[2]
    for kept, said in (
        (mixed, "not its certificate's"),
        (one.partition(mark)[0], "no key"),
        (b"", "no certificate"),
    ):
        with pytest.raises(Unparsable, match=said):
            open_kept_authority(kept)
