"""The policy as JSON for the code in the sandbox: `/etc/keyhole/policy.json`.

An agent that reads it need not try requests that will be refused. It lists grants and limits, never
how they are enforced: no reference to a secret, no command, path, address or certificate of the
host (I1).

Its keys, of which one may be added under the same version but none changes its meaning:

`version`    1
`note`       a sentence about everything that is not named
`tunnelled`  host patterns that are passed on untouched, `name[:port]`, port 443 unless given
`presets`    package managers whose hosts are open
`services`   services with inspected hosts; a preset that is not tunnelled is one, `preset.NAME`:
  `name`, `title`, `credential` (whether the gateway adds one), `variables` (in which clients look
  for it; they hold a placeholder), `tunnelled` (hosts that are not inspected after all)
  `hosts`    each with its `hosts` and four lists of rules: `deny`, `opened`, `guarded`, `allow`.
             The first list that names a request decides; in none, it is refused. `{repo}` in a rule
             stands for each granted repository. A WebSocket is allowed by `WEBSOCKET` alone, a
             body of GET, HEAD, DELETE and OPTIONS by `GET+body` and the like, or where `bodies`
             names it and the method is allowed. A gRPC call is allowed by `GRPC service/method`
             or as the POST that it is; a GRPC rule in `deny` names all requests to its path
  `http`     null, or the one version of HTTP that clients may speak: "1.1" or "2"
  `git`      null, or `forge`, `repos`, `push`, `tags`, `protect` (null: the default branch),
             `create`, `force`, `delete`, `deny_paths`, `push_options`, `api`, as in
             keyhole.toml
  `model`    null, or what the provider of a model may do by itself when a body asks for it:
             `features` are open, `closed` are refused, as is what is named nowhere; `models` are
             patterns of the models that may be used (empty: any), `max_tokens` the longest answer
  `operations` null, or what requests may ask for where method and path do not tell: `open` are the
             policy's names and words, `closed` words that are refused, as is what is named nowhere
  `limits`   null, or `requests_per_second`, `concurrent_requests`, `bodies` and `budget` of this
             service, as in keyhole.toml; null: no other bound than the session's
`ports`      `published`: ports inside that the person can open in a browser of the host, under
             another name than localhost; `host`: ports at which localhost is the host's;
             `inbound`: peers that may connect to a port of a pod, as in keyhole.toml
`asked`      kinds of what no rule names (`hosts`, `requests`, `pushes`) that may be held until the
             person has answered, so that a slow answer is no failure; null: hosts and requests,
             while the person watches; `wait` has the seconds after which it is refused
`limits`     as in keyhole.toml; sizes in bytes, durations in seconds
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from keyhole.model.money import format_money
from keyhole.policy.asks import asked_kinds
from keyhole.policy.budget import MONEY, Budget
from keyhole.policy.policy import Limits, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.budget import ServiceLimits
    from keyhole.policy.mcp_grant import McpGrant
    from keyhole.policy.policy import Approvals, GitGrant, Policy, Service, ServiceHost

VERSION = 1

NOTE = (
    "Whatever is not named here is refused, and trying again does not help. Only the person who "
    "started this sandbox can grant more: they change keyhole.toml and accept that, which holds at "
    "once, though this file stays as it was. "
    "`keyhole why TARGET`, typed on the host, tells what would."
)

_LISTS = {
    "deny": Tier.DENY,
    "opened": Tier.OPENING,
    "guarded": Tier.GUARD,
    "allow": Tier.ALLOW,
}
"""The tiers of rules, the strongest first."""


_AMOUNTS = tuple(name for name in Budget.__struct_fields__ if name != "ask")


def disclose(policy: Policy) -> str:
    """The policy as the text of a JSON file."""
    told: dict[str, object] = {
        "version": VERSION,
        "note": NOTE,
        "tunnelled": _texts(policy.allow),
        "presets": list(policy.presets),
        "services": [_service(service) for service in policy.services],
        "ports": {
            "published": sorted({each.inner for each in policy.sandbox.publish}),
            "host": sorted(policy.sandbox.host_ports),
            "inbound": [str(each) for each in policy.sandbox.inbound],
        },
        "asked": _asked(policy.approvals),
        "wait": policy.approvals.wait,
        "limits": {name: getattr(policy.limits, name) for name in Limits.__struct_fields__},
    }
    if policy.learning:
        told["learning"] = True
    return json.dumps(told, indent=2) + "\n"


def _asked(approvals: Approvals) -> list[str] | None:
    """Not the command, which is the host's (I1); with one, there is always an answer."""
    kinds = asked_kinds(approvals, watched=False)
    return sorted(kinds) if approvals.ask is not None or kinds else None


def _service(service: Service) -> dict[str, object]:
    return {
        "name": service.name,
        "title": service.title,
        "credential": bool(service.secret) or any(h.credential for h in service.hosts),
        "variables": list(service.env) if service.secret else [],
        "tunnelled": _texts(service.passthrough),
        "hosts": [_host(host) for host in service.hosts],
        "http": service.http.value if service.http else None,
        "git": _git(service.git) if service.git else None,
        "mcp": _mcp(service.mcp) if service.mcp else None,
        "model": _model(service) if service.known_features else None,
        "operations": _operations(service) if service.has_operations else None,
        "limits": _limits(service.limits) if service.limits else None,
    }


def _model(service: Service) -> dict[str, object]:
    return {
        "features": list(service.features),
        "closed": list(service.closed_features),
        "models": list(service.models),
        "max_tokens": service.max_tokens,
    }


def _operations(service: Service) -> dict[str, object]:
    return {"open": list(service.operations), "closed": list(service.closed_operations)}


def _limits(limits: ServiceLimits) -> dict[str, object]:
    budget = limits.budget
    return {
        "requests_per_second": limits.requests_per_second,
        "concurrent_requests": limits.concurrent_requests,
        "bodies": {rule.text: size for rule, size in limits.bodies},
        "budget": {name: _amount(name, getattr(budget, name)) for name in _AMOUNTS},
    }


def _amount(name: str, value: int | None) -> int | str | None:
    return value if value is None or name not in MONEY else format_money(value)


def _host(host: ServiceHost) -> dict[str, object]:
    told: dict[str, object] = {"hosts": _texts(host.patterns)}
    for name, tier in _LISTS.items():
        told[name] = list(dict.fromkeys(r.rule.text for r in host.rules if r.tier is tier))
    told["bodies"] = [rule.text for rule in host.bodies]
    return told


def _git(git: GitGrant) -> dict[str, object]:
    return {
        "forge": git.forge.value,
        "repos": _texts(sorted(git.repos)),
        "push": _texts(git.push),
        "tags": _texts(git.tags),
        "protect": None if git.protect is None else _texts(git.protect),
        "create": git.create,
        "force": git.force,
        "delete": git.delete,
        "deny_paths": _texts(git.deny_paths),
        "push_options": sorted(git.push_options),
        "api": git.api.value,
    }


def _mcp(grant: McpGrant) -> dict[str, object]:
    return {
        "tools": _texts(grant.tools),
        "resources": _texts(grant.resources),
        "prompts": list(grant.prompts),
        "server_requests": sorted(grant.server_requests),
        "endpoints": list(grant.endpoints),
        "pin": grant.pin,
    }


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]
