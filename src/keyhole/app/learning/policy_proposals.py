"""Proposals for the policy of a project, and the change that the picked ones make.

Called by `keyhole learn`. Where there is no policy yet, the change is one to a policy that grants
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import find_policy
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import known_presets, open_policy, parse_policy, with_presets
from keyhole.app.setup.policy_saving import PolicyChange, plan_change, plan_policy
from keyhole.inject.quiet_refusals import QuietRefusals
from keyhole.model.errors import Refused
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.policy_draft import EMPTY_POLICY
from keyhole.policy.proposal import KnownHosts, propose
from keyhole.policy.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.app.learning.recorded_uses import RecordedUses
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.policy.edit import RuleAddition
    from keyhole.policy.proposal import Proposal


class LearningGround(Struct, frozen=True):
    """The project's policy, or the empty one in its place, on this host."""

    path: Path
    examined: ExaminedPolicy
    places: HostPaths
    env: dict[str, str]
    catalogue: FileCatalogue

    @classmethod
    def find(cls, named: Path | None, places: HostPaths, env: dict[str, str]) -> LearningGround:
        """The policy that is named or found. Raises PolicyFaults or Refused."""
        catalogue = FileCatalogue()
        path = named or find_policy(Path.cwd(), places.home)
        if os.path.lexists(path):
            file = open_policy(path, places, catalogue)
        else:
            file = parse_policy(path, EMPTY_POLICY, places, catalogue)
        examined = examine_policy(file, places.home, env.get("PATH", ""))
        return cls(path, examined, places, env, catalogue)

    @property
    def store(self) -> AcceptanceStore:
        """The acceptances of this host."""
        return AcceptanceStore(self.places.trust)


class PolicyProposals(Struct, frozen=True):
    """The proposals, in the order in which they are numbered."""

    proposals: tuple[Proposal, ...]


def propose_for(ground: LearningGround, seen: RecordedUses) -> PolicyProposals:
    """The lines for what the project's policy would deny of the seen."""
    file = ground.examined.file
    joined = with_presets(file, ground.env, ground.places)
    profiles = FileProfiles()
    quiet = QuietRefusals(text for name in profiles for text in profiles[name].quiet)
    known = KnownHosts(known_presets(file, ground.env, ground.places), quiet.covers_connection)
    uses = {use: count.total for use, count in seen.uses.items()}
    return PolicyProposals(propose(Rulebook(joined.policy), uses, known))


def fitting(
    ground: LearningGround, picked: Sequence[Proposal]
) -> tuple[PolicyChange, list[tuple[Proposal, str]]]:
    """The change by the picked lines, and the lines that do not fit beside the others.

    Raises Refused if the policy is not the accepted one.
    """
    try:
        return _plan(ground, [_remarked(each) for each in picked]), []
    except PolicyFaults:
        pass
    kept: list[RuleAddition] = []
    left: list[tuple[Proposal, str]] = []
    for proposal in picked:
        try:
            _plan(ground, [*kept, _remarked(proposal)])
            kept.append(_remarked(proposal))
        except PolicyFaults as error:
            left.append((proposal, error.faults[0].message))
    return _plan(ground, kept), left


def _remarked(proposal: Proposal) -> RuleAddition:
    return replace(proposal.addition, remark=proposal.evidence)


def _plan(ground: LearningGround, additions: Sequence[RuleAddition]) -> PolicyChange:
    search = ground.env.get("PATH", "")
    if os.path.lexists(ground.path):
        return plan_change(
            ground.examined, additions, ground.store, ground.places, ground.catalogue, search
        )
    if not os.path.isdir(ground.examined.file.directory):
        raise Refused(f"{ground.examined.file.directory}: no such directory")
    return plan_policy(ground.examined, additions, ground.places, ground.catalogue, search)
