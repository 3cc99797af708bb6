"""`keyhole init`: looks at this host and project, asks a few questions, writes keyhole.toml."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.agent_survey import stored_names, survey_agents
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import POLICY_NAME
from keyhole.cli.consent import ask
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import columns
from keyhole.cli.proposed_servers import ChosenServers, choose_servers
from keyhole.cli.schema_file import save_schema, schema_reference
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.host import project_survey
from keyhole.host.git_identity import git_identity
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.model.text import visible
from keyhole.policy.forge import repository_at
from keyhole.policy.policy_draft import (
    AGENT_KEY,
    MAKE_KEY,
    DraftService,
    DraftSigning,
    PolicyDraft,
    write_policy,
)
from keyhole.policy.target import parse_repository_url
from keyhole.vault.github_app_source import KEY_PREFIX
from keyhole.vault.memory_guard import guard_memory
from keyhole.vault.vault import Vault, VaultContext

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from keyhole.app.setup.agent_survey import SurveyedAgent
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.model.host import HostPattern

GH_TOKEN = "exec:gh auth token"  # noqa: S105 - a reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", "-y", action="store_true", help="ask nothing; accept everything found"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing policy")
    parser.add_argument("--print", action="store_true", help="print the policy; write nothing")
    parser.add_argument("--agent", metavar="NAME", help="the agent that this project uses")


def run(options: argparse.Namespace) -> int:
    """Write a policy for the current directory."""
    target = Path(POLICY_NAME)
    interactive = not options.yes and not options.print
    if interactive and not sys.stdin.isatty():
        raise CliError("no terminal to ask on; `keyhole init --yes` accepts everything found")
    if os.path.lexists(target) and not options.print and not options.force:
        if not interactive:
            raise CliError(f"{target} is there already; --force replaces it", EXIT_DENIED)
        if not ask(f"{target} is there already. Replace it?"):
            return EXIT_DENIED
    project = Path.cwd()
    places = find_host_paths()
    host = HostEnvironment(env=environment(), home=places.home, writable=(project,))
    found = survey_agents(FileProfiles(), host, stored_names(places.store))
    chosen = _choose_agents(found, options.agent, interactive=interactive)
    agree: Callable[[str], bool] = _ask_yes if interactive else _take
    draft = _draft(project, host, chosen, agree)
    servers = choose_servers(
        project,
        host,
        places,
        FileCatalogue(),
        [service.name for service in draft.services],
        interactive=interactive,
    )
    draft = replace(
        draft,
        services=(*draft.services, *servers.services),
        servers=servers.servers,
        schema=_schema(places, project, save=not options.print),
    )
    text = write_policy(draft)
    if options.print:
        print(text, end="")
        return EXIT_OK
    _write(target, text)
    print(f"wrote {target}")
    _tell_servers(servers)
    _tell_next(draft, chosen)
    return EXIT_OK


def _schema(places: HostPaths, project: Path, *, save: bool) -> str:
    """How the policy names the schema; empty where that is not there and cannot be."""
    if save:
        with contextlib.suppress(OSError):  # an editor's comfort is no reason to stop
            save_schema(places)
    return schema_reference(places, project) if places.schema.is_file() else ""


def _tell_servers(found: ChosenServers) -> None:
    for server in found.servers:
        if not server.agreed:
            print(f"services.{server.name} is a comment: only the project itself names that server")
        elif server.fix:
            print(f"services.{server.name} has no secret yet: `{server.fix}`")
    if found.local:
        print(f"these MCP servers are programs, and run inside: {', '.join(found.local)}")


def _tell_next(draft: PolicyDraft, chosen: Sequence[SurveyedAgent]) -> None:
    """Print what is missing with the command that fixes it, and what to type next."""
    for service in draft.services:
        if service.advice:
            print(service.advice)
        if service.fix:
            fixes, again = _fixes(service, chosen)
            ways = " or ".join(f"`{fix}`" for fix in fixes)
            print(f"services.{service.name} has no secret yet: {ways}, then `{again}`")
    if draft.signing is not None and not draft.signing.ready:
        print(
            f"commits are not signed: `{MAKE_KEY}` makes a key for agents, and the comment in "
            "[sandbox] names it"
        )
    installed = [agent for agent in chosen if agent.program]
    command = installed[0].profile.name if installed else "-- CMD"
    word = "next" if not installed or installed[0].access else "and then"
    print(f"{word}: `keyhole run {command}`")


def _fixes(service: DraftService, chosen: Sequence[SurveyedAgent]) -> tuple[list[str], str]:
    """The commands by which the service, or another one of the same agent, gets a secret, and the
    one that finds it afterwards."""
    again = "keyhole init --force"
    for agent in chosen:
        ways = agent.profile.access
        if any(each.service == service.name for each in ways):
            # Named, so that it is not asked for again.
            return [each.fix for each in ways], f"{again} --agent {agent.profile.name}"
    return [service.fix], again


def _draft(
    project: Path,
    host: HostEnvironment,
    chosen: Sequence[SurveyedAgent],
    agree: Callable[[str], bool],
) -> PolicyDraft:
    catalogue = FileCatalogue()
    services = _agent_services(chosen, catalogue)
    remote = project_survey.remote_url(project)
    found = _remote_service(remote, catalogue, host, project) if remote else None
    if found and agree(
        f"the git remote is {visible(remote or '')}: grant {found.repository} by {found.name}?"
    ):
        services.append(found)
    presets = tuple(
        name
        for name in project_survey.package_managers(project)
        if agree(f"this looks like a {name} project: grant its package indexes, reads only?")
    )
    return PolicyDraft(presets, tuple(services), _signing(project, host, services, agree))


def _signing(
    project: Path,
    host: HostEnvironment,
    services: Sequence[DraftService],
    agree: Callable[[str], bool],
) -> DraftSigning | None:
    """Signed commits, where a repository is granted: by the key for agents if there is one, else
    as a recommendation."""
    if not any(service.repository for service in services):
        return None
    person = git_identity(host, f"{project}/.git")
    known = bool(person.name and person.email)
    name = str(person) if known else "Name <name@example.org>"
    key = f"{AGENT_KEY}.pub"
    ready = known and (host.home / key.removeprefix("~/")).is_file()
    if ready:
        ready = agree(f"sign commits as {visible(name)} with {key}, whose key stays outside?")
    return DraftSigning(name, ready)


def _choose_agents(
    found: Sequence[SurveyedAgent], named: str | None, *, interactive: bool
) -> list[SurveyedAgent]:
    """The agents that the project uses: the one that is named, the one that the person chooses, or
    all that are ready."""
    if named is not None:
        chosen = [each for each in found if each.profile.name == named]
        if not chosen:
            names = ", ".join(each.profile.name for each in found)
            raise CliError(f"there is no profile of '{visible(named)}'; there are {names}")
        return chosen
    installed = [each for each in found if each.program]
    installed.sort(key=lambda each: each.access is None)
    if not interactive:
        ready = [each for each in installed if each.access]
        return ready or installed[:1]
    return _ask_agent(installed) if installed else []


def _ask_agent(installed: Sequence[SurveyedAgent]) -> list[SurveyedAgent]:
    print("agents on this host:")
    rows = [
        (str(number), each.profile.name, each.profile.title, _readiness(each))
        for number, each in enumerate(installed, 1)
    ]
    print("\n".join(columns(rows)))
    names = {each.profile.name: each for each in installed}
    names |= {str(number): each for number, each in enumerate(installed, 1)}
    while True:
        first = installed[0].profile.name
        print(f"which of them does this project use, or none? [{first}] ", end="", flush=True)
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if not line or answer in ("none", "no", "n", "0"):
            return []
        if not answer or answer in names:
            return [names[answer or first]]
        print(f"there is no '{visible(answer)}' in the list")


def _readiness(agent: SurveyedAgent) -> str:
    if agent.access is None:
        return "no login or key yet"
    return "logged in" if agent.access.secret.source is SecretScheme.LOGIN else "has a stored key"


def _agent_services(
    chosen: Sequence[SurveyedAgent], catalogue: FileCatalogue
) -> list[DraftService]:
    """A service for each agent; of two that share a host, the first alone."""
    made: list[DraftService] = []
    for agent in chosen:
        profile = agent.profile
        access = agent.access or profile.access[0]
        hosts = _hosts(access.service, catalogue)
        if any(p.overlaps(q) for d in made for p in _hosts(d.name, catalogue) for q in hosts):
            continue
        made.append(
            DraftService(
                access.service,
                str(access.secret),
                title=f"{profile.title}: `keyhole run {profile.name}`",
                fix="" if agent.access else access.fix,
            )
        )
    return made


def _hosts(service: str, catalogue: FileCatalogue) -> list[HostPattern]:
    return [pattern for entry in catalogue[service].hosts for pattern in entry.hosts]


def _remote_service(
    remote: str, catalogue: FileCatalogue, host: HostEnvironment, project: Path
) -> DraftService | None:
    """The service of a git remote: one of the catalogue, or a generic git host."""
    try:
        name_of_host, port, text = parse_repository_url(remote)
        path = RequestPath.parse(text)
    except Unparsable as error:
        print(f"keyhole: the remote is left out: {error}", file=sys.stderr)
        return None
    for name in catalogue:
        template = catalogue[name]
        served = (p for entry in template.hosts if entry.git for p in entry.hosts)
        if template.forge and any(p.port == port and p.matches(name_of_host) for p in served):
            repository = repository_at(template.forge, path.segments)
            if repository is None:
                return None
            secret, fix = _forge_secret(name, host, project)
            advice = _advise_app(secret, str(repository)) if name == "github" else ""
            return DraftService(name, secret, str(repository), fix=fix, advice=advice)
    repository = repository_at(Forge.GENERIC, path.segments)
    if repository is None:
        return None
    secret, fix = _forge_secret("git", host, project)
    return DraftService("git", secret, str(repository), str(name_of_host), Forge.GENERIC, fix=fix)


def _advise_app(secret: str, repository: str) -> str:
    """A line about the safest credential, unless it is used already."""
    if secret.startswith(f"{SecretScheme.GITHUB_APP}:"):
        return ""
    return (
        f"the safest token for GitHub is an app's, made for {repository} alone and renewed each "
        'hour: docs/github.md, "App tokens"'
    )


def _forge_secret(name: str, host: HostEnvironment, project: Path) -> tuple[str, str]:
    """A secret for a forge, and what makes it available if it cannot be read now."""
    places = find_host_paths()
    stored = f"store:{name}"
    names = stored_names(places.store)
    apps = [each.removeprefix(KEY_PREFIX) for each in names if each.startswith(KEY_PREFIX)]
    if name == "github" and apps:
        return f"{SecretScheme.GITHUB_APP}:{sorted(apps)[0]}", ""
    if name in names:
        return stored, ""
    gh = host.program("gh") if name == "github" else None
    if gh is None:
        return stored, f"keyhole secret set {name}"
    ref = SecretRef.parse(GH_TOKEN)
    guard_memory()  # before the token is read, though it is only asked whether there is one (I1)
    vault = Vault(
        VaultContext(
            home=host.home,
            directory=project,
            store=places.store,
            env=host.env,
            programs={ref: gh},
            writable=host.writable,
        )
    )
    fetched = vault.fetch_each((ref,))
    vault.close()
    return GH_TOKEN, "gh auth login" if fetched.missing else ""


def _write(target: Path, text: str) -> None:
    """Replace the file in one step; a symbolic link in its place is replaced, not followed."""
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
