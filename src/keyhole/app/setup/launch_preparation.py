"""Prepares a launch from a policy: identity, programs, files, environment. Starts nothing."""

from __future__ import annotations

import datetime
import os
import pwd
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.setup.client_setup import (
    ClientSetup,
    SandboxCertificates,
    SessionPlaceholders,
    build_client_setup,
    inspects_tls,
)
from keyhole.app.setup.git_settings import GitHostSettings, git_settings
from keyhole.app.setup.kept_home import HomeRequest, SandboxHome, open_home
from keyhole.app.setup.secret_paths import refuse_shown_logins, refuse_unhidden, secret_files
from keyhole.model.errors import Refused
from keyhole.policy.schema import RuntimeName
from keyhole.sandbox import identity, programs
from keyhole.sandbox.empty_network import ports_text
from keyhole.sandbox.environment import PATH, build_environment
from keyhole.sandbox.files.comparison import Comparison, Snapshot, compare_snapshots, take_snapshot
from keyhole.sandbox.files.config_copies import with_config_copies
from keyhole.sandbox.files.inside_path import resolve_inside
from keyhole.sandbox.files.mount_plan import (
    Bind,
    Entry,
    KeptTree,
    Mask,
    MountKind,
    MountPlan,
    Symlink,
    TextFile,
    Tmpfs,
    Volume,
)
from keyhole.sandbox.files.mount_planning import PlanningFacts, plan_mounts
from keyhole.sandbox.files.trusted_programs import refuse_writable_programs
from keyhole.sandbox.files.volumes import refuse_below_shared
from keyhole.sandbox.launch import Launch, ResourceLimits, ReviewView
from keyhole.vault.source_paths import trusted_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.app.setup.agent_launch import AgentLaunch
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_file import PolicyWithPresets
    from keyhole.app.setup.trusted_roots import SandboxTrust
    from keyhole.policy.learning_mode import LearningMode
    from keyhole.policy.policy import Policy, Sandbox
    from keyhole.sandbox.containers.container_target import ContainerTarget, Pulling

SHELL = "/bin/sh"

PODS_ALONE = "sandbox.inbound: only a pod of Kubernetes has peers; see sandbox.publish"

UNNAMED_USER = "sandbox"
"""The name inside of the user of an idmapped project, which has no name on the host."""


class PreparedLaunch(Struct, frozen=True):
    """A launch that is complete, except whether a person sits at a terminal."""

    base: Launch
    plan: MountPlan
    kit: ClientSetup
    before: Snapshot
    container_target: ContainerTarget | None = None
    kept: SandboxHome = SandboxHome()

    @property
    def notices(self) -> tuple[str, ...]:
        """Notes about the files for the person, printed once."""
        engine = self.container_target.notices(self.base.bounds) if self.container_target else ()
        return (*self.plan.notices, *self.kit.notices, *engine)

    def launch(self, *, interactive: bool, fault: str = "", lasting: bool = False) -> Launch:
        """The launch itself. `fault` is for tests: a step after which the helper dies. A launch
        with views needs their layers, see `app/run/held_changes.py`."""
        return replace(self.base, interactive=interactive, fault=fault, lasting=lasting)

    def changes(self) -> tuple[Snapshot, Comparison]:
        """Files that the host may execute, as they are now, and how the run changed them (I11)."""
        after = take_snapshot(self.plan.scope)
        return after, compare_snapshots(self.before, after)


class RunRequest(Struct, frozen=True):
    """The command that a person wants to run, under which policy, and where."""

    examined: ExaminedPolicy
    joined: PolicyWithPresets
    places: HostPaths
    env: Mapping[str, str]
    command: tuple[str, ...]
    directory: Path
    name: str = ""
    """The name of a named sandbox."""
    home_volume: str = ""
    """The engine's volume for its home."""
    agent: AgentLaunch | None = None
    """The additions of the profile of the command's program."""
    learning: LearningMode | None = None
    """What a person agreed to, for a learning run."""
    pulling: Pulling | None = None
    """Shows the progress of a pull, if the engine lacks the image; None: it is not pulled."""


