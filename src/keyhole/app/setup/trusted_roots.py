"""The roots that a session's gateway and sandbox trust: this host's, and those of the policy.

Values alone, which processes hand to one another; `root_reader.py` reads and uses them. A run
without services imports this module, and has no use for TLS.
"""

from __future__ import annotations

from msgspec import Struct


class TrustedRoots(Struct, frozen=True):
    """Certificates in PEM."""

    system: bytes
    added: bytes | None


class SandboxTrust(Struct, frozen=True):
    """The certificates that a sandbox's clients trust: that of its session's CA, and roots."""

    authority: bytes
    roots: TrustedRoots
