"""Reads the roots of a session, and prepares them for the gateway and the sandbox.

Called with a session's provision, and when a sandbox is prepared. The bytes that were accepted with
the policy are the bytes that are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.certs.roots import check_added, merge_certificates, system_bundle, upstream_context
from keyhole.model.errors import Refused, ResourceUnusable

if TYPE_CHECKING:
    import ssl

    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.policy.policy import Policy


_UNUSABLE = "the certificates that origins are verified by: {}"


def open_roots(policy: Policy, examined: ExaminedPolicy) -> TrustedRoots:
    """Read the roots. Raises Refused."""
    added = None
    if policy.upstream.ca_file:
        added = next(r.data for r in examined.referred if r.role == "upstream.ca_file")
        if added is None:
            raise Refused(f"upstream.ca_file {policy.upstream.ca_file} cannot be read")
    try:
        if added is not None:
            check_added(added)
        return TrustedRoots(system_bundle(), added)
    except ResourceUnusable as error:
        raise Refused(_UNUSABLE.format(error)) from None


def sandbox_bundle(roots: TrustedRoots, authority: bytes) -> bytes:
    """The bundle for the sandbox: the host's roots, those that the policy adds, and the session's
    CA."""
    return merge_certificates(roots.system, roots.added or b"", authority)


def origin_context(roots: TrustedRoots) -> ssl.SSLContext:
    """The TLS context of the gateway's own connections; sessions with the same roots share it.
    Raises Refused."""
    try:
        return upstream_context(roots.added, roots.system)
    except ResourceUnusable as error:
        raise Refused(_UNUSABLE.format(error)) from None
