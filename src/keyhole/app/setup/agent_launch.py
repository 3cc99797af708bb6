"""An agent that is run by name: its program, settings and variables, from its profile.

Called by `keyhole run` after the policy was accepted. A profile shows an agent's own files and
copies settings; hosts and credentials are the policy's alone to grant. No credential of the agent
is among the files: they are chosen by name, judged by place, and searched by shape (I1).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.setup.mcp_proposals import is_granted
from keyhole.host.agent_files import copy_files, settings_text
from keyhole.host.agent_programs import find_agent
from keyhole.inject.agent_settings import (
    fill_in,
    merge_settings,
    read_settings,
    select_settings,
    switch_settings,
    value_at,
    write_settings,
)
from keyhole.inject.carried_servers import CarriedServers, carry_servers
from keyhole.inject.stub_files import StubFile
from keyhole.model.text import visible
from keyhole.sandbox.files.credential_files import holds_credential
from keyhole.sandbox.files.credential_patterns import (
    credential_by_shape,
    gives_secret,
    name_looks_secret,
    value_looks_secret,
)
from keyhole.sandbox.files.dangerous_paths import dangerous_to_see
from keyhole.sandbox.files.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.host.agent_files import Refuses
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.host.program_trees import ProgramTrees
    from keyhole.inject.agent_profile import AgentAccess, AgentProfile
    from keyhole.policy.policy import Policy

_EXECUTABLE, _PLAIN = 0o700, 0o600
_SETTINGS_SUFFIXES = frozenset("json jsonc json5 toml yaml yml ini cfg conf properties".split())
_FRONT = "---"
"""Begins and ends the settings at the head of a Markdown file."""
_NAMED = 4
"""Files named in one note; the rest is counted."""


class AgentLaunch(Struct, frozen=True):
    """The additions of an agent's profile to a run."""

    name: str
    title: str
    command: tuple[str, ...]
    trees: tuple[str, ...]
    """Files and directories of the host that are shown read-only."""
    links: tuple[tuple[str, str], ...]
    search: tuple[str, ...]
    """Directories before those of PATH."""
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    files: tuple[StubFile, ...]
    """For the home; they belong to the sandbox."""
    quiet: tuple[str, ...]
    """Refusals that the person is not told."""
    notes: tuple[str, ...]


def prepare_agent(
    command: tuple[str, ...],
    profiles: Mapping[str, AgentProfile],
    host: HostEnvironment,
    policy: Policy,
    project: Path,
    directory: Path,
    *,
    contained: bool,
    secrets: tuple[Path, ...] = (),
    program: ProgramTrees | None = None,
) -> AgentLaunch | None:
    """The additions of the profile that fits the command's program; None if none fits.

    `contained`: the program is the image's, so that none of this host's is shown. `secrets` are
    files that the policy reads. `program` was found before.
    """
    profile = _profile_of(command[0], profiles)
    if profile is None:
        return None
    wary = replace(host, writable=(*host.writable, *_own_trees(policy, project, directory, host)))
    found = program
    if contained:
        if "/" in command[0] and not wary.trusts(directory / command[0]):
            return None
    elif found is None:
        found = find_agent(profile, wary, command[0])
        if found is None:
            return None
    names = {"project": str(project), "directory": str(directory), "home": str(host.home)}
    refuses = _refusal(host, secrets)
    copied = copy_files(profile.copies, host, refuses)
    access = _access(profile, policy)
    carried = _servers(profile, host, names, refuses, policy)
    fixed = _fixed(profile, access, policy)
    files = _settings(profile, host, names, refuses, fixed, carried.kept)
    files += [
        StubFile(
            each.path,
            each.data.decode("utf-8", "surrogateescape"),
            _EXECUTABLE if each.executable else _PLAIN,
        )
        for each in copied.files
    ]
    notes = [] if access else _unserved(profile)
    if carried.left:
        # They have no service, or a credential in their settings.
        stay = f"MCP servers that stay on the host: {_named(carried.left)}"
        notes.append(f"{stay}; `keyhole init --print` proposes services")
    if copied.refused:
        notes.append(f"left out, credentials: {_several(copied.refused)}")
    if copied.crowded:
        notes.append(f"not all of {profile.title}'s instructions and skills are copied")
    start = found.program if found else command[0]
    return AgentLaunch(
        name=profile.name,
        title=profile.title,
        command=(start, *profile.arguments, *command[1:]),
        trees=found.trees if found else (),
        links=found.links if found else (),
        search=found.search if found else (),
        environment={
            name: fill_in(value, names)
            for name, value in (*profile.env, *(access.env if access else ()))
        },
        unset=profile.unset,
        files=tuple(files),
        quiet=profile.quiet,
        notes=tuple(notes),
    )


def _own_trees(policy: Policy, project: Path, directory: Path, host: HostEnvironment) -> list[Path]:
    """The trees whose programs are the project's own, also where the sandbox cannot write them.

    Attack: a repository that is shown read-only has a `claude` in a directory of PATH, the first
    line of which names a file of the person's as its interpreter: the profile would show that.
    """
    home, here, readable = host.home.resolve(), directory.resolve(), policy.sandbox.readable
    shown = [(project / host.expand(text)).resolve() for text in readable]
    trees = [here, project.resolve(), *(tree for tree in shown if here.is_relative_to(tree))]
    return [tree for tree in trees if not home.is_relative_to(tree)]