MAX_LABEL = 64
"""Characters of a label, which is a column of a table."""


def label_of(intent: RunRequest) -> str:
    """The run's name in a list: its name or its program, never the arguments. A pod's name has its
    namespace before it; of a long one, the beginning and the end are shown."""
    name = intent.name
    if not name:
        program = intent.command[0]
        name = program.rpartition("/")[2] or program
    shown = "".join(c if " " <= c <= "~" else "?" for c in name)
    if len(shown) <= MAX_LABEL:
        return shown
    half = MAX_LABEL // 2
    return f"{shown[:half]}~{shown[1 - half :]}"


class SurveyedSandbox(Struct, frozen=True):
    """A planned sandbox, before its certificates exist."""

    found: programs.SandboxPrograms
    who: identity.Identity
    user: str
    plan: MountPlan
    stand_ins: SessionPlaceholders
    """The session's placeholders."""
    container_target: ContainerTarget | None = None
    """The engine and image that it is made by and from; None for bubblewrap."""
    kept: SandboxHome = SandboxHome()
    """The directories that outlive it, in use."""
    ports: str = ""
    """Its ports that are joined to the host's."""
    lasts: bool = False
    """Whether it is a named sandbox: then nothing starts before a record names its owner."""

    def begun(self, session: str) -> SurveyedSandbox:
        """The same, with everything begun that can be before the rest of the session is ready."""
        if self.container_target is None or self.lasts:
            return self
        begun = self.container_target.begun(session, str(self.found.nft), self.ports)
        return replace(self, container_target=begun)

    def close(self) -> None:
        """Release all of it."""
        self.kept.close()
        if self.container_target is not None:
            self.container_target.close()


def survey_sandbox(intent: RunRequest) -> SurveyedSandbox:
    """Judge the files that the sandbox will see, and the programs that the host executes for it.

    Raises Refused, ResourceUnusable.
    """
    policy = intent.joined.policy
    if policy.sandbox.inbound:
        raise Refused(PODS_ALONE)
    container_target = None
    if policy.sandbox.runtime is not RuntimeName.BWRAP:
        from keyhole.sandbox.containers.container_target import find_container_target

        container_target = find_container_target(
            policy.sandbox, intent.env, intent.places.state, intent.pulling
        )
    found = programs.find_programs(contained=container_target is not None)
    who = identity.choose_identity(intent.examined.file.directory)
    if container_target is not None:
        container_target.refuse_unfit(who)
    path, homes = intent.examined.file.path, intent.places.homes
    kept = open_home(HomeRequest(policy, path, homes, intent.agent is not None, intent.name), who)
    try:
        user = _user_name(who.uid)
        plan = _plan(intent, found, who, user, kept, container_target)
    except BaseException:
        kept.close()
        raise
    stand_ins = SessionPlaceholders(policy, secrets.token_bytes)
    ports = ports_text(policy.sandbox.host_ports, publishes=bool(policy.sandbox.publish))
    return SurveyedSandbox(
        found, who, user, plan, stand_ins, container_target, kept, ports, lasts=bool(intent.name)
    )


