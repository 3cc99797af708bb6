"""Ref updates: which branch may move, and how (DESIGN §4)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason
from keyhole.model.ref import Ref
from keyhole.policy.push import (
    RefChange,
    RemoteFacts,
    decide_by_name,
    decide_optimistically,
    decide_ref_update,
)
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.policies import loaded

MAIN = RemoteFacts(Ref.parse("refs/heads/main"))


def reason(grants: str, ref: str, change: RefChange, remote: RemoteFacts = MAIN) -> Reason:
    service = loaded(f"[services.forge]\nrepos = ['a/b']\n{grants}").policy.services[0]
    decision = decide_ref_update(service, ref, change, remote)
    assert decision.allowed is (decision.reason is Reason.RULE)
    return decision.reason


AGENT = "push = ['agent/*']"


@pytest.mark.parametrize(
    ("grants", "change", "expected"),
    [
        (AGENT, RefChange.FAST_FORWARD, Reason.RULE),
        (AGENT, RefChange.CREATE, Reason.RULE),
        (AGENT + "\ncreate = false", RefChange.CREATE, Reason.CREATE_NOT_GRANTED),
        (AGENT, RefChange.FORCE, Reason.FORCE_NOT_GRANTED),
        (AGENT + "\nforce = true", RefChange.FORCE, Reason.RULE),
        (AGENT, RefChange.UNKNOWN, Reason.ANCESTRY_UNKNOWN),
        (AGENT + "\nforce = true", RefChange.UNKNOWN, Reason.RULE),
        (AGENT, RefChange.DELETE, Reason.DELETE_NOT_GRANTED),
        (AGENT + "\ndelete = true", RefChange.DELETE, Reason.RULE),
        ("", RefChange.FAST_FORWARD, Reason.READ_ONLY),
        ("tags = ['v*']", RefChange.CREATE, Reason.READ_ONLY),
    ],
)
def test_a_branch_moves_only_as_granted(grants: str, change: RefChange, expected: Reason) -> None:
    assert reason(grants, "refs/heads/agent/x", change) is expected


@pytest.mark.parametrize(
    ("ref", "change", "expected"),
    [
        ("refs/heads/fix", RefChange.CREATE, Reason.APPROVED),
        ("refs/tags/v9", RefChange.CREATE, Reason.APPROVED),
        ("refs/heads/other", RefChange.CREATE, Reason.REF_NOT_GRANTED),
        ("refs/heads/fix", RefChange.FORCE, Reason.FORCE_NOT_GRANTED),
        ("refs/heads/main", RefChange.FAST_FORWARD, Reason.REF_PROTECTED),
        ("refs/tags/v9", RefChange.FORCE, Reason.TAG_MOVE),
    ],
)
def test_a_ref_that_a_person_approves_moves_as_if_a_pattern_covered_it(
    ref: str, change: RefChange, expected: Reason
) -> None:
    service = loaded(f"[services.forge]\nrepos = ['a/b']\n{AGENT}").policy.services[0]
    approved = frozenset({"refs/heads/fix", "refs/heads/main", "refs/tags/v9"})
    decision = decide_ref_update(service, ref, change, MAIN, approved)
    assert decision.reason is expected
    assert decision.allowed is (expected is Reason.APPROVED)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/heads/agent/x", Reason.RULE),
        ("refs/heads/agent/x/y", Reason.REF_NOT_GRANTED),
        ("refs/heads/agent", Reason.REF_NOT_GRANTED),
        ("refs/heads/Agent/x", Reason.REF_NOT_GRANTED),
        ("refs/heads/other", Reason.REF_NOT_GRANTED),
        ("refs/heads/agent/x.lock", Reason.REF_MALFORMED),
        ("refs/heads/agent/..", Reason.REF_MALFORMED),
        ("refs/heads/agent/\u200bx", Reason.REF_MALFORMED),
        ("refs/heads/", Reason.REF_MALFORMED),
        ("refs/for/main", Reason.REF_NAMESPACE),
        ("refs/replace/abc", Reason.REF_NAMESPACE),
        ("refs/meta/config", Reason.REF_NAMESPACE),
        ("refs/pull/1/head", Reason.REF_NAMESPACE),
        ("HEAD", Reason.REF_NAMESPACE),
        ("refs/Heads/agent/x", Reason.REF_NAMESPACE),
    ],
)
def test_only_plain_branches_that_a_pattern_covers_are_pushed(ref: str, expected: Reason) -> None:
    assert reason(AGENT, ref, RefChange.FAST_FORWARD) is expected


def test_the_default_branch_is_protected_unless_named_exactly() -> None:
    assert (
        reason("push = ['**']", "refs/heads/main", RefChange.FAST_FORWARD) is Reason.REF_PROTECTED
    )
    assert (
        reason("push = ['**']", "refs/heads/MAIN", RefChange.FAST_FORWARD) is Reason.REF_PROTECTED
    )
    assert reason("push = ['**']", "refs/heads/x", RefChange.FAST_FORWARD) is Reason.RULE
    assert reason("push = ['main']", "refs/heads/main", RefChange.FAST_FORWARD) is Reason.RULE
    unknown = reason("push = ['**']", "refs/heads/x", RefChange.FAST_FORWARD, RemoteFacts())
    assert unknown is Reason.DEFAULT_BRANCH_UNKNOWN


def test_protect_replaces_the_default_and_wins_over_push() -> None:
    grants = "push = ['**', 'release/1']\nprotect = ['release/**']"
    assert reason(grants, "refs/heads/release/1", RefChange.FAST_FORWARD) is Reason.REF_PROTECTED
    assert reason(grants, "refs/heads/Release/1", RefChange.FAST_FORWARD) is Reason.REF_PROTECTED
    assert reason(grants, "refs/heads/main", RefChange.FAST_FORWARD, RemoteFacts()) is Reason.RULE


def test_a_tag_is_created_and_never_moved() -> None:
    grants = AGENT + "\ntags = ['v*']\nforce = true\ndelete = true"
    assert reason(grants, "refs/tags/v1", RefChange.CREATE) is Reason.RULE
    for change in (RefChange.FAST_FORWARD, RefChange.FORCE, RefChange.DELETE, RefChange.UNKNOWN):
        assert reason(grants, "refs/tags/v1", change) is Reason.TAG_MOVE
    assert reason(grants, "refs/tags/x1", RefChange.CREATE) is Reason.TAG_NOT_GRANTED
    assert reason(AGENT, "refs/tags/v1", RefChange.CREATE) is Reason.TAG_NOT_GRANTED


def test_an_alias_on_the_server_is_never_pushed_to() -> None:
    alias = Ref.parse("refs/heads/agent/x")
    remote = RemoteFacts(Ref.parse("refs/heads/main"), frozenset({alias}))
    grants = AGENT + "\nforce = true\ndelete = true"
    assert reason(grants, "refs/heads/agent/x", RefChange.DELETE, remote) is Reason.REF_SYMBOLIC
    assert reason(grants, "refs/heads/agent/y", RefChange.DELETE, remote) is Reason.RULE


def test_a_service_without_git_pushes_nothing() -> None:
    service = loaded("[services.model]").policy.services[0]
    decision = decide_ref_update(service, "refs/heads/agent/x", RefChange.CREATE, MAIN)
    assert not decision.allowed


ZERO, ONE, TWO = "0" * 40, "1" * 40, "2" * 40
TIPS = {"refs/heads/agent/x": ONE}


@pytest.mark.parametrize(
    ("old", "new", "ref", "expected"),
    [
        (ONE, TWO, "agent/x", Reason.RULE),
        (ZERO, TWO, "agent/new", Reason.RULE),
        (ONE, ZERO, "agent/x", Reason.RULE),
        (TWO, ONE, "agent/x", Reason.REF_MOVED),
        (ZERO, TWO, "agent/x", Reason.REF_MOVED),
        (ONE, TWO, "agent/gone", Reason.REF_MOVED),
        (ZERO, ZERO, "agent/x", Reason.REF_MOVED),
        (TWO, ZERO, "agent/x", Reason.REF_MOVED),
        (ZERO, TWO, "main", Reason.REF_NOT_GRANTED),
    ],
)
def test_a_command_is_foreseen_by_its_names_and_by_where_its_ref_is(
    old: str, new: str, ref: str, expected: Reason
) -> None:
    """I3: git deletes a ref whatever the client believes it to be; here it must know."""
    service = loaded(f"[services.forge]\nrepos = ['a/b']\n{AGENT}\ndelete = true").policy.services[
        0
    ]
    decision = decide_optimistically(service, RefCommand(old, new, f"refs/heads/{ref}"), MAIN, TIPS)
    assert decision.reason is expected


@pytest.mark.parametrize(
    ("new", "ref", "expected"),
    [
        (TWO, "heads/agent/x", Reason.RULE),
        (TWO, "heads/main", Reason.REF_NOT_GRANTED),
        (TWO, "notes/x", Reason.REF_NAMESPACE),
        (TWO, "tags/v1", Reason.TAG_NOT_GRANTED),
    ],
)
def test_some_commands_are_refused_before_anything_is_known_of_the_remote(
    new: str, ref: str, expected: Reason
) -> None:
    """I3, I9: what a remote could say of its default branch would not help them."""
    service = loaded(f"[services.forge]\nrepos = ['a/b']\n{AGENT}").policy.services[0]
    assert decide_by_name(service, RefCommand(ONE, new, f"refs/{ref}")).reason is expected


def test_an_alias_is_one_in_any_case() -> None:
    """I3: some servers' storage folds case; the control is another name."""
    remote = RemoteFacts.of("refs/heads/main", ["refs/heads/Agent/Alias"])
    assert reason(AGENT, "refs/heads/agent/alias", RefChange.CREATE, remote) is Reason.REF_SYMBOLIC
    assert reason(AGENT, "refs/heads/agent/other", RefChange.CREATE, remote) is Reason.RULE


def test_what_is_not_granted_is_foreseen_as_such() -> None:
    service = loaded(f"[services.forge]\nrepos = ['a/b']\n{AGENT}").policy.services[0]
    delete = RefCommand(ONE, ZERO, "refs/heads/agent/x")
    assert decide_optimistically(service, delete, MAIN, TIPS).reason is Reason.DELETE_NOT_GRANTED


def test_a_remote_is_known_by_the_names_that_could_be_pushed() -> None:
    remote = RemoteFacts.of("refs/heads/main", ["refs/heads/alias", "refs/remotes/x/HEAD", "HEAD"])
    assert remote == RemoteFacts(
        Ref.parse("refs/heads/main"), frozenset({Ref.parse("refs/heads/alias")})
    )
    assert RemoteFacts.of(None, []) == RemoteFacts()
    assert RemoteFacts.of("refs/heads/\u00e4", []) == RemoteFacts()
