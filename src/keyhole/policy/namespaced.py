"""The keys that a policy of a namespace may not have, because the node would act for its author.

The author of such a policy administers one namespace. The agent that applies it is root on a node:
it could run commands there, read files, and reach addresses that no pod can. Only a
ClusterKeyholePolicy may have those keys, because its author administers the cluster (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.secret import SecretScheme
from keyhole.policy.policy import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.policy.document import Path
    from keyhole.policy.fault import PolicyFault
    from keyhole.policy.load import LoadedPolicy
    from keyhole.policy.policy import Policy

_CLUSTER_WIDE = "only a ClusterKeyholePolicy says how nodes reach origins"


def faults_in_namespace(loaded: LoadedPolicy) -> tuple[PolicyFault, ...]:
    """One fault for each key that a namespaced policy may not have."""
    return tuple(loaded.fault(path, message) for path, message in _faults(loaded.policy))


def _faults(policy: Policy) -> Iterator[tuple[Path, str]]:
    if policy.upstream != Upstream():
        yield ("upstream",), f"upstream: {_CLUSTER_WIDE}"
    if policy.approvals.command is not None:
        yield (
            ("approvals", "command"),
            "approvals.command: it would run on the node; only a ClusterKeyholePolicy has one",
        )
    for service in policy.services:
        secret = service.secret
        if secret is not None and secret.source is not SecretScheme.KUBE:
            yield (
                ("services", service.name, "secret"),
                f"{service.rule}.secret: a policy of a namespace names Secrets of that namespace:"
                ' secret = "kube:NAME/KEY"',
            )
    if policy.presets:
        why = "egress.presets: a node has no package managers of yours; name the hosts"
        yield ("egress", "presets"), why
    sandbox = policy.sandbox
    for name in ("host_ports", "publish"):
        if getattr(sandbox, name):
            yield ("sandbox", name), f"sandbox.{name}: ports of a node are not given to pods"
    if sandbox.pass_env:
        why = "sandbox.pass_env: variables of a node are not given to pods"
        yield ("sandbox", "pass_env"), why
    if sandbox.sign is not None:
        yield ("sandbox", "sign"), "sandbox.sign: a node has no key of yours"
