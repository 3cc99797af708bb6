"""Words for a refused client and a person: no reason is told as a bare code."""

from __future__ import annotations

import json

import pytest

from keyhole.gateway import refusal_messages
from keyhole.model.decision import Reason


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_told_in_words(reason: Reason) -> None:
    line = refusal_messages.line("h.example", 443, reason)
    request = refusal_messages.request_line("POST", "h.example", "/p", reason)
    assert f"({reason})" not in line
    assert f"({reason})" not in request
    body = refusal_messages.http_reply(reason, "default").body
    said = json.loads(body)
    assert said.get("why", said["error"]) not in {"", reason}


def test_a_reason_without_words_is_its_code() -> None:
    """The control of the test above: it would see it."""
    assert "(brand-new)" in refusal_messages.line("h.example", 443, "brand-new")


def test_a_lock_that_may_not_be_broken_is_told_in_words() -> None:
    path = "/acme/widgets.git/info/lfs/locks/1/unlock"
    why = refusal_messages.request_why("POST", "h.example", path, Reason.FORCE_NOT_GRANTED)
    reply = refusal_messages.http_reply(
        Reason.FORCE_NOT_GRANTED, "services.own.force", why, form=refusal_messages.Form.LFS
    )
    assert b"breaking another's lock" in reply.body
    assert b"force-not-granted" not in reply.body


def test_the_hint_for_a_host_of_the_catalogue_names_its_services() -> None:
    """A tunnel would work, too, and leave the key to the sandbox. Control: another port's does."""
    said = refusal_messages.line("api.anthropic.com", 443, Reason.NO_RULE)
    assert "`keyhole services show anthropic` or `keyhole services show claude` says" in said
    assert "egress.allow" not in said
    other = refusal_messages.line("api.anthropic.com", 8443, Reason.NO_RULE)
    assert other.endswith("`keyhole why api.anthropic.com:8443` says what allows it")
