"""The table of reasons: complete, in words, and consistent with the verdicts."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, Verdict
from keyhole.model.reasons import REASONS, info_of, sentence_of


def test_every_code_is_in_the_table_and_none_besides() -> None:
    assert set(REASONS) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_an_entry_has_a_sentence_and_a_status_that_fits_its_verdict(reason: Reason) -> None:
    info = REASONS[reason]
    assert info.sentence
    assert not info.sentence.endswith(".")
    assert info.status == 200 or 400 <= info.status < 600
    assert info.verdict is Verdict.ALLOW or info.status >= 400
    if info.retry:
        assert info.status in {429, 503}


def test_a_sentence_names_the_ref_or_speaks_of_the_branch() -> None:
    assert sentence_of(Reason.REF_PROTECTED, "main") == "main is protected"
    assert sentence_of(Reason.REF_PROTECTED) == "the branch is protected"
    assert sentence_of(Reason.DENIED_PATH, "x", ".ci") == (
        "x would change .ci, which deny_paths protects"
    )
    assert sentence_of(Reason.TAG_NOT_GRANTED) == "no tag pattern covers the tag"


def test_a_hint_names_the_destination_or_the_limit() -> None:
    private = REASONS[Reason.ADDRESS_PRIVATE].advise("h.example", 443, "h.example")
    assert private == 'to allow it, add under [upstream]: private = ["h.example"]'
    loopback = REASONS[Reason.ADDRESS_LOOPBACK].advise("h.example", 8443, "h.example:8443")
    assert '"h.example:8443" =' in loopback
    limit = REASONS[Reason.OVER_LIMIT].advise("limits.upload", 0, "limits.upload")
    assert limit == "raise limits.upload in the policy if this is expected"
    rate = REASONS[Reason.OVER_LIMIT].advise("gateway.dns_per_second", 0, "")
    assert rate == "raise gateway.dns_per_second in your config.toml if this is expected"


def test_a_code_that_is_not_in_the_table_is_a_denial_without_words() -> None:
    """I3: deny is the zero."""
    assert info_of("brand-new").verdict is Verdict.DENY
    assert sentence_of("brand-new") == "brand-new"
