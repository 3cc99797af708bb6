"""Whether a commit may be signed with the person's key.

Asked by the data plane when code in the sandbox wants a signature, and again by the process that
runs the signing program, which believes nothing that the data plane says of the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Malformed
from keyhole.wire.signable_commit import parse_signable

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy
    from keyhole.wire.signable_commit import SignableCommit

SIGN_RULE = "sandbox.sign"
"""The rule of every decision on a signature."""

SIGNING_ADDRESS = ("192.0.2.53", 9117)
"""The gateway's own address inside, which DNS is asked at, and a port that no service has."""

SIGNATURES_PER_SECOND = 10
"""Each starts a program outside."""

SIGNATURE_BURST = 500
"""Signatures at once: a rebase makes some fifteen a second, for hundreds of commits."""

MAX_SIGNATURES = 10_000
"""Signatures of one session: more than a day's work of an agent."""

NOT_THE_COMMITTER = "the committer is not the one that sandbox.git_user names"
NO_KEY = "the policy names no key to sign with, or grants no push"

_ALLOWED = Decision(Verdict.ALLOW, Reason.COMMIT_SIGNED, SIGN_RULE)
_DENIED = Decision(Verdict.DENY, Reason.COMMIT_UNSIGNED, SIGN_RULE)


OPENPGP = "gpg:"
"""The prefix of a key that GnuPG has; any other text is the public key file of an SSH key."""


def openpgp_key(policy: Policy) -> str:
    """The id of the key that GnuPG signs with; empty if it is another kind of key, or none."""
    sign = policy.sandbox.sign or ""
    return sign.removeprefix(OPENPGP) if sign.startswith(OPENPGP) else ""


def grants_push(policy: Policy) -> bool:
    """Whether any service lets branches be pushed."""
    return any(service.git is not None and service.git.push for service in policy.services)


def decide_signature(policy: Policy, content: bytes) -> tuple[Decision, SignableCommit | None, str]:
    """Decide on a commit; with the commit that was read if it may be signed, else with the
    reason in words."""
    sandbox = policy.sandbox
    if sandbox.sign is None or sandbox.git_user is None or not grants_push(policy):
        return _DENIED, None, NO_KEY
    try:
        commit = parse_signable(content)
    except Malformed as error:
        return _DENIED, None, error.why
    person, committer = sandbox.git_user, commit.committer
    written = {(name.encode(), email.encode()) for name, email in person.spellings()}
    if (committer.name, committer.email) not in written:
        return _DENIED, None, NOT_THE_COMMITTER
    return _ALLOWED, commit, ""
