"""Which agents this host has, and which of them can use a secret, for `agents` and `init`.

No program is run and no secret is read: a login counts as there when its file is, a stored secret
when the store has its name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.agent_programs import find_agent
from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import SecretScheme
from keyhole.vault.login_providers import locate_login
from keyhole.vault.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.agent_profile import AgentAccess, AgentProfile


class SurveyedAgent(Struct, frozen=True):
    """An agent, as this host has it."""

    profile: AgentProfile
    program: str | None
    """Its path; None if it is not installed."""
    access: AgentAccess | None
    """The first way to its provider whose secret is there; None if there is none."""


def survey_agents(
    profiles: Mapping[str, AgentProfile], host: HostEnvironment, stored: Iterable[str]
) -> tuple[SurveyedAgent, ...]:
    """Every agent that has a profile. `stored` are the names of the store's secrets."""
    names = frozenset(stored)
    return tuple(_survey(profiles[name], host, names) for name in profiles)


def stored_names(store: Path) -> tuple[str, ...]:
    """The names of the secrets in the store; none where it cannot be read."""
    try:
        return tuple(entry.name for entry in Store(store).entries())
    except ResourceUnusable:
        return ()


def _survey(profile: AgentProfile, host: HostEnvironment, stored: frozenset[str]) -> SurveyedAgent:
    found = find_agent(profile, host)
    ready = (each for each in profile.access if _is_there(each, host, stored))
    return SurveyedAgent(profile, found.program if found else None, next(ready, None))


def _is_there(access: AgentAccess, host: HostEnvironment, stored: frozenset[str]) -> bool:
    ref = access.secret
    if ref.source is SecretScheme.LOGIN:
        return os.path.isfile(locate_login(ref, host.home, host.env))
    return ref.source is SecretScheme.STORE and ref.locator in stored