def _plan(
    intent: RunRequest,
    found: programs.SandboxPrograms,
    who: identity.Identity,
    user: str,
    kept: SandboxHome,
    container_target: ContainerTarget | None,
) -> MountPlan:
    """The mount plan, judged with everything that the host runs or trusts."""
    examined, places = intent.examined, intent.places
    policy, project = intent.joined.policy, examined.file.directory
    of_engine = map(Path, container_target.traits.trees) if container_target else ()
    secrets_read = secret_files(policy, examined.file.directory, places.home, intent.env)
    plan = plan_mounts(
        _with_program(policy.sandbox, intent.agent),
        PlanningFacts(
            project=project,
            policy=examined.file.path,
            home=places.home,
            user=user,
            uid=who.uid,
            gid=who.gid,
            own=(places.state, places.config, places.runtime, Path(sys.prefix), *of_engine),
            secrets=secrets_read,
            git=found.git,
            image=container_target.accounts if container_target else None,
            home_volume=intent.home_volume,
            kept_home=kept.home,
            kept_caches=kept.caches,
            search=tuple(intent.env.get("PATH", "").split(os.pathsep)),
        ),
    )
    if container_target is None:
        plan = with_config_copies(plan)
    refuse_shown_logins(policy, plan, places.home, intent.env)
    refuse_unhidden(secrets_read, plan)
    # No program or file that the host runs or trusts may be in a tree that the sandbox can write
    # (I11).
    referred = tuple(r.path for r in examined.referred if r.path.is_absolute())
    roots = _roots(policy)
    settings = trusted_paths(intent.env) if any(s.secret for s in policy.services) else ()
    engine = (Path(container_target.engine.path),) if container_target else ()
    refuse_writable_programs(
        (*found.trusted, *referred, *roots, *settings, *engine), (*plan.writable, *kept.trees)
    )
    directory = intent.directory
    if not is_shown(directory, plan.entries):
        raise Refused(
            f"{directory} is not in the sandbox; go to the project (`cd {project}`), or let the"
            f' policy show this directory: sandbox.readable = ["{directory}"]'
        )
    return plan


def prepare_launch(
    intent: RunRequest, site: SurveyedSandbox, sandbox_trust: SandboxTrust | None = None
) -> PreparedLaunch:
    """Everything that the sandbox will see. Without `trust`, nothing is inspected and no CA is
    added."""
    joined, places = intent.joined, intent.places
    found, who, user, plan = site.found, site.who, site.user, site.plan
    policy, limits = joined.policy, joined.policy.limits
    kit = _kit(intent, site, sandbox_trust)
    of_image = dict(site.container_target.image.environment) if site.container_target else {}
    bound = () if site.container_target else found.files  # an image has our interpreter in a volume
    links = program_links(intent.agent, plan.entries)
    files = (*plan.entries, *links, *preset_files(joined, places.home), *kit.entries, *bound)
    refuse_below_shared(files)
    if site.container_target:
        site.container_target.refuse_led(files)
    agent = intent.agent
    base = Launch(
        command=agent.command if agent else intent.command,
        directory=str(intent.directory),
        environment=of_image
        | {k: v for k, v in kit.environment.items() if not agent or k not in agent.unset}
        | preset_variables(joined)
        | dict(site.kept.variables)
        | (dict(agent.environment) if agent else {})
        | with_search(
            build_environment(
                policy.sandbox,
                intent.env,
                str(places.home),
                user,
                of_image.get("PATH", PATH),
                shell_inside(intent.env.get("SHELL", ""), plan.entries),
            ),
            agent.search if agent else (),
        ),
        files=files,
        bounds=ResourceLimits(limits.processes, limits.memory, cpus=limits.cpus or 0.0),
        uid=who.uid,
        gid=who.gid,
        maps_root=who.maps_root,
        bwrap=str(found.bwrap or ""),
        image=site.container_target.image.id if site.container_target else "",
        nft=str(found.nft),
        python=found.python,
        kept_bytes=limits.home if site.kept.opened else 0,
        views=tuple(ReviewView(tree) for tree in plan.reviewed),
        ports=site.ports,
    )
    before = take_snapshot(plan.scope)
    return PreparedLaunch(base, plan, kit, before, site.container_target, site.kept)


def shell_inside(own: str, entries: Sequence[Entry]) -> str:
    """The person's own shell, where the sandbox shows it; else the system's."""
    if not own.startswith("/") or not own.isprintable():
        return SHELL
    found = resolve_inside(own, entries)
    return own if found is not None and found.is_file else SHELL


