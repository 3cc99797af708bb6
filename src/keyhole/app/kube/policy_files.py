"""Policies and Secrets of the cluster as files of the agent's own, where the gateway reads them.

The gateway takes a policy by its path and follows its file; it knows nothing of a cluster. A policy
is accepted in the step that writes it: the API server has decided that its author may write it.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from typing import TYPE_CHECKING

from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import parse_policy
from keyhole.model.errors import Refused
from keyhole.model.secret import SecretScheme
from keyhole.policy.namespaced import faults_in_namespace
from keyhole.vault.cluster_source import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.app.kube.resources import ClusterPolicy
    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.policy.fault import PolicyFaults
    from keyhole.policy.policy import Policy

MAX_FAULTS = 16
"""Faults of a policy that are shown."""

CLUSTER_WIDE = frozenset({"upstream"})
"""Tables of a ClusterKeyholePolicy: they hold for every policy of the cluster."""


def check_cluster_wide(text: str) -> None:
    """Raise Refused unless the text has tables of a ClusterKeyholePolicy alone."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(f"it is not TOML: {error}") from None
    for name in tables.keys() - CLUSTER_WIDE:
        raise Refused(f"'{name}' is not a table of a ClusterKeyholePolicy; it has [upstream]")


class PolicyFiles:
    """The files of all policies on this node."""

    def __init__(self, directory: Path, places: HostPaths, catalogue: FileCatalogue) -> None:
        self._directory = directory
        self._places = places
        self._catalogue = catalogue
        self.cluster_wide = ""
        """The text of the ClusterKeyholePolicy."""

    def path(self, policy: ClusterPolicy) -> Path:
        """The file of a policy. Names of the cluster have neither slashes nor leading dots."""
        return self._directory / "policies" / policy.namespace / policy.name / "keyhole.toml"

    def write(self, policy: ClusterPolicy) -> ExaminedPolicy:
        """Check, accept and write a policy. Raises PolicyFaults, Refused."""
        path = self.path(policy)
        # 1. What its author wrote, alone.
        examined = self.check(policy)
        # 2. With the tables of the cluster behind it, so that lines and columns stay the author's.
        if self.cluster_wide:
            examined = self._parse(path, f"{policy.text}\n{self.cluster_wide}")
        # 3. Accepted before it is there: the gateway reads it as soon as it changes.
        AcceptanceStore(self._places.trust).accept(examined)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, examined.file.data)
        return examined

    def check(self, policy: ClusterPolicy) -> ExaminedPolicy:
        """Read a policy, which must be whole without the cluster's tables, and say nothing that no
        namespace may say. Raises PolicyFaults, Refused."""
        examined = self._parse(self.path(policy), policy.text)
        faults = faults_in_namespace(examined.file.loaded.policy)
        if faults:
            raise Refused("; ".join(faults))
        return examined

    def _parse(self, path: Path, text: str) -> ExaminedPolicy:
        file = parse_policy(path, text.encode("utf-8"), self._places, self._catalogue)
        return examine_policy(file, self._places.home, "")

    def write_secret(self, policy: ClusterPolicy, name: str, data: Mapping[str, bytes]) -> None:
        """Write the values of one Secret for a policy; keys that are gone are removed."""
        place = self.path(policy).parent / SECRETS / name
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in place.iterdir():
            if old.name not in data:
                old.unlink()
        for key, value in data.items():
            _replace(place / key, value)

    def remove(self, policy: ClusterPolicy) -> None:
        """The policy is gone: remove its files."""
        shutil.rmtree(self.path(policy).parent, ignore_errors=True)


def describe_faults(faults: PolicyFaults) -> tuple[str, ...]:
    """The faults with line and column, without the name of our file."""
    return tuple(
        f"{each.span.line}:{each.span.column}: {each.message}"
        + (f" ({each.hint})" if each.hint else "")
        for each in faults.faults[:MAX_FAULTS]
    )


def named_secrets(policy: Policy) -> Iterable[str]:
    """The Secrets that a policy names."""
    for service in policy.services:
        if service.secret is not None and service.secret.source is SecretScheme.KUBE:
            yield service.secret.locator.partition("/")[0]


def _replace(path: Path, data: bytes) -> None:
    """Write in one step, for the owner alone."""
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