def _profile_of(word: str, profiles: Mapping[str, AgentProfile]) -> AgentProfile | None:
    """The profile that has the name of the program."""
    return profiles.get(os.path.basename(word))


def _settings(
    profile: AgentProfile,
    host: HostEnvironment,
    names: Mapping[str, str],
    refuses: Refuses,
    fixed: list[dict[str, Any]],
    servers: Mapping[str, Any],
) -> list[StubFile]:
    """The settings files; `fixed` are Keyhole's values for each, `servers` are those that come
    along."""
    made = []
    for each, values in zip(profile.settings, fixed, strict=True):
        # A file that no key is taken from is not opened: it may hold the agent's credentials.
        text = settings_text(each.path, host, refuses) if each.keys else ""
        own = read_settings(text, each.format)
        chosen = select_settings(own, each.keys, _is_credential)
        if servers and profile.servers and profile.servers.path == each.path:
            chosen = merge_settings(chosen, {profile.servers.keys[0]: servers})
        filled = fill_in(values, names)
        if table := merge_settings(chosen, filled):
            text = write_settings(table, each.format)
            made.append(StubFile(each.path, text, fixed=filled, format=each.format))
    return made


def _fixed(
    profile: AgentProfile, access: AgentAccess | None, policy: Policy
) -> list[dict[str, Any]]:
    """The values that Keyhole writes into each settings file, as the policy's service has it."""
    service = access.service if access else ""
    used = [each for each in policy.services if service in (each.name, each.template)]
    opened = frozenset(feature for each in used for feature in each.features)
    made = [
        merge_settings(each.fixed, switch_settings(each.switches, opened))
        for each in profile.settings
    ]
    if access and made:
        made[0] = merge_settings(made[0], access.fixed)
    return made


def _servers(
    profile: AgentProfile,
    host: HostEnvironment,
    names: Mapping[str, str],
    refuses: Refuses,
    policy: Policy,
) -> CarriedServers:
    """The MCP servers of the agent's own settings that can be used inside."""
    place = profile.servers
    if place is None:
        return CarriedServers({}, ())
    own = next(each for each in profile.settings if each.path == place.path)
    found = read_settings(settings_text(own.path, host, refuses), own.format)
    tables = (value_at(found, key, names) for key in place.keys)
    given = frozenset(name for service in policy.services for name in service.env)
    carried = [
        carry_servers(
            table, lambda url: is_granted(url, policy), given, place.reference, _is_credential
        )
        for table in tables
    ]
    kept: dict[str, Any] = {}
    for each in carried:
        kept |= each.kept
    return CarriedServers(kept, tuple(name for each in carried for name in each.left))


def _is_credential(name: str, text: str) -> bool:
    # `Bash(PGPASSWORD=hunter2 psql:*)` is what "do not ask again" writes into permissions.
    if name_looks_secret(name) or value_looks_secret(text) is not None or gives_secret(text):
        return True
    return credential_by_shape(text.encode("utf-8", "replace")) is not None


def _tells_secret(name: str, data: bytes) -> bool:
    """Whether a file has a credential by its shape or, where it is settings, by its name."""
    if credential_by_shape(data) is not None:
        return True
    text = data.decode("utf-8", "replace")
    if name.rpartition(".")[2].lower() in _SETTINGS_SUFFIXES:
        return gives_secret(text)
    # Settings of one command, skill or agent stand before its text: `mcpServers`, `env`.
    before, found, _ = text.removeprefix(_FRONT).partition(f"\n{_FRONT}")
    return bool(found) and text.startswith(_FRONT) and gives_secret(before)


def _refusal(host: HostEnvironment, secrets: tuple[Path, ...]) -> Refuses:
    """Judges a file by where it really lies and by what is in it: an agent's directory may hold
    links to anywhere."""
    dangers = dangerous_to_see(
        (os.path.realpath(host.home), str(host.home)), tuple(map(str, secrets))
    )
    # These hold credentials and settings side by side: the profile's keys are all that is read.
    mixed = {os.path.realpath(host.home / name) for name in (".claude.json", ".aider.conf.yml")}

    def refuses(real: str, data: bytes) -> bool:
        if real in mixed and not data:
            return False
        if any(is_within(real, danger.path) for danger in dangers):
            return True
        where, name = os.path.split(real)
        return bool(data) and (holds_credential(where, name) or _tells_secret(name, data))

    return refuses


def _access(profile: AgentProfile, policy: Policy) -> AgentAccess | None:
    """The way to the agent's provider that the policy has."""
    served = {name for s in policy.services for name in (s.name, s.template)}
    return next((each for each in profile.access if each.service in served), None)


def _unserved(profile: AgentProfile) -> list[str]:
    """A line for a policy that has no service for the agent, with what adds one."""
    first = profile.access[0]
    return [
        f"the policy has no service for {profile.title}: add [services.{first.service}] with "
        f'secret = "{first.secret}", or let `keyhole init --force` write it'
    ]


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return ", ".join(map(visible, names[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _several(paths: tuple[str, ...]) -> str:
    return _named(tuple(f"~/{path}" for path in paths))
