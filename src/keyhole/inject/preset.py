"""The grants of a package-manager preset: index and download hosts, reads only.

Made by `host/` from the settings of the host's own package managers, joined to the policy by
`policy/`. Inside the sandbox each host is an inspected service without writes; a credential in the
host's settings is injected there and never enters the sandbox (I1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.rule import AccessRule

if TYPE_CHECKING:
    from keyhole.inject.injection import Injection
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret

READS = (AccessRule.parse("GET /**"),)
"""The rule that every index needs; GET covers HEAD."""


class PresetHost(Struct, frozen=True):
    """One index or download host. `credential` comes with the way to write it."""

    pattern: HostPattern
    allow: tuple[AccessRule, ...] = READS
    inject: Injection | None = None
    credential: Secret | None = None


class Preset(Struct, frozen=True):
    """The hosts of one preset, and the host's setting that each comes from."""

    name: str
    hosts: tuple[PresetHost, ...]
    env: tuple[tuple[str, str], ...] = ()
    """Variables set inside, so that package managers with an empty home find their index."""
    files: tuple[tuple[str, str], ...] = ()
    """Files placed in the sandbox's home, by path relative to it; never with a credential."""
    sources: tuple[str, ...] = ()
    """The file that each setting was read from, for `keyhole check --show`."""
    notes: tuple[str, ...] = ()
    """Notes for the person, one line each."""
