"""The rule that an "always" writes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keyhole.app.watch.lasting_rule import rule_for
from keyhole.model.errors import Refused
from tests.rigs.control.rig import ASK


@pytest.mark.parametrize(
    ("changed", "table", "key"),
    [
        ({"kind": "hosts", "service": ""}, ("egress",), "allow"),
        ({}, ("services", "api"), "allow_also"),
        ({"kind": "pushes", "ref": "refs/heads/x"}, ("services", "api"), "push"),
        ({"kind": "pushes", "ref": "refs/tags/x"}, ("services", "api"), "tags"),
    ],
)
def test_a_question_becomes_the_narrowest_rule(
    changed: dict[str, str], table: tuple[str, ...], key: str
) -> None:
    added = rule_for(replace(ASK, **changed))
    assert (added.table, added.key, added.value) == (table, key, ASK.rule)


def test_a_preset_is_no_service_of_the_policy() -> None:
    with pytest.raises(Refused):
        rule_for(replace(ASK, service="preset.python"))
