"""`keyhole init`: look at this host and project, ask little, write keyhole.toml."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.places import POLICY_NAME
from keyhole.cli.consent import ask
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places
from keyhole.host import look
from keyhole.host.surroundings import Surroundings
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.model.text import visible
from keyhole.policy.draft import Draft, DraftService, write
from keyhole.policy.forge import repository_at
from keyhole.policy.target import parse_repository_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

AGENT_SERVICES = {
    "claude": "anthropic",
    "codex": "openai",
    "gemini": "gemini",
    "copilot": "github-copilot",
}
"""Which service an agent needs; agents that work with any provider are left to the person."""


def run(options: argparse.Namespace) -> int:
    """Write a policy for the directory it is run in."""
    target = Path(POLICY_NAME)
    interactive = not options.yes and not options.print
    if interactive and not sys.stdin.isatty():
        raise CliError("no terminal to ask on; `keyhole init --yes` takes what is found")
    if os.path.lexists(target) and not options.print and not options.force:
        if not interactive:
            raise CliError(f"{target} is there already; --force replaces it", EXIT_DENIED)
        if not ask(f"{target} is there already. Replace it?"):
            return EXIT_DENIED
    project = Path.cwd()
    surroundings = Surroundings(env=environment(), home=find_places().home, writable=(project,))
    agree: Callable[[str], bool] = _ask_yes if interactive else _take
    text = write(_draft(project, surroundings, agree))
    if options.print:
        print(text, end="")
        return EXIT_OK
    _write(target, text)
    print(f"wrote {target}. Next: `keyhole check`, and put secrets where it names them.")
    return EXIT_OK


def _draft(project: Path, surroundings: Surroundings, agree: Callable[[str], bool]) -> Draft:
    agents = look.agents(surroundings)
    services: list[DraftService] = []
    for agent in agents:
        name = AGENT_SERVICES.get(agent)
        if name and agree(f"{agent} is installed: grant its API ({name})?"):
            services.append(DraftService(name, f"store:{name}"))
    remote = look.git_remote(project)
    found = _remote_service(remote, has_gh="gh" in agents) if remote else None
    if found and agree(
        f"the git remote is {visible(remote or '')}: grant {found.repository} by {found.name}?"
    ):
        services.append(found)
    presets = tuple(
        name
        for name in look.package_managers(project)
        if agree(f"this looks like a {name} project: grant its package indexes, reads only?")
    )
    return Draft(presets, tuple(services))


def _remote_service(remote: str, *, has_gh: bool) -> DraftService | None:
    """The service that serves a remote: the catalogue's, or a generic git host."""
    try:
        host, port, text = parse_repository_url(remote)
        path = RequestPath.parse(text)
    except Unparsable as error:
        print(f"keyhole: the remote is left out: {error}", file=sys.stderr)
        return None
    catalogue = FileCatalogue()
    for name in catalogue:
        template = catalogue[name]
        served = (p for entry in template.hosts if entry.git for p in entry.hosts)
        if template.forge and any(p.port == port and p.matches(host) for p in served):
            repository = repository_at(template.forge, path.segments)
            secret = "exec:gh auth token" if has_gh and name == "github" else f"store:{name}"
            return DraftService(name, secret, str(repository)) if repository else None
    repository = repository_at(Forge.GENERIC, path.segments)
    if repository is None:
        return None
    return DraftService("git", "store:git", str(repository), str(host), Forge.GENERIC)


def _write(target: Path, text: str) -> None:
    """Replace the file in one step; a link left in its place is replaced, not followed."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".keyhole-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    umask = os.umask(0)
    os.umask(umask)
    Path(name).chmod(0o666 & ~umask)
    Path(name).replace(target)


def _ask_yes(question: str) -> bool:
    return ask(question, default=True)


def _take(question: str) -> bool:
    del question
    return True
