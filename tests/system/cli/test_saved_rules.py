"""`keyhole allow TARGET --save`, typed by a user: what `why` prints can be pasted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from tests.rigs.cli.terminals import PROGRAM, on_terminal

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

POLICY = """
# My own words.
[egress]
allow = ["example.org"]   # kept

[services.billing]
hosts = ["billing.example"]
allow = ["GET /v1/**"]

[services.anthropic]
secret = "store:anthropic"
[services.github]
repos = ["acme/widgets"]
"""


@pytest.mark.parametrize(
    ("target", "added"),
    [
        ("files.example", '["example.org", "files.example"]   # kept'),
        ("files.example:8443", '"files.example:8443"'),
        ("POST https://billing.example/v1/q%20a/", '["GET /v1/**", "POST /v1/q*a"]'),
        ("https://api.anthropic.com/v1/other", 'allow_also = ["GET /v1/other"]'),
        ("git push --force git@github.com:acme/widgets.git agent/x", "force = true"),
        ("git push https://github.com/acme/other agent/x", '["acme/widgets", "acme/other"]'),
        ("api.openai.com", '[services.openai]\nsecret = "store:openai"'),
    ],
)
def test_what_why_prints_allows_it_when_it_is_pasted(
    keyhole: Keyhole, target: str, added: str
) -> None:
    keyhole.policy(POLICY)
    keyhole("policy", "trust", "--trust")
    denied = keyhole("why", target)
    assert denied.code == 1
    command = denied.out.splitlines()[-1].strip()
    assert command.startswith("keyhole allow ")
    saved = keyhole(*shlex.split(command)[1:], "--yes")
    assert (saved.code, saved.err) == (0, "")
    text = (keyhole.project / "keyhole.toml").read_text()
    assert added in text
    assert "# My own words." in text
    assert keyhole("why", target).code == 0
    assert '"trusted": true' in keyhole("check", "--json").out
    again = keyhole("allow", target, "--save")
    assert (again.code, again.out) == (0, f"{target} is allowed already\n")


def test_a_person_is_asked_and_no_leaves_everything_as_it_is(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    keyhole("policy", "trust", "--trust")
    path = keyhole.project / "keyhole.toml"
    before = path.read_text()
    words = [PROGRAM, "allow", "files.example", "--save"]
    question = "accept the policy with it?"
    code, said = on_terminal(words, keyhole.env, keyhole.project, [(question, "\n")])
    assert code == 1
    assert "files.example" in said
    assert path.read_text() == before
    piped = keyhole("allow", "files.example", "--save")
    assert piped.code == 1
    assert "--yes writes it" in piped.err
    assert path.read_text() == before
    code, said = on_terminal(words, keyhole.env, keyhole.project, [(question, "y\n")])
    assert code == 0
    assert path.read_text() == before.replace('org"]', 'org", "files.example"]')


def test_a_rule_that_a_person_should_look_at_twice_is_marked_before_it_is_written_i11(
    keyhole: Keyhole,
) -> None:
    """Attack: code in a sandbox prints a command, which a person pastes. Control: a plain rule has
    no mark."""
    keyhole.policy(POLICY)
    keyhole("policy", "trust", "--trust")
    plain = keyhole("allow", "https://api.anthropic.com/v1/other", "--save")
    assert "! " not in plain.out
    assert "+allow_also" in plain.out
    guarded = keyhole("allow", "https://api.anthropic.com/v1/organizations/api_keys", "--save")
    assert "! opens a guarded endpoint" in guarded.out
    assert guarded.out.count("! ") == 1  # what the policy granted before is not repeated
    assert guarded.code == 1  # nobody was asked


def test_a_policy_that_nobody_accepted_is_not_written(keyhole: Keyhole) -> None:
    """I11: the rule would carry the rest of the file into the acceptance."""
    keyhole.policy(POLICY)
    refused = keyhole("allow", "files.example", "--save", "--yes")
    assert refused.code == 2
    assert "keyhole policy trust" in refused.err
    assert "files.example" not in (keyhole.project / "keyhole.toml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("allow", "abc"), "keyhole allow ID HOST"),
        (("allow", "abc", "a.example", "b.example"), "keyhole allow HOST --save"),
        (("allow", "a.example", "--save", "--uses", "3"), "not with --save"),
        (("allow", "abc", "a.example", "--yes"), "for --save"),
        (("allow", "192.0.2.1", "--save"), "no rule that could be added"),
        (("allow", "not a host", "--save"), "one URL or host"),
    ],
)
def test_a_mistyped_command_says_the_right_one(
    keyhole: Keyhole, words: tuple[str, ...], said: str
) -> None:
    keyhole.policy(POLICY)
    keyhole("policy", "trust", "--trust")
    ran = keyhole(*words)
    assert ran.code == 2
    assert said in ran.err
