"""Services to propose for the MCP servers that this host's agents are configured with.

Used by `keyhole init` and `keyhole doctor`. A remote server becomes a service whose tools that read
are open; a local one runs inside the sandbox, so that only its credentials become services. No
value of an agent's file is in a proposal (`inject/configured_servers.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.catalogue import McpLogin
from keyhole.inject.service_hosts import SERVICE_HOSTS
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.text import visible
from keyhole.policy.policy_draft import DraftServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.host.configured_mcp import FoundServer
    from keyhole.inject.catalogue import Catalogue, McpServer
    from keyhole.model.https_url import HttpsUrl
    from keyhole.policy.policy import Policy

READERS = ("find_*", "get_*", "list_*", "read_*", "search_*")
"""Tools that read, by the usual names, of a server that the catalogue does not know."""

_USUAL_PATHS = frozenset(("/", "/mcp", "/mcp/", "/sse"))
"""Paths at which a login looks by itself."""
_SIGNS = re.compile("[^a-z0-9]+")
MAX_NAME = 40


class KnownSecrets(Struct, frozen=True):
    """The names of the secrets and logins of this host."""

    stored: frozenset[str]
    logins: frozenset[str]


class ServerProposal(Struct, frozen=True):
    """A service for a remote server, and who is configured with it."""

    draft: DraftServer
    url: HttpsUrl
    programs: tuple[str, ...]
    own: bool
    """Whether only the project itself names it."""


def propose_servers(
    found: Iterable[FoundServer], catalogue: Catalogue, known: KnownSecrets, taken: Iterable[str]
) -> tuple[ServerProposal, ...]:
    """A proposal for each host with a remote server. `taken` are names of other services."""
    hosts: dict[tuple[str, int], tuple[HttpsUrl, list[FoundServer]]] = {}
    # A person's own settings first: the project's may be anybody's.
    for each in sorted(found, key=lambda one: one.own):
        if (url := each.server.url) is not None:
            hosts.setdefault((url.host.name, url.port), (url, []))[1].append(each)
    names = set(taken)
    made = []
    for url, group in hosts.values():
        proposal = _propose(url, group, catalogue, known, names)
        names.add(proposal.draft.name)
        made.append(proposal)
    return tuple(made)


def _propose(
    url: HttpsUrl,
    group: list[FoundServer],
    catalogue: Catalogue,
    known: KnownSecrets,
    taken: set[str],
) -> ServerProposal:
    entry = next(
        (name for name in SERVICE_HOSTS.get(url.host.name, ()) if catalogue[name].mcp), None
    )
    server = catalogue[entry].mcp if entry and url.port == DEFAULT_PORT else None
    own, others = all(each.own for each in group), taken
    if own:
        # Attack: a project calls its server `anthropic`, and the stored key would be sent there.
        taken = taken | known.stored | known.logins
    free = entry is not None and server is not None and entry not in others
    name = entry if entry and free else _name(group[0].server.name, taken)
    has_token = any(each.server.has_token for each in group)
    secret, fix = _secret(name, server, known, has_token=has_token)
    programs = tuple(dict.fromkeys(each.program for each in group))
    title = catalogue[entry].title if entry and server else f"An MCP server at {url.host}"
    places = ", ".join(dict.fromkeys(f"{each.program} in {each.where}" for each in group))
    odd = url.path not in _USUAL_PATHS and server is None and secret.startswith("login:")
    draft = DraftServer(
        name=name,
        title=visible(f"{title}, configured for {places}"),
        secret=secret,
        host="" if name == entry else _host(url),
        login_url=url.text if odd else "",
        tools=server.reads if server else READERS,
        fix=fix,
        narrowed=any(each.server.narrowed for each in group),
    )
    return ServerProposal(draft, url, programs, own)


def _host(url: HttpsUrl) -> str:
    return url.host.name if url.port == DEFAULT_PORT else f"{url.host}:{url.port}"


def _name(given: str, taken: set[str]) -> str:
    """A service's name made of a server's."""
    plain = _SIGNS.sub("-", given.lower()).strip("-")[:MAX_NAME].strip("-") or "mcp"
    names = (plain, f"{plain}-mcp", *(f"{plain}-{number}" for number in range(2, 1000)))
    return next(name for name in names if name not in taken)


def _secret(
    name: str, server: McpServer | None, known: KnownSecrets, *, has_token: bool
) -> tuple[str, str]:
    """The reference of a secret, and the command that makes it available if it is not there."""
    login = server.login if server else McpLogin.OAUTH
    stored = f"store:{name}"
    if name in known.stored:
        return stored, ""
    if login is McpLogin.NONE:
        return "", ""
    if has_token or login is McpLogin.TOKEN:
        return stored, f"keyhole secret set {name}"
    return f"login:{name}", "" if name in known.logins else f"keyhole login {name}"


class WantedVariable(Struct, frozen=True):
    """A variable of a local server, and the service whose placeholder it would have inside."""

    service: str
    variable: str
    server: FoundServer


def wanted_variables(
    found: Iterable[FoundServer], catalogue: Catalogue
) -> tuple[WantedVariable, ...]:
    """The credentials that local servers are given, one for each service."""
    entries = {
        variable: name
        for name in reversed(tuple(catalogue))
        for variable in catalogue[name].env
        if not catalogue[name].needs_hosts
    }
    made: dict[str, WantedVariable] = {}
    for each in found:
        if each.server.program:
            for variable in each.server.variables:
                if variable in entries:
                    name = entries[variable]
                    made.setdefault(name, WantedVariable(name, variable, each))
    return tuple(made.values())


def is_granted(url: HttpsUrl, policy: Policy) -> bool:
    """Whether a service of the policy judges this server's messages."""
    return any(
        pattern.port == url.port and pattern.matches(url.host)
        for service in policy.services
        if service.mcp is not None
        for pattern in service.patterns
    )


def local_servers(found: Iterable[FoundServer]) -> Mapping[str, FoundServer]:
    """The servers that are programs, by name."""
    return {each.server.name: each for each in found if each.server.program}
