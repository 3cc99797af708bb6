"""What git prints behind `! [remote rejected]`."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Decision, Reason
from keyhole.policy.push_messages import refusal_message
from tests.rigs.policies import loaded


@pytest.mark.parametrize(
    ("reason", "ref", "why", "words"),
    [
        (Reason.REF_NOT_GRANTED, "heads/main", "",
         "push to main is not allowed; allowed: agent/*, fix/**"),
        (Reason.TAG_NOT_GRANTED, "tags/v1", "", "no tag pattern covers v1; allowed: rc-*"),
        (Reason.REF_PROTECTED, "heads/main", "", "main is protected"),
        (Reason.REF_PROTECTED, "heads/refs/tags/main", "", "refs/tags/main is protected"),
        (Reason.REF_SYMBOLIC, "heads/alias", "", "alias stands for another branch on the server"),
        (Reason.REF_MOVED, "heads/agent/x", "", "agent/x is not there, or has moved; fetch first"),
        (Reason.CREATE_NOT_GRANTED, "heads/agent/x", "", "creating agent/x is not allowed"),
        (Reason.FORCE_NOT_GRANTED, "heads/agent/x", "",
         "rewriting agent/x is not allowed, nor is breaking another's lock"),
        (Reason.DELETE_NOT_GRANTED, "heads/agent/x", "", "deleting agent/x is not allowed"),
        (Reason.ANCESTRY_UNKNOWN, "heads/agent/x", "the remote cannot be asked",
         "it cannot be shown that agent/x only moves forward (the remote cannot be asked)"),
        (Reason.DENIED_PATH, "heads/agent/x", ".gitlab-ci.yml",
         "agent/x would change .gitlab-ci.yml, which deny_paths protects"),
        (Reason.TAG_MOVE, "tags/v1", "", "a tag is never moved or deleted"),
        (Reason.REF_NAMESPACE, "notes/x", "", "only branches and tags can be pushed"),
        (Reason.PUSH_UNJUDGED, "heads/agent/x", "too many objects",
         "the push could not be judged (too many objects)"),
        (Reason.NO_RULE, "heads/agent/x", "", "no rule names it"),
    ],
)  # fmt: skip
def test_a_refused_ref_says_what_is_not_allowed(
    reason: Reason, ref: str, why: str, words: str
) -> None:
    grants = "push = ['agent/*', 'fix/**']\ntags = ['rc-*']"
    git = loaded(f"[services.forge]\nrepos = ['a/b']\n{grants}").policy.services[0].git
    assert git is not None
    assert refusal_message(git, f"refs/{ref}", Decision(reason=reason), why) == f"keyhole: {words}"


def test_where_no_tag_is_granted_none_is_offered() -> None:
    git = loaded("[services.forge]\nrepos = ['a/b']").policy.services[0].git
    assert git is not None
    words = refusal_message(git, "refs/tags/v1", Decision(reason=Reason.TAG_NOT_GRANTED))
    assert words == "keyhole: no tag pattern covers v1"