def _roots(policy: Policy) -> tuple[Path, ...]:
    """The files of this host's roots, for a policy that inspects something."""
    if not inspects_tls(policy):
        return ()
    from keyhole.certs.roots import find_bundle

    found = find_bundle()
    return (found,) if found else ()


def _truststore(bundle: bytes) -> bytes:
    from keyhole.certs.truststore import java_truststore

    return java_truststore(bundle)


def _kit(
    intent: RunRequest, site: SurveyedSandbox, sandbox_trust: SandboxTrust | None
) -> ClientSetup:
    """The files for clients inside; without an inspected host, only those for agents."""
    certificates = None
    if sandbox_trust is not None:
        from keyhole.app.setup.root_reader import sandbox_bundle

        bundle = sandbox_bundle(sandbox_trust.roots, sandbox_trust.authority)
        certificates = SandboxCertificates(
            sandbox_trust.authority, bundle, lambda: _truststore(bundle)
        )
    policy, home = intent.joined.policy, intent.places.home
    inside = site.container_target
    interpreter = inside.interpreter if inside else (site.found.python,)
    host = GitHostSettings(intent.env, home, intent.directory, interpreter=interpreter)
    git = git_settings(policy, site.plan, host)
    today = datetime.date.today().isoformat()
    stores = site.container_target.stores if site.container_target else None
    shown = site.plan.entries
    own = intent.agent.files if intent.agent else ()
    return build_client_setup(
        policy,
        certificates,
        shown,
        home,
        site.stand_ins,
        today,
        git=git,
        stores=stores,
        own_files=own,
        left=site.kept.read,
    )


def _with_program(sandbox: Sandbox, agent: AgentLaunch | None) -> Sandbox:
    """The policy's sandbox, with the trees of an agent's program shown read-only. They are judged
    and searched like the policy's own (I1)."""
    if agent is None:
        return sandbox
    own = frozenset((*sandbox.readable, *sandbox.writable))
    trees = tuple(tree for tree in agent.trees if tree not in own)
    return replace(sandbox, readable=(*sandbox.readable, *trees))


def program_links(agent: AgentLaunch | None, entries: Sequence[Entry]) -> tuple[Symlink, ...]:
    """The links that lead to an agent's program, where they are not shown already."""
    found = []
    for link, target in agent.links if agent else ():
        place = resolve_inside(link, entries)
        if (
            place
            and place.path == link
            and (place.is_free or isinstance(place.entry, Tmpfs | KeptTree))
        ):
            found.append(Symlink(link, target))
    return tuple(found)


def with_search(environment: dict[str, str], search: Sequence[str]) -> dict[str, str]:
    """The variables, with these directories before the others in PATH."""
    if not search:
        return environment
    return environment | {"PATH": os.pathsep.join((*search, environment["PATH"]))}


def preset_variables(joined: PolicyWithPresets) -> dict[str, str]:
    """Variables for package managers inside."""
    return {name: value for preset in joined.presets for name, value in preset.env}


def preset_files(joined: PolicyWithPresets, home: Path) -> tuple[TextFile, ...]:
    """Settings by which package managers with an empty home find their index; no credential."""
    files = (pair for preset in joined.presets for pair in preset.files)
    return tuple(TextFile(str(home / name), content) for name, content in files)


def is_shown(directory: Path, entries: Sequence[Entry]) -> bool:
    """Whether a directory of the host exists inside, so that the command can start in it.

    The last mount counts: a bind shows all that is below it, an empty directory shows itself
    and the directories that lead to another mount.
    """
    over = [entry for entry in entries if directory.is_relative_to(entry.target)]
    last = over[-1] if over else None
    if isinstance(last, Bind):
        return last.kind is MountKind.DIR
    if isinstance(last, Mask):
        return False
    if isinstance(last, Tmpfs | KeptTree | Volume) and last.target == str(directory):
        return True
    return any(Path(entry.target).is_relative_to(directory) for entry in entries)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return UNNAMED_USER
