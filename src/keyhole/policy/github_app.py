"""What a token of a GitHub App may do for a service: exactly what its grant needs.

Pure. `services.py` checks a service that names an app, `vault/github_app_source.py` asks for the
token. GitHub gives a token for repositories of one owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.https_url import HttpsUrl
from keyhole.model.repository import Forge
from keyhole.policy.schema import ApiAccess

if TYPE_CHECKING:
    from keyhole.policy.policy import GitGrant, Service

MAX_REPOSITORIES = 500
"""Repositories of one token, GitHub's own limit."""

_WORKFLOWS = (".github", "workflows", "x.yml")
_READ, _WRITE = "read", "write"


class AppGrant(Struct, frozen=True):
    """A token's bounds, and where it is asked for."""

    api: HttpsUrl
    """The root of the REST interface."""
    owner: str
    repositories: tuple[str, ...]
    """Names without their owner."""
    needed: tuple[tuple[str, str], ...]
    """Permissions without which the grant cannot be used."""
    useful: tuple[tuple[str, str], ...] = ()
    """Permissions that are asked for if the app has them."""


def app_grant(service: Service) -> AppGrant:
    """The bounds of the token of a service. Raises Unparsable with what to change."""
    grant = service.git
    if grant is None or grant.forge is not Forge.GITHUB:
        raise Unparsable("an app of GitHub is for a service of GitHub", 'forge = "github"')
    owners = sorted({repository.path[0] for repository in grant.repos})
    if not owners:
        raise Unparsable(
            "a token of an app is for repositories that are named", 'repos = ["acme/widgets"]'
        )
    if len(owners) > 1 or len(grant.repos) > MAX_REPOSITORIES:
        raise Unparsable(
            f"a token of an app is for at most {MAX_REPOSITORIES} repositories of one owner, not "
            f"of {' and '.join(owners)}"
        )
    names = tuple(sorted(repository.path[-1] for repository in grant.repos))
    return AppGrant(_api(service), owners[0], names, _needed(grant), _useful(grant))


def _needed(grant: GitGrant) -> tuple[tuple[str, str], ...]:
    writes = grant.push or grant.tags or grant.api is ApiAccess.MERGE
    found = {"metadata": _READ, "contents": _WRITE if writes else _READ}
    if grant.api is not ApiAccess.OFF:
        opens = _READ if grant.api is ApiAccess.READ else _WRITE
        found |= {"pull_requests": opens, "issues": opens}
    # Without this permission GitHub itself refuses pushes that change workflows.
    if grant.push and not any(glob.matches(_WORKFLOWS) for glob in grant.deny_paths):
        found["workflows"] = _WRITE
    return tuple(found.items())


def _useful(grant: GitGrant) -> tuple[tuple[str, str], ...]:
    """What CI said: `gh pr checks`, `gh run list`."""
    if grant.api is ApiAccess.OFF:
        return ()
    return (("actions", _READ), ("checks", _READ), ("statuses", _READ))


def _api(service: Service) -> HttpsUrl:
    """`https://api.HOST` where such a host is one of the service's, as at github.com and ghe.com;
    else a server of one's own, whose interface lies below `/api/v3`."""
    ours = [p for host in service.hosts for p in host.patterns if host.inject and not p.subdomains]
    named = [p for p in ours if p.host.labels[0] == "api"]
    if not ours:
        raise Unparsable("which host's app is it?", 'hosts = ["github.corp.example"]')
    chosen, path = (named[0], "") if named else (ours[0], "/api/v3")
    port = "" if chosen.port == DEFAULT_PORT else f":{chosen.port}"
    return HttpsUrl.parse(f"https://{chosen.host}{port}{path}")
