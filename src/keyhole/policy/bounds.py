"""The bounds of a ClusterKeyholePolicy: the most that a policy of a namespace may grant.

Admission checks them, and each agent checks again. A key that is missing sets no bound. A policy
that exceeds a bound is refused as a whole, with the place of each fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.policy import kinds
from keyhole.policy.document import parse_document
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.reader import read_settings
from keyhole.policy.schema import BY_PATH, AskKind, PolicyKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.model.host import HostPattern
    from keyhole.policy.document import Path
    from keyhole.policy.fault import PolicyFault
    from keyhole.policy.inbound import InboundRule
    from keyhole.policy.load import LoadedPolicy
    from keyhole.policy.policy import Policy, Service

OWN = "own"
"""In the list of services, stands for services that a policy describes itself."""

_UNSAID_ASK = (AskKind.HOSTS, AskKind.REQUESTS)
"""What Keyhole asks a person about if the policy does not say."""

_NAMES = kinds.list_of("names", str)
_LIMITS = tuple(
    name
    for _, name in (path for path in BY_PATH if path[0] == "limits" and len(path) == 2)
    if name != "on_decoy"
)


def _as(path: str, key: str, meaning: str) -> PolicyKey:
    """A bound with the kind of the policy's own key."""
    found = BY_PATH[tuple(key.split("."))]
    return PolicyKey(tuple(path.split(".")), found.kind, "–", meaning)


BOUND_KEYS = (
    _as("hosts", "egress.allow", "hosts that services and `egress.allow` may name"),
    PolicyKey(("services",), _NAMES, "–", "catalogue entries that may be used, and `own`"),
    _as("inbound", "sandbox.inbound", "peers that `sandbox.inbound` may name"),
    _as("approvals.ask", "approvals.ask", "what a person may be asked about"),
    _as("approvals.wait", "approvals.wait", "the longest wait for an answer"),
    *(_as(f"limits.{name}", f"limits.{name}", "the highest value") for name in _LIMITS),
)
"""Every bound; its kind is that of the policy's own key."""


class PolicyBounds(Struct, frozen=True):
    """The bounds of one ClusterKeyholePolicy; None: no bound."""

    owner: str
    hosts: tuple[HostPattern, ...] | None = None
    services: tuple[str, ...] | None = None
    inbound: tuple[InboundRule, ...] | None = None
    ask: tuple[AskKind, ...] | None = None
    wait: float | None = None
    limits: tuple[tuple[str, float], ...] = ()


def read_bounds(owner: str, text: str) -> PolicyBounds:
    """Read the bounds of the ClusterKeyholePolicy of this name. Raises PolicyFaults."""
    document = parse_document(owner, text.encode("utf-8"))
    settings, faults = read_settings(document, BOUND_KEYS)
    if faults:
        raise PolicyFaults(tuple(faults))
    found: dict[Path, Any] = {path: each.value for path, each in settings.items()}
    return PolicyBounds(
        owner,
        found.get(("hosts",)),
        found.get(("services",)),
        found.get(("inbound",)),
        found.get(("approvals", "ask")),
        found.get(("approvals", "wait")),
        tuple((str(path[1]), value) for path, value in found.items() if path[0] == "limits"),
    )


def faults_beyond(loaded: LoadedPolicy, bounds: PolicyBounds) -> tuple[PolicyFault, ...]:
    """One fault for each grant of a policy that exceeds a bound."""
    hint = f"the ClusterKeyholePolicy {bounds.owner} sets this bound"
    return tuple(
        loaded.fault(path, message, hint) for path, message in _beyond(loaded.policy, bounds)
    )


def _beyond(policy: Policy, bounds: PolicyBounds) -> Iterator[tuple[Path, str]]:
    yield from _hosts_beyond(policy, bounds)
    yield from _limits_beyond(policy, bounds)
    if bounds.services is not None:
        for service in policy.services:
            if (service.template or OWN) not in bounds.services:
                yield ("services", service.name), _service_message(service, bounds.services)
    if bounds.inbound is not None:
        for index, rule in enumerate(policy.sandbox.inbound):
            if not any(each.covers(rule) for each in bounds.inbound):
                yield ("sandbox", "inbound", index), f"'{rule}' is beyond the cluster's bound"
    if bounds.ask is not None:
        asked = _UNSAID_ASK if policy.approvals.ask is None else policy.approvals.ask
        for kind in asked:
            if kind not in bounds.ask:
                yield ("approvals", "ask"), f"nobody is asked about {kind} in this cluster"
    if bounds.wait is not None and policy.approvals.wait > bounds.wait:
        yield ("approvals", "wait"), f"the cluster's bound is {bounds.wait:g} seconds"


def _service_message(service: Service, allowed: tuple[str, ...]) -> str:
    used = service.template or "a service of your own"
    return f"{used} may not be used in this cluster; these may: {', '.join(allowed) or 'none'}"


def _hosts_beyond(policy: Policy, bounds: PolicyBounds) -> Iterator[tuple[Path, str]]:
    if bounds.hosts is None:
        return
    named: list[tuple[Path, HostPattern]] = [
        (("egress", "allow", index), each) for index, each in enumerate(policy.allow)
    ]
    for service in policy.services:
        path: Path = ("services", service.name)
        named += [(path, each) for each in (*service.patterns, *service.passthrough)]
    for path, pattern in named:
        if not any(each.covers(pattern) for each in bounds.hosts):
            yield path, f"the host {pattern} is beyond the cluster's bound"


def _limits_beyond(policy: Policy, bounds: PolicyBounds) -> Iterator[tuple[Path, str]]:
    for name, most in bounds.limits:
        value = getattr(policy.limits, name)
        if value is None or value > most:
            said = "without a bound" if value is None else f"{value:g}"
            yield ("limits", name), f"limits.{name} is {said}; the cluster's bound is {most:g}"
