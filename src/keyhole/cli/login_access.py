"""The policy under which a login is made or ended, and how its servers are reached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.endpoint_access import endpoint_access
from keyhole.app.setup.host_paths import POLICY_NAME, find_policy
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import parse_policy
from keyhole.cli.named_policy import read_policy
from keyhole.cli.verb_context import environment
from keyhole.model.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.vault.login_provider import EndpointAccess

_NOTHING = b"version = 1\n"


def found_policy(path: Path | None, places: HostPaths) -> PolicyFile | None:
    """The policy that is named, or the one here or above; None if there is none."""
    if path is None and not find_policy(Path.cwd(), places.home).exists():
        return None
    return read_policy(path, places, FileCatalogue())


def plain_access(places: HostPaths) -> EndpointAccess:
    """How servers are reached without a policy: public addresses, this host's roots."""
    path = places.state / POLICY_NAME
    file = parse_policy(path, _NOTHING, places, FileCatalogue())
    return access_under(_examined(file, places))


def access_under(examined: ExaminedPolicy) -> EndpointAccess:
    """How servers are reached under a policy that was accepted."""
    return endpoint_access(examined.file.loaded.policy, examined)


def accepted_access(path: Path | None, places: HostPaths) -> EndpointAccess:
    """By the policy here, if it is valid and accepted; else without one."""
    try:
        file = found_policy(path, places)
        examined = _examined(file, places) if file else None
    except KeyholeError:
        examined = None
    if examined is not None:
        before = AcceptanceStore(places.trust).find(examined.file.path)
        if before is not None and before.digest == examined.digest:
            return access_under(examined)
    return plain_access(places)


def _examined(file: PolicyFile, places: HostPaths) -> ExaminedPolicy:
    return examine_policy(file, places.home, environment().get("PATH", ""))
