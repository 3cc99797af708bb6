"""Whom a session's gateway and sandbox believe: this host's roots, and what the policy adds.

Read where a session is provided for, and by whoever prepares a sandbox. The bytes that were
accepted with the policy are the bytes that are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.certs.roots import UnusableRoots, merged, system_bundle, upstream_context
from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    import ssl

    from keyhole.app.trust import Dossier
    from keyhole.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Roots:
    """Certificates in PEM."""

    system: bytes
    added: bytes | None

    def bundle(self, authority: bytes) -> bytes:
        """For the sandbox: the host's roots, those that the policy adds, and the session's CA."""
        return merged(self.system, self.added or b"", authority)

    def context(self) -> ssl.SSLContext:
        """For the gateway's own connections; sessions with the same roots share it."""
        return upstream_context(self.added, self.system)


@dataclass(frozen=True, slots=True)
class Vouched:
    """What a sandbox's clients are to believe: the certificate of its session's CA, and roots."""

    authority: bytes
    roots: Roots


def open_roots(policy: Policy, dossier: Dossier) -> Roots:
    """Read them; raises Refused."""
    added = None
    if policy.upstream.ca_file:
        added = next(r.data for r in dossier.referred if r.role == "upstream.ca_file")
        if added is None:
            raise Refused(f"upstream.ca_file {policy.upstream.ca_file} cannot be read")
    try:
        roots = Roots(system_bundle(), added)
        roots.context()
    except UnusableRoots as error:
        raise Refused(f"the certificates that origins are verified by: {error}") from None
    return roots
