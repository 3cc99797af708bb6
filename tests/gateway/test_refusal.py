"""Words for a refused client and a person: no reason is told as a bare code."""

from __future__ import annotations

import json

import pytest

from keyhole.gateway import refusal
from keyhole.inject.sigv4 import Flaw
from keyhole.model.decision import Reason

GATEWAY = {
    value
    for name, value in vars(refusal).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str)
}

LOG_ALONE = {
    # of what is allowed
    Reason.RULE, Reason.PASSTHROUGH, Reason.GRANTED, Reason.PUBLIC_ADDRESS, Reason.CONNECT_OVERRIDE,
    Reason.PRIVATE_GRANTED, Reason.WITHIN_LIMIT, Reason.UPSTREAM_REFUSED, refusal.SECRET_SCRUBBED,
    # of DNS, which has codes of its own
    Reason.TYPE_NOT_ANSWERED, Reason.CLASS_NOT_ANSWERED, refusal.DNS_MALFORMED,
    # of a ref, beside another whose words are told
    Reason.HELD_BACK,
    # of connections that end without a word
    refusal.CLIENT_LEFT, refusal.CLIENT_SILENT, refusal.DOOR_CLOSED, refusal.IDLE,
    refusal.GRANT_EXPIRED,
    refusal.FOREIGN_NAMESPACE, refusal.DECOY_USED,
}  # fmt: skip
"""Reasons that neither a client nor a person is told."""


@pytest.mark.parametrize("reason", sorted({*Reason, *GATEWAY, *Flaw} - LOG_ALONE))
def test_every_reason_that_can_be_told_has_words(reason: str) -> None:
    line = refusal.line("h.example", 443, reason)
    request = refusal.request_line("POST", "h.example", "/p", reason)
    assert reason not in line
    assert reason not in request
    body = refusal.http_reply(reason, "default").partition(b"\r\n\r\n")[2]
    said = json.loads(body)
    assert said.get("why", said["error"]) not in {"", reason}


def test_a_reason_without_words_is_its_code() -> None:
    """The control of the test above: it would see it."""
    assert "(brand-new)" in refusal.line("h.example", 443, "brand-new")
    assert {refusal.ECH, refusal.DISK_FULL} < GATEWAY


def test_a_lock_that_may_not_be_broken_is_told_in_words() -> None:
    path = "/acme/widgets.git/info/lfs/locks/1/unlock"
    why = refusal.request_why("POST", "h.example", path, Reason.FORCE_NOT_GRANTED)
    reply = refusal.http_reply(
        Reason.FORCE_NOT_GRANTED, "services.own.force", why, form=refusal.Form.LFS
    )
    assert b"to break the lock of another" in reply
    assert b"force-not-granted" not in reply
