"""The doctor's rows about MCP: which servers of this host's agents a policy grants.

No server is asked. A remote one without a service is a warning and no fault of the host: an agent
inside cannot reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.proofs.doctor import DoctorResult
from keyhole.app.setup.mcp_proposals import is_granted, local_servers
from keyhole.host.configured_mcp import configured_servers

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.configured_mcp import FoundServer
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.policy.policy import Policy

MAX_NAMED = 20
"""Servers that are named in one row."""
_ID = "mcp"


def check_servers(
    host: HostEnvironment, project: Path, policy: Policy | None
) -> list[DoctorResult]:
    """A row for the remote servers and one for the local ones, where there are any. `policy` is the
    project's, if it has one."""
    found = configured_servers(host, project)
    remote = [each for each in found if each.server.url is not None]
    rows = [_remote(remote, policy)] if remote else []
    if local := list(local_servers(found).values()):
        seen = f"programs, which run inside the sandbox: {_named(local)}"
        rows.append(DoctorResult(f"{_ID} local", True, seen, vital=False))
    if flawed := [each for each in found if each.server.flaw]:
        seen = f"no service can be proposed for {_named(flawed)}: {flawed[0].server.flaw}"
        rows.append(DoctorResult(f"{_ID} urls", False, seen, vital=False))
    return rows


def _remote(remote: list[FoundServer], policy: Policy | None) -> DoctorResult:
    if policy is None:
        seen = f"remote servers of agents: {_named(remote)}"
        return DoctorResult(
            _ID, True, seen, vital=False, advice="in a project, `keyhole init` proposes services"
        )
    closed = [
        each for each in remote if each.server.url and not is_granted(each.server.url, policy)
    ]
    if not closed:
        return DoctorResult(_ID, True, f"granted by the policy here: {_named(remote)}", vital=False)
    seen = f"no service of the policy here judges {_named(closed)}: agents inside cannot reach it"
    advice = "`keyhole init --print` shows services for them, to be added to keyhole.toml"
    return DoctorResult(_ID, False, seen, advice=advice, vital=False)


def _named(found: list[FoundServer]) -> str:
    names = list(dict.fromkeys(f"{each.server.name} ({each.program})" for each in found))
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
