"""Policies and Secrets of the cluster as files of the agent's own, where the gateway reads them.

The gateway takes a policy by its path and follows its file; it knows nothing of a cluster. A policy
is accepted in the step that writes it: the API server has decided that its author may write it.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import parse_policy
from keyhole.model.errors import Refused
from keyhole.model.secret import SecretScheme
from keyhole.policy.bounds import faults_beyond
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.namespaced import faults_in_namespace
from keyhole.vault.cluster_source import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from keyhole.app.kube.cluster_wide import ClusterWide
    from keyhole.app.kube.resources import ClusterPolicy
    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.policy.policy import Policy

_VERSION = "version = 1\n"
"""The first line of a policy, which tables that join another one do not have."""

MAX_FAULTS = 16
"""Faults of a policy that are shown."""


class PolicyFiles:
    """The files of all policies on this node."""

    def __init__(self, directory: Path, places: HostPaths, catalogue: FileCatalogue) -> None:
        self._directory = directory
        self._places = places
        self._catalogue = catalogue

    def path(self, policy: ClusterPolicy) -> Path:
        """The file of a policy. Names of the cluster have neither slashes nor leading dots."""
        return self._directory / "policies" / policy.namespace / policy.name / "keyhole.toml"

    def write(self, policy: ClusterPolicy, wide: Sequence[ClusterWide]) -> ExaminedPolicy:
        """Check, accept and write a policy. Raises PolicyFaults, Refused."""
        path = self.path(policy)
        examined = self.check(policy, wide)
        # Accepted before it is there: the gateway reads it as soon as it changes.
        AcceptanceStore(self._places.trust).accept(examined)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, examined.file.data)
        return examined

    def check(self, policy: ClusterPolicy, wide: Sequence[ClusterWide]) -> ExaminedPolicy:
        """Read a policy as its pods get it. `wide` are the ClusterKeyholePolicies of its namespace.
        Raises PolicyFaults, Refused."""
        # 1. What its author wrote is whole without anything else.
        examined = self._parse(self.path(policy), policy.text)
        loaded = examined.file.loaded
        # 2. It says nothing that no namespace may say, and nothing beyond the cluster's bounds.
        faults = [*faults_in_namespace(loaded)]
        for each in wide:
            if each.broken:
                raise Refused(f"the ClusterKeyholePolicy {each.name} is not valid: {each.broken}")
            if each.bounds is not None:
                faults += faults_beyond(loaded, each.bounds)
        if faults:
            raise PolicyFaults(tuple(faults))
        # 3. The cluster's tables are put behind it, so that lines and columns stay the author's.
        tables = [each.text for each in wide if each.text]
        if not tables:
            return examined
        try:
            return self._parse(self.path(policy), "\n".join([policy.text, *tables]))
        except PolicyFaults as error:
            names = ", ".join(each.name for each in wide if each.text)
            raise Refused(
                f"it cannot be joined with the tables of the ClusterKeyholePolicy {names}: "
                + "; ".join(describe_faults(error))
            ) from None

    def check_wide(self, wide: ClusterWide) -> None:
        """Raise PolicyFaults unless the tables of a ClusterKeyholePolicy are valid alone."""
        if wide.text:
            path = self._directory / "cluster-wide" / wide.name / "keyhole.toml"
            try:
                self._parse(path, _VERSION + wide.text)
            except PolicyFaults as error:
                moved = (
                    replace(each, span=replace(each.span, line=each.span.line - 1))
                    for each in error.faults
                )
                raise PolicyFaults(tuple(moved)) from None

    def own_secrets(self, policy: ClusterPolicy) -> set[str]:
        """The Secrets that the author of a policy names. Raises PolicyFaults."""
        return set(named_secrets(self._parse(self.path(policy), policy.text).file.loaded.policy))

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

    def remove_secret(self, policy: ClusterPolicy, name: str) -> None:
        """No pod of this node needs a Secret of a policy any more."""
        shutil.rmtree(self.path(policy).parent / SECRETS / name, ignore_errors=True)

    def clear(self) -> None:
        """Remove what an agent before this one wrote. Attack: keep a Secret on a node whose pods
        have gone while no agent was there."""
        shutil.rmtree(self._directory / "policies", ignore_errors=True)

    def remove_text(self, policy: ClusterPolicy) -> None:
        """The policy is not in force any more; its Secrets are still followed."""
        self.path(policy).unlink(missing_ok=True)

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
