"""Rules are added to a policy's text, and nothing else in it changes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Refused
from keyhole.policy.edit import RuleAddition, add_rules, has_rule

HOST = RuleAddition(("egress",), "allow", "new.example")
REMARKED = RuleAddition(("egress",), "allow", "new.example", remark="3 connections")
SECRET = RuleAddition(("services", "model"), "secret", "store:model", listed=False)
RULE = RuleAddition(("services", "model"), "allow_also", "GET /v1/x")


@pytest.mark.parametrize(
    ("before", "after", "addition"),
    [
        ("version = 1\n", 'version = 1\n\n[egress]\nallow = ["new.example"]\n', HOST),
        ("version = 1", 'version = 1\n\n[egress]\nallow = ["new.example"]\n', HOST),
        ("", '[egress]\nallow = ["new.example"]\n', HOST),
        ("version = 1\r\n", 'version = 1\r\n\r\n[egress]\r\nallow = ["new.example"]\r\n', HOST),
        (
            'version = 1\n[egress]\nallow = ["a.example"]   # mine\n[sandbox]\n',
            'version = 1\n[egress]\nallow = ["a.example", "new.example"]   # mine\n[sandbox]\n',
            HOST,
        ),
        (
            '[egress]\nallow = ["a.example",]\n',
            '[egress]\nallow = ["a.example", "new.example",]\n',
            HOST,
        ),
        ("[egress]\nallow = []\n", '[egress]\nallow = ["new.example"]\n', HOST),
        (
            '[egress]\nallow = [\n  "a.example",  # first\n  # the end\n]\n',
            '[egress]\nallow = [\n  "a.example",  # first\n  "new.example",\n  # the end\n]\n',
            HOST,
        ),
        (
            '[egress]\nallow = [\n  "a.example"  # first\n]\n',
            '[egress]\nallow = [\n  "a.example",  # first\n  "new.example"\n]\n',
            HOST,
        ),
        (
            '[egress]\r\nallow = [\r\n  "a.example",\r\n]\r\n',
            '[egress]\r\nallow = [\r\n  "a.example",\r\n  "new.example",\r\n]\r\n',
            HOST,
        ),
        (
            '[egress]\n\tallow = ["a.example"]\n',
            '[egress]\n\t# new.example: 3 connections\n\tallow = ["a.example", "new.example"]\n',
            REMARKED,
        ),
        (
            '[egress]\nallow = ["a.example",\n         "b.example"]\n',
            '[egress]\nallow = ["a.example",\n         "b.example",\n         "new.example"]\n',
            HOST,
        ),
        (
            '[egress]\nallow = ["a.example",\n         "b.example",]\n',
            '[egress]\nallow = ["a.example",\n         "b.example",\n         "new.example",]\n',
            HOST,
        ),
        (
            "[egress]\nallow = [\n  # none yet\n]\n",
            '[egress]\nallow = [\n  # none yet\n  "new.example",\n]\n',
            HOST,
        ),
        ("[egress]\nallow = [\n]\n", '[egress]\nallow = [\n  "new.example",\n]\n', HOST),
        (
            '[egress]\npresets = ["python"]\n\n[services.model]\n',
            '[egress]\npresets = ["python"]\nallow = ["new.example"]\n\n[services.model]\n',
            HOST,
        ),
        (
            "[egress]\n# nothing\n[services.model]\n",
            '[egress]\nallow = ["new.example"]\n# nothing\n[services.model]\n',
            HOST,
        ),
        ("[egress]", '[egress]\nallow = ["new.example"]', HOST),
        (
            'egress.presets = ["python"]\n',
            'egress.presets = ["python"]\negress.allow = ["new.example"]\n',
            HOST,
        ),
        (
            "egress = { presets = [] }\n",
            'egress = { presets = [], allow = ["new.example"] }\n',
            HOST,
        ),
        ("egress = {}\n", 'egress = { allow = ["new.example"] }\n', HOST),
        (
            '[services.model]\nsecret = "store:x"\nrepos  = ["a/b"]\n',
            '[services.model]\nsecret = "store:x"\nrepos  = ["a/b"]\npush   = ["agent/*"]\n',
            RuleAddition(("services", "model"), "push", "agent/*"),
        ),
        (
            '[services.model]\n  secret = "store:x"\n[services.model.budget]\nday = 1\n',
            '[services.model]\n  secret = "store:x"\n  allow_also = ["GET /v1/x"]\n'
            "[services.model.budget]\nday = 1\n",
            RULE,
        ),
        (
            "[services.model.budget]\nday = 1\n",
            '[services.model.budget]\nday = 1\n\n[services.model]\nallow_also = ["GET /v1/x"]\n',
            RULE,
        ),
        (
            '[services.model]\nsecret = "exec:old" # why\n',
            '[services.model]\nsecret = "store:model" # why\n',
            SECRET,
        ),
        (
            "[sandbox]\n",
            "[sandbox]\nhost_ports = [5432]\n",
            RuleAddition(("sandbox",), "host_ports", 5432),
        ),
        (
            '[services."a b"]\nx = 1\n',
            '[services."a b"]\nx = 1\nforce = true\n',
            RuleAddition(("services", "a b"), "force", True, listed=False),
        ),
        (
            "",
            '[services."a b"]\nforce = true\n',
            RuleAddition(("services", "a b"), "force", True, listed=False),
        ),
        (
            "[services.model]\n",
            '[services.model]\nsecret = "store:model"  # used once\n',
            RuleAddition(("services", "model"), "secret", "store:model", False, "used once"),
        ),
        ("", '[egress]\nallow = [\n  "new.example",  # 3 connections\n]\n', REMARKED),
        (
            "[egress]\nallow   = []   # hosts\n",
            '[egress]\n# new.example: 3 connections\nallow   = ["new.example"]   # hosts\n',
            REMARKED,
        ),
        (
            '[egress]\nallow = ["a.example",\n         "b.example"]\n',
            '[egress]\nallow = ["a.example",\n         "b.example",\n'
            '         "new.example",  # 3 connections\n]\n',
            REMARKED,
        ),
        (
            '[egress]\nallow = [ # hosts\n"a.example" ]\n',
            '[egress]\nallow = [ # hosts\n"a.example",\n"new.example" ]\n',
            HOST,
        ),
        (
            "[egress]\nallow = [ # hosts\n ]\n",
            '[egress]\nallow = [ # hosts\n   "new.example",\n ]\n',
            HOST,
        ),
    ],
)
def test_a_rule_is_added_in_the_style_of_the_file(
    before: str, after: str, addition: RuleAddition
) -> None:
    changed = add_rules(before, [addition])
    assert changed == after
    assert has_rule(tomllib.loads(changed), addition)
    assert add_rules(changed, [addition]) == changed  # a second time adds nothing


@pytest.mark.parametrize(
    "text",
    [
        "egress = 1\n",
        '[egress]\nallow = "all"\n',
        "[[egress]]\nx = 1\n",
        'services = { other = { use = "model" } }\n',
    ],
)
def test_a_file_that_cannot_be_changed_is_refused_with_the_lines_to_write(text: str) -> None:
    addition = RULE if text.startswith("services") else HOST
    with pytest.raises(Refused, match=r"add to it:\n\[(egress|services.model)\]\nallow"):
        add_rules(text, [addition])


def test_a_remark_cannot_leave_its_comment() -> None:
    """I8: what a log says is hostile text."""
    hostile = RuleAddition(
        ("egress",), "allow", "new.example", remark='x\n"*.evil.example",\x1b[2J'
    )
    for before in ("", '[egress]\nallow = ["a.example"]\n', '[egress]\nallow = [\n"a.example"]\n'):
        listed = tomllib.loads(add_rules(before, [hostile]))["egress"]["allow"]
        assert "*.evil.example" not in listed
        assert "new.example" in listed


def test_several_rules_are_added_in_their_order() -> None:
    changed = add_rules("version = 1\n", [HOST, RULE, SECRET, HOST])
    assert tomllib.loads(changed) == {
        "version": 1,
        "egress": {"allow": ["new.example"]},
        "services": {"model": {"allow_also": ["GET /v1/x"], "secret": "store:model"}},
    }


@given(st.text(max_size=20), st.lists(st.text(alphabet='ab#,]"\n\\', max_size=6), max_size=4))
def test_any_text_stays_one_value(value: str, others: list[str]) -> None:
    listed = ",\n".join(RuleAddition((), "k", each).written for each in others)
    before = f"# head\n[egress]\nallow = [ # why ]\n{listed}]\n"
    changed = add_rules(before, [RuleAddition(("egress",), "allow", value, remark=value)])
    expected = others if value in others else [*others, value]
    assert tomllib.loads(changed) == {"egress": {"allow": expected}}
    assert changed.startswith("# head\n[egress]\n")
