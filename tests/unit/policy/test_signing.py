"""A commit of the person is signed where a push is granted, and nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keyhole.model.decision import Reason
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.signing import (
    NO_KEY,
    NOT_THE_COMMITTER,
    SIGN_RULE,
    decide_signature,
    openpgp_key,
)
from tests.rigs.policies import loaded

POLICY = """
[sandbox]
git_user = "Ada <ada@corp.example>"
sign = "ssh:~/.ssh/agent.pub"
[services.forge]
hosts = ["git.example"]
forge = "generic"
inject = { basic_user = "robot" }
secret = "file:~/secret"
repos = ["acme/w"]
push = ["agent/*"]
"""
ADA = b"Ada <ada@corp.example> 1 +0000"
COMMIT = b"tree %b\nauthor Eve <e@x.example> 1 +0000\ncommitter %b\n\nx\n" % (b"a" * 40, ADA)


def test_a_commit_of_the_person_is_signed() -> None:
    decision, commit, why = decide_signature(loaded(POLICY).policy, COMMIT)
    assert (decision.allowed, decision.reason, decision.rule, why) == (
        True, Reason.COMMIT_SIGNED, SIGN_RULE, "",
    )  # fmt: skip
    assert commit is not None
    assert commit.to_bytes() == COMMIT


@pytest.mark.parametrize(
    ("person", "committer", "signed"),
    [
        ("Ada Jr.", "Ada Jr.", True),
        ("Ada Jr.", "Ada Jr", True),  # older versions of git
        ("'Ada' King;", "Ada' King", True),
        ("Ada Jr.", "Ada J", False),
        ("Ada Jr.", "Ada Jr..", False),
        ("Ada", "Ada.", False),
        ("Ada", "'Ada'", False),
    ],
)
def test_a_name_that_git_writes_without_its_dot_is_the_persons(
    person: str, committer: str, *, signed: bool
) -> None:
    policy = loaded(POLICY.replace("Ada <", f"{person} <")).policy
    commit = COMMIT.replace(b"committer Ada", f"committer {committer}".encode())
    assert decide_signature(policy, commit)[0].allowed is signed


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (COMMIT.replace(b"committer Ada", b"committer Eve"), NOT_THE_COMMITTER),
        (COMMIT.replace(b"committer Ada <ada@", b"committer Ada <eve@"), NOT_THE_COMMITTER),
        (COMMIT.replace(b"committer Ada", b"committer Ada "), NOT_THE_COMMITTER),
        (b"object " + COMMIT, "only commits are signed, no tags, certificates or other data"),
    ],
)
def test_other_bytes_are_not(content: bytes, why: str) -> None:
    decision, commit, said = decide_signature(loaded(POLICY).policy, content)
    assert (decision.allowed, decision.reason, commit, said) == (
        False, Reason.COMMIT_UNSIGNED, None, why,
    )  # fmt: skip


def test_a_key_of_gpg_is_known_by_its_whole_id() -> None:
    policy = loaded(POLICY.replace("ssh:~/.ssh/agent.pub", "gpg:0123456789abcdef")).policy
    assert openpgp_key(policy) == "0123456789ABCDEF"
    assert decide_signature(policy, COMMIT)[0].allowed
    assert openpgp_key(loaded(POLICY).policy) == ""


def test_without_a_key_a_person_or_a_push_nothing_is_signed() -> None:
    """I3: also where the policy changed after the sandbox began."""
    policy = loaded(POLICY).policy
    (service,) = policy.services
    assert service.git is not None
    read_only = replace(service, git=replace(service.git, push=()))
    for denied in (
        replace(policy, sandbox=replace(policy.sandbox, sign=None)),
        replace(policy, sandbox=replace(policy.sandbox, git_user=None)),
        replace(policy, services=(read_only,)),
        replace(policy, services=()),
    ):
        assert decide_signature(denied, COMMIT)[1:] == (None, NO_KEY)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('git_user = "Ada <ada@corp.example>"\n', "", "whom git_user names"),
        ('push = ["agent/*"]\n', "", "no service grants a push"),
        ("ssh:~/.ssh/agent.pub", "ssh:~/.ssh/agent", "its public key file"),
        ("ssh:~/.ssh/agent.pub", "gpg:ABCDEF01", "by its fingerprint"),
        ("ssh:~/.ssh/agent.pub", "gpg:ada@corp.example", "by its fingerprint"),
        ("ssh:~/.ssh/agent.pub", "pgp:0123456789ABCDEF", "its public key file"),
        ("ssh:~/.ssh/agent.pub", "ssh:agent.pub", "its public key file"),
    ],
)
def test_a_policy_that_cannot_sign_is_wrong(old: str, new: str, why: str) -> None:
    assert old in POLICY
    with pytest.raises(PolicyFaults) as raised:
        loaded(POLICY.replace(old, new))
    assert why in str(raised.value)
