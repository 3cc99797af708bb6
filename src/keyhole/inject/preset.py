"""What a package-manager preset grants: index and download hosts, reads only.

Made by `host/` from the host's own package managers, joined to the policy by `policy/`. Inside the
sandbox each host is an inspected service without writes; a credential that the host's settings hold
is injected there and never enters the sandbox (I1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.rule import AccessRule
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.inject.injection import Injection
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret

READS = (AccessRule.parse("GET /**"),)
"""What every index is for; GET covers HEAD."""


@dataclass(frozen=True, slots=True)
class PresetHost:
    """One index or download host. `credential` comes with the one way it is written."""

    pattern: HostPattern
    allow: tuple[AccessRule, ...] = READS
    inject: Injection | None = None
    credential: Secret | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """What one preset brings, and where the host said so."""

    name: str
    hosts: tuple[PresetHost, ...]
    env: tuple[tuple[str, str], ...] = ()
    """Variables set inside, so that package managers with an empty home find their index."""
    files: tuple[tuple[str, str], ...] = ()
    """Files placed in the sandbox's home, by path relative to it; never with a credential."""
    sources: tuple[str, ...] = ()
    """Where each setting was read, for `keyhole check --show`."""
    notes: tuple[str, ...] = ()
    """What a person should know, as one line each."""
