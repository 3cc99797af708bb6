"""What a policy of a cluster's namespace may not say, since the node would do it for its author.

The author of such a policy administers one namespace. The agent that obeys it is root on a node: it
could run commands there, read files, and reach addresses that no pod does. Those keys belong to the
cluster-wide policy, whose author administers the cluster (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.secret import SecretScheme
from keyhole.policy.policy import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.policy.policy import Policy

_CLUSTER_WIDE = "only a ClusterKeyholePolicy says how nodes reach origins"


def faults_in_namespace(policy: Policy) -> tuple[str, ...]:
    """One line for each key that a namespaced policy may not have."""
    return tuple(_faults(policy))


def _faults(policy: Policy) -> Iterator[str]:
    if policy.upstream != Upstream():
        yield f"upstream: {_CLUSTER_WIDE}"
    if policy.approvals.command is not None:
        yield "approvals.command: it would run on the node; only a ClusterKeyholePolicy has one"
    for service in policy.services:
        secret = service.secret
        if secret is not None and secret.source is not SecretScheme.KUBE:
            yield (
                f"{service.rule}.secret: a policy of a namespace names Secrets of that namespace:"
                ' secret = "kube:NAME/KEY"'
            )
    if policy.presets:
        yield "egress.presets: a node has no package managers of yours; name the hosts"
    sandbox = policy.sandbox
    if sandbox.host_ports or sandbox.publish:
        yield "sandbox: ports of a node are not given to pods"
    if sandbox.pass_env:
        yield "sandbox.pass_env: variables of a node are not given to pods"
    if sandbox.sign is not None:
        yield "sandbox.sign: a node has no key of yours"
