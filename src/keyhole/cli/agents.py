"""`keyhole agents`: lists the agents that `keyhole run NAME` knows, and how far each is set up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.agent_survey import stored_names, survey_agents
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.host.host_environment import HostEnvironment

if TYPE_CHECKING:
    import argparse

    from keyhole.app.setup.agent_survey import SurveyedAgent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """List them."""
    places = find_host_paths()
    host = HostEnvironment(env=environment(), home=places.home)
    found = survey_agents(FileProfiles(), host, stored_names(places.store))
    if options.json:
        print_json([_as_json(each) for each in found])
        return EXIT_OK
    rows = [
        (
            cell(each.profile.name),
            cell(host.shown(Path(each.program)) if each.program else "no"),
            cell(each.access.secret if each.access else "no"),
            cell(_services(each)),
        )
        for each in found
    ]
    show([Grid(_COLUMNS, tuple(rows))])
    return EXIT_OK


_COLUMNS = (
    Column("NAME"),
    Column("INSTALLED", Fit.WRAPPED),
    Column("LOGGED IN", Fit.WRAPPED),
    Column("SERVICE", Fit.WRAPPED),
)


def _services(agent: SurveyedAgent) -> str:
    chosen = agent.access
    return chosen.service if chosen else ", ".join(a.service for a in agent.profile.access)


def _as_json(agent: SurveyedAgent) -> dict[str, Any]:
    profile = agent.profile
    return {
        "id": profile.name,
        "title": profile.title,
        "sure": profile.sure.value,
        "looked_at": profile.looked_at,
        "installed": agent.program is not None,
        "program": agent.program,
        "install": profile.install,
        "logged_in": agent.access is not None,
        "secret": str(agent.access.secret) if agent.access else None,
        "service": agent.access.service if agent.access else None,
        "access": [
            {"service": each.service, "secret": str(each.secret), "fix": each.fix}
            for each in profile.access
        ],
        "env": dict(profile.env),
        "settings": [each.path for each in profile.settings],
        "copies": list(profile.copies),
        "notes": list(profile.notes),
    }
