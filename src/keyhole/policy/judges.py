"""The judge of a service's bodies, chosen by its catalogue entry and its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.repository import Forge
from keyhole.policy.forge_bodies import ForgeBodies
from keyhole.policy.mcp.judge import McpJudge
from keyhole.policy.model_features import ModelJudge
from keyhole.policy.operations import OperationJudge

if TYPE_CHECKING:
    from keyhole.policy.body import BodyJudge
    from keyhole.policy.policy import Service


def make_judge(service: Service) -> BodyJudge | None:
    """A new judge for a session; None if bodies of the service are not judged."""
    if service.mcp is not None:
        return McpJudge(service.name, service.mcp)
    if any(host.judged for host in service.hosts):
        return ModelJudge(service)
    if any(host.operations for host in service.hosts):
        return OperationJudge(service)
    git = service.git
    if git is not None and git.forge in (Forge.GITHUB, Forge.GITLAB):
        return ForgeBodies(service, git)
    return None
