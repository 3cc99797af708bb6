"""Tools of MCP servers that sessions have seen, and those of them that are accepted.

A gateway tells what it saw (`SeenTool`) to the process that may write files (`app/setup/
tool_store.py`), and gets what is accepted with the policy of its next session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.text import visible
from keyhole.policy.mcp_grant import MAX_TOOLS, SeenTool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.policy.policy import Policy

MAX_SHOWN = 200
"""Characters of a tool's name that are kept."""


class ServiceTools(Struct, frozen=True):
    """The tools of one service, each with its digest."""

    accepted: Mapping[str, str] = {}
    waiting: Mapping[str, str] = {}
    """Tools as they are now that are not accepted like this."""

    def with_seen(self, seen: Iterable[SeenTool]) -> ServiceTools:
        """The same after a list of the server."""
        accepted, waiting = dict(self.accepted), dict(self.waiting)
        for tool in seen:
            waiting.pop(tool.name, None)
            if accepted.get(tool.name) == tool.digest:
                continue
            # The first list cannot be accepted a second time, by a gateway that was taken over.
            if tool.accepted and (tool.name in accepted or len(accepted) < MAX_TOOLS):
                accepted[tool.name] = tool.digest
            elif not tool.accepted and len(waiting) < MAX_TOOLS:
                waiting[tool.name] = tool.digest
        return ServiceTools(accepted, waiting)

    def with_accepted(self, names: Iterable[str]) -> ServiceTools:
        """The same, with these waiting tools accepted as they are."""
        accepted, waiting = dict(self.accepted), dict(self.waiting)
        for name in names:
            accepted[name] = waiting.pop(name)
        return ServiceTools(accepted, waiting)


def read_seen(rows: object) -> tuple[SeenTool, ...]:
    """What a data plane told, which may have been taken over: known shapes, bounded."""
    found = []
    for row in rows[:MAX_TOOLS] if isinstance(rows, list) else ():
        match row:
            case [str(name), str(digest), bool(accepted)] if len(digest) == 64:
                found.append(SeenTool(visible(name)[:MAX_SHOWN], digest, accepted))
    return tuple(found)


def grants_tools(policy: Policy, service: str) -> bool:
    """Whether a service of the policy is a server of MCP."""
    return any(each.name == service and each.mcp is not None for each in policy.services)


def with_accepted_tools(policy: Policy, known: Mapping[str, ServiceTools]) -> Policy:
    """The policy, with what is accepted of each MCP server."""
    services = tuple(
        replace(
            service,
            mcp=replace(service.mcp, accepted=tuple(sorted(known[service.name].accepted.items()))),
        )
        if service.mcp is not None and service.name in known
        else service
        for service in policy.services
    )
    return policy if services == policy.services else replace(policy, services=services)
