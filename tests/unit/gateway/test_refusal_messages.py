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


def test_clients_of_aws_read_a_refusal_in_the_form_of_their_protocol() -> None:
    """boto3 shows `Code` and `Message`; JSON it takes for a broken answer, or shows nothing of."""
    form_of = refusal_messages.form_of_signed
    form = [b"Content-Type: application/x-www-form-urlencoded; charset=utf-8\r\n"]
    assert form_of("s3", None, []) is refusal_messages.Form.S3
    assert form_of("*", None, form) is refusal_messages.Form.AWS
    assert form_of("*", "Action=ListQueues", []) is refusal_messages.Form.AWS
    assert form_of("bedrock", None, [b"Content-Type: application/json\r\n"]) is (
        refusal_messages.Form.JSON
    )
    said = "<Error><Code>AccessDenied</Code><Message>keyhole: a &lt; b</Message></Error>"
    for kind, whole in (
        (refusal_messages.Form.S3, said),
        (refusal_messages.Form.AWS, f"<ErrorResponse>{said}</ErrorResponse>"),
    ):
        reply = refusal_messages.http_reply(Reason.OPERATION_CLOSED, "r", "a < b", form=kind)
        assert reply.body.decode().endswith(whole)
        assert b"Content-Type: text/xml\r\n" in reply.lines


def test_the_reason_of_a_close_is_whole_or_ends_with_a_clause() -> None:
    """123 bytes fit into the frame."""
    fit = refusal_messages.close_reason
    assert fit("it is empty (as it came)") == "keyhole: it is empty (as it came)"
    place = f'it asks for a ("{"x" * 100}"), which is closed; b opens it'
    assert fit(place) == "keyhole: it asks for a, which is closed; b opens it"
    assert fit("; ".join(["it is closed"] * 20)) == f"keyhole: {'it is closed; ' * 6}it is closed …"
    for long in ("é" * 200, "✓" * 200, "(" * 200, "; " * 200):
        assert 100 < len(fit(long).encode()) <= 123
