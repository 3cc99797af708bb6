"""The MCP servers of this host's agents: what `keyhole init` asks about them and writes.

Called by `init.py`. The names come from files that may be the project's own, so everything shown
passes `visible`, and without a person to ask nothing that only the project names is granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.setup.agent_survey import stored_names
from keyhole.app.setup.login_list import list_logins
from keyhole.app.setup.mcp_proposals import (
    KnownSecrets,
    local_servers,
    propose_servers,
    wanted_variables,
)
from keyhole.cli.consent import ask
from keyhole.host.configured_mcp import configured_servers
from keyhole.model.text import visible
from keyhole.policy.policy_draft import DraftServer, DraftService

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.mcp_proposals import ServerProposal, WantedVariable
    from keyhole.host.host_environment import HostEnvironment


class ChosenServers(Struct, frozen=True):
    """The servers that the policy grants, and the services of local ones."""

    servers: tuple[DraftServer, ...] = ()
    services: tuple[DraftService, ...] = ()
    local: tuple[str, ...] = ()
    """Names of local servers, which run inside as programs."""


def choose_servers(
    project: Path,
    host: HostEnvironment,
    places: HostPaths,
    catalogue: FileCatalogue,
    taken: Iterable[str],
    *,
    interactive: bool,
) -> ChosenServers:
    """Propose each server, and ask about it if there is somebody to ask."""
    found = configured_servers(host, project)
    if not found:
        return ChosenServers()
    names = set(taken)
    stored = frozenset(stored_names(places.store))
    logins = frozenset(each.name for each in list_logins(host.home, host.env))
    proposals = propose_servers(found, catalogue, KnownSecrets(stored, logins), names)
    servers = tuple(
        made for each in proposals if (made := _choose(each, interactive=interactive)) is not None
    )
    names |= {each.name for each in servers}
    services = tuple(
        _variable(each, stored)
        for each in wanted_variables(found, catalogue)
        if each.service not in names
        and (not interactive or ask(_about_variable(each), default=True))
    )
    local = (visible(f"{name} ({each.program})") for name, each in local_servers(found).items())
    return ChosenServers(servers, services, tuple(local))


def _choose(proposal: ServerProposal, *, interactive: bool) -> DraftServer | None:
    draft = proposal.draft
    # Attack: a cloned project names a server of its own, to which an agent would then talk.
    theirs = proposal.own and bool(draft.host)
    if not interactive:
        return replace(draft, agreed=not theirs)
    who = "this project" if proposal.own else " and ".join(proposal.programs)
    tools = ", ".join(draft.tools)
    question = f"{who} has an MCP server at {proposal.url.host}: grant its tools {tools}?"
    return draft if ask(visible(question), default=not theirs) else None


def _about_variable(each: WantedVariable) -> str:
    return visible(
        f"the local MCP server {each.server.server.name} of {each.server.program} wants "
        f"{each.variable}: grant {each.service}, with a placeholder inside?"
    )


def _variable(each: WantedVariable, stored: frozenset[str]) -> DraftService:
    title = f"For the MCP server {each.server.server.name}, which is given {each.variable}"
    fix = "" if each.service in stored else f"keyhole secret set {each.service}"
    return DraftService(each.service, f"store:{each.service}", title=visible(title), fix=fix)
