"""The smallest rules for what was seen; hostile code chooses what is seen."""

from __future__ import annotations

import pytest

from keyhole.model.host import Host
from keyhole.policy import concern
from keyhole.policy.edit import RuleAddition
from keyhole.policy.proposal import SIBLINGS, KnownHosts, Proposal, propose
from keyhole.policy.recorded_use import RecordedUse
from tests.rigs.policies import book

BOOK = book("""
[egress]
allow = ["example.org"]
[services.model]
[services.plain]
hosts = ["plain.example"]
allow = ["GET /x"]
deny = ["* /never"]
[services.forge]
repos = ["a/b"]
""")
KNOWN = KnownHosts(
    lambda host, _: "python" if host.name.endswith("index.example") else None,
    lambda name: name == "quiet.example",
)
EGRESS = ("egress",)
PLAIN = ("services", "plain")


def learn(*uses: RecordedUse) -> tuple[Proposal, ...]:
    return propose(BOOK, dict.fromkeys(uses, 2), KNOWN)


def ask(path: str, word: str = "GET", host: str = "plain.example") -> RecordedUse:
    return RecordedUse(Host(host), 443, word, path)


def test_what_the_policy_allows_or_denies_by_name_is_not_proposed() -> None:
    assert learn(RecordedUse(Host("example.org")), ask("/x"), ask("/never")) == ()


def test_an_unknown_host_is_proposed_and_not_preselected() -> None:
    (found,) = learn(RecordedUse(Host("new.example"), 8443))
    assert found == Proposal(
        RuleAddition(EGRESS, "allow", "new.example:8443"), 2, "new.example:8443"
    )
    assert (found.id, found.is_preselected) == ("egress.allow new.example:8443", False)
    assert found.evidence == "seen 2 times"


def test_catalogue_and_presets_are_known_and_no_credential_is_proposed() -> None:
    uses = ("api.github.com", "a.index.example", "b.index.example")
    preset, service = learn(*(RecordedUse(Host(name)) for name in uses))
    assert preset.addition == RuleAddition(EGRESS, "presets", "python")
    assert (preset.count, preset.is_preselected) == (4, True)
    assert service.is_preselected
    assert (service.addition.table, service.addition.key) == (("services", "github"), "use")
    assert service.evidence == (
        "seen 2 times, as api.github.com; for its credential add secret = 'store:github', "
        "or [services.github-copilot]"
    )


def test_what_looks_wrong_is_set_apart() -> None:
    many = [RecordedUse(Host(f"n{n}.evil.example")) for n in range(concern.MANY + 1)]
    found = learn(
        *many, RecordedUse(Host("metadata.google.internal")), RecordedUse(Host("quiet.example"))
    )
    assert {each.concern for each in found} == {
        concern.MANY_NAMES,
        concern.METADATA,
        concern.TELEMETRY,
    }
    assert not any(each.is_preselected for each in found)


def test_a_guarded_endpoint_is_set_apart_and_stays_a_line_of_its_own() -> None:
    keys = [ask(f"/v1/keys/{n}", host="api.model.example") for n in range(SIBLINGS)]
    found = learn(*keys)
    assert len(found) == SIBLINGS
    assert {each.concern for each in found} == {concern.GUARDED}


def test_many_siblings_become_one_rule_and_few_do_not() -> None:
    many = [ask(f"/repos/acme/r{n}/pulls") for n in range(SIBLINGS)]
    few = [ask(f"/repos/acme/r{n}/pulls", "POST") for n in range(SIBLINGS - 1)]
    found = learn(*many, *few, ask("/" + "a" * 90))
    rules = {str(each.addition.value): each for each in found}
    assert rules.keys() == {
        "GET /repos/acme/*/pulls",
        *(f"POST /repos/acme/r{n}/pulls" for n in range(SIBLINGS - 1)),
        "GET /" + "a" * 90,
    }
    wide = rules["GET /repos/acme/*/pulls"]
    assert wide.count == 2 * SIBLINGS
    assert wide.evidence == "seen 10 times, as GET https://plain.example/repos/acme/r0/pulls"
    assert rules["GET /" + "a" * 90].concern == concern.DATA_IN_PATH
    assert all(each.addition.table == PLAIN for each in found)


def test_two_spellings_of_one_path_are_one_rule() -> None:
    (found,) = learn(ask("/a%20b"), ask("/a%23b"))
    assert (found.addition.value, found.count) == ("GET /a*b", 4)


@pytest.mark.parametrize("path", ["/v1/*", "/v1/%2A", "/v1/%3f", "/*/*/*", "/v1/a*b"])
def test_a_pattern_that_the_code_wrote_is_set_apart(path: str) -> None:
    """I3: code chooses its paths, and not its rules. Control: siblings make a pattern."""
    (found,) = learn(ask(path, "POST"))
    assert ("*" in str(found.addition.value), found.concern) == (True, concern.OWN_PATTERN)
    siblings = [ask(f"/w/{n}", "POST") for n in range(SIBLINGS)]
    found, wide = sorted(learn(ask(path, "POST"), *siblings), key=lambda each: not each.concern)
    assert (wide.addition.value, wide.concern) == ("POST /w/*", "")


def test_a_protected_branch_and_a_pattern_of_branches_are_set_apart() -> None:
    forge = Host("git.example")
    refs = ("refs/heads/main", "refs/heads/x*", "refs/heads/x")
    uses = [RecordedUse(forge, 443, "", "/a/b", ref) for ref in refs]
    elsewhere = RecordedUse(forge, 443, "", "/c/d", "refs/heads/main")
    assert {each.id: each.concern for each in learn(*uses, elsewhere)} == {
        "services.forge.push main": concern.PROTECTED,
        "services.forge.push x*": concern.OWN_PATTERN,
        "services.forge.push x": "",
        "services.forge.repos c/d": "",
    }
    kept = book("[services.forge]\nrepos = ['a/b']\npush = ['agent/*', 'r/*']\nprotect = ['r/1']")
    (found,) = propose(kept, {RecordedUse(forge, 443, "", "/a/b", "refs/heads/r/1"): 1}, KNOWN)
    assert found.concern == concern.PROTECTED


def test_items_of_items_join_from_the_last_to_the_first() -> None:
    uses = [ask(f"/p/{a}/i/{b}") for a in range(SIBLINGS) for b in range(SIBLINGS)]
    assert [each.addition.value for each in learn(*uses)] == ["GET /p/*/i/*"]


def test_a_branch_and_a_repository_are_proposed_for_a_forge() -> None:
    forge = Host("git.example")
    found = learn(
        RecordedUse(forge, 443, "", "/a/b", "refs/heads/agent/x"),
        RecordedUse(forge, 443, "", "/c/d", "refs/heads/x"),
        RecordedUse(forge, 443, "", "/a/b", "refs/for/x"),
        RecordedUse(Host("git.example"), 443, "GET", "/a/b/info/refs"),
    )
    assert {each.id for each in found} == {
        "services.forge.push agent/x",
        "services.forge.repos c/d",
    }


def test_a_path_that_no_rule_can_name_is_left_out() -> None:
    assert learn(ask("/a/**")) == ()


def test_once_is_said_as_once() -> None:
    (found,) = propose(BOOK, {RecordedUse(Host("new.example")): 1}, KNOWN)
    assert found.evidence == "seen once"
