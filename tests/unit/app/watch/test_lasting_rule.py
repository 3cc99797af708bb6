"""The rule that an "always" writes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keyhole.app.watch.lasting_rule import rule_for
from keyhole.model.errors import Refused
from keyhole.policy.asks import AskSubject
from keyhole.policy.schema import AskKind
from tests.rigs.control.rig import ASK


@pytest.mark.parametrize(
    ("changed", "table", "key"),
    [
        ({"kind": "hosts", "service": ""}, ("egress",), "allow"),
        ({}, ("services", "api"), "allow_also"),
        ({"kind": "pushes", "ref": "refs/heads/x", "rule": "x"}, ("services", "api"), "push"),
        ({"kind": "pushes", "ref": "refs/tags/x", "rule": "x"}, ("services", "api"), "tags"),
    ],
)
def test_a_question_becomes_the_narrowest_rule(
    changed: dict[str, str], table: tuple[str, ...], key: str
) -> None:
    added = rule_for(replace(ASK, **changed))
    assert (added.table, added.key, added.value) == (table, key, changed.get("rule", ASK.rule))


def test_a_preset_is_no_service_of_the_policy() -> None:
    with pytest.raises(Refused):
        rule_for(replace(ASK, service="preset.python"))


@pytest.mark.parametrize("ref", ["refs/heads/refs/tags/main", "refs/tags/refs/heads/x"])
def test_a_ref_that_is_called_like_another_gets_no_rule(ref: str) -> None:
    """I3: "always" for it must not unprotect main. Control: the rule of a plain name is above."""
    subject = AskSubject(AskKind.PUSHES, "git.example", 443, "api", "create", "a/b", ref)
    with pytest.raises(Refused, match="no policy can name refs/"):
        rule_for(replace(ASK, kind="pushes", ref=ref, rule=subject.rule))
