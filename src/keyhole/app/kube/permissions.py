"""The least permissions at the API server with which each part of Keyhole works.

The only source of these rules. `keyhole kube rbac` prints them, `scripts/make_manifests.py` writes
them into the chart, and tests of a cluster compare them with the permissions that were used,
according to the API server's log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

AGENT, ADMISSION = "keyhole-agent", "keyhole-admission"
"""The service accounts, and the roles that are bound to them."""

CERTIFICATE = "keyhole-admission"
"""The Secret with the certificate of admission."""

EXEMPT = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces whose pods the API server does not ask admission about, so that a cluster can start
without it; Keyhole's own is another one."""

_OWN = "keyhole.dev"
_RBAC = "rbac.authorization.k8s.io"


class Permission(Struct, frozen=True):
    """One rule of a role, and why it is there."""

    why: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """The names of the objects that it applies to; empty: any."""

    def lines(self) -> Iterator[str]:
        """The rule as YAML."""
        yield f"# {self.why}"
        yield f"- apiGroups: {_listed((self.group,))}"
        yield f"  resources: {_listed(self.resources)}"
        if self.names:
            yield f"  resourceNames: {_listed(self.names)}"
        yield f"  verbs: {_listed(self.verbs)}"


AGENT_RULES = (
    Permission(
        "Follow the policies of all namespaces, and the cluster-wide ones.",
        _OWN,
        ("keyholepolicies", "clusterkeyholepolicies"),
        ("list", "watch"),
    ),
    Permission(
        "Write whether a policy is valid, with its faults.",
        _OWN,
        ("keyholepolicies/status", "clusterkeyholepolicies/status"),
        ("patch",),
    ),
    Permission(
        "Follow the labels of namespaces, by which cluster-wide policies select them.",
        "",
        ("namespaces",),
        ("list", "watch"),
    ),
    Permission(
        "Ask for the labels and the service account of a pod that the kubelet starts, and find the"
        " pod that connects to another one.",
        "",
        ("pods",),
        ("get", "list"),
    ),
    Permission(
        "Write refusals as events of the pod.",
        "",
        ("events",),
        ("create",),
    ),
    Permission(
        "Report which pods of the node have a door.",
        _OWN,
        ("keyholenodes",),
        ("create", "patch"),
    ),
    Permission(
        "Tie that report to the node, so that it is deleted with it.", "", ("nodes",), ("get",)
    ),
)
"""Rules of the agent, in every namespace. They allow no Secret: see `secret_role`."""

AGENT_SANDBOX_RULES = (
    Permission(
        "Find the Sandbox of a pod, where agent-sandbox is installed.",
        "agents.x-k8s.io",
        ("sandboxes",),
        ("get",),
    ),
    Permission(
        "Follow the SandboxClaims that are given warm pods.",
        "extensions.agents.x-k8s.io",
        ("sandboxclaims",),
        ("get", "list", "watch"),
    ),
)
"""Rules of the agent for pods of agent-sandbox. Without agent-sandbox they have no effect."""

AGENT_SECRETS = Permission(
    "Follow every Secret of the cluster (the value secrets.allNamespaces).",
    "", ("secrets",), ("watch",),
)  # fmt: skip

ADMISSION_RULES = (
    Permission(
        "Find the policies that select a pod, and their bounds.",
        _OWN, ("keyholepolicies", "clusterkeyholepolicies"), ("list",),
    ),
    Permission(
        "Ask for the labels of a policy's namespace, by which it is bound.",
        "", ("namespaces",), ("get",),
    ),
    Permission(
        "Ask for the pod that a scheduler binds to a node.", "", ("pods",), ("get",)
    ),
    Permission(
        "Count the pods of each policy, from what the agents report.",
        _OWN, ("keyholenodes",), ("list",),
    ),
    Permission(
        "Write that count.", _OWN, ("keyholepolicies/status",), ("patch",)
    ),
    Permission(
        "Ask whether the author of a policy may read the Secrets that it names.",
        "authorization.k8s.io", ("subjectaccessreviews",), ("create",),
    ),
    Permission(
        "Tell the API server the CA of Keyhole's webhooks.",
        "admissionregistration.k8s.io",
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        ("get", "patch"), ("keyhole",),
    ),
)  # fmt: skip
"""Rules of admission, in every namespace."""

ADMISSION_OWN_RULES = (
    Permission(
        "Make the certificate of admission. A rule cannot name an object that is not there yet.",
        "", ("secrets",), ("create",),
    ),
    Permission(
        "Share it among the pods of admission, and renew it.",
        "", ("secrets",), ("get", "update"), (CERTIFICATE,),
    ),
)  # fmt: skip
"""Rules of admission, in Keyhole's own namespace."""


def rules(permissions: Iterable[Permission]) -> str:
    """Rules as YAML, each below the reason for it."""
    return "".join(f"{line}\n" for each in permissions for line in each.lines())


def all_roles(namespace: str) -> str:
    """The roles of all parts, bound to their accounts in Keyhole's own namespace."""
    return "---\n".join((
        _role(AGENT, (*AGENT_RULES, *AGENT_SANDBOX_RULES)), _binding(AGENT, AGENT, namespace),
        _role(ADMISSION, ADMISSION_RULES), _binding(ADMISSION, ADMISSION, namespace),
        _role(ADMISSION, ADMISSION_OWN_RULES, namespace),
        _binding(ADMISSION, ADMISSION, namespace, namespace),
    ))  # fmt: skip


def secret_role(namespace: str, names: Sequence[str], own: str) -> str:
    """A role that lets the agent, whose account is in the namespace `own`, watch these Secrets of a
    namespace and no others."""
    given = Permission("Follow the Secrets that policies use.", "", ("secrets",), ("watch",),
                       tuple(names))  # fmt: skip
    name = f"{AGENT}-secrets"
    return f"{_role(name, (given,), namespace)}---\n{_binding(name, AGENT, own, namespace)}"


def _role(name: str, permissions: Sequence[Permission], namespace: str = "") -> str:
    kind = "Role" if namespace else "ClusterRole"
    body = "".join(f"  {line}\n" for line in rules(permissions).splitlines())
    return f"{_head(kind, name, namespace)}rules:\n{body}"


def _binding(role: str, account: str, own: str, namespace: str = "") -> str:
    kind = "Role" if namespace else "ClusterRole"
    return (
        f"{_head(f'{kind}Binding', role, namespace)}"
        f"roleRef: {{apiGroup: {_RBAC}, kind: {kind}, name: {role}}}\n"
        f"subjects:\n  - {{kind: ServiceAccount, name: {account}, namespace: {own}}}\n"
    )


def _head(kind: str, name: str, namespace: str) -> str:
    where = f", namespace: {namespace}" if namespace else ""
    return f"apiVersion: {_RBAC}/v1\nkind: {kind}\nmetadata: {{name: {name}{where}}}\n"


def _listed(texts: Sequence[str]) -> str:
    return json.dumps(texts)
