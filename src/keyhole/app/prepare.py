"""From a policy to a launch: identity, programs, files, environment. Nothing is started here."""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.gitsettings import Host, git_settings
from keyhole.app.kit import Certificates, Kit, StandIns, build, inspects
from keyhole.model.secret import Source
from keyhole.model.text import visible
from keyhole.model.value import dataclass, replace
from keyhole.policy.schema import Runtime
from keyhole.sandbox import identity, programs
from keyhole.sandbox.environment import PATH, build_environment
from keyhole.sandbox.files.comparison import Comparison, Snapshot, compare, snapshot
from keyhole.sandbox.files.executables import refuse_inside
from keyhole.sandbox.files.fileplan import (
    Bind,
    Entry,
    FilePlan,
    Kind,
    Mask,
    Refused,
    Text,
    Tmpfs,
    Volume,
)
from keyhole.sandbox.files.planning import Facts, plan_files
from keyhole.sandbox.files.volumes import refuse_below_shared
from keyhole.sandbox.launch import Bounds, Launch
from keyhole.vault.command import trusted_paths
from keyhole.vault.files import NoPlace, locate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.app.containers import Berth, Pulling
    from keyhole.app.places import Places
    from keyhole.app.policyfile import Joined
    from keyhole.app.roots import Vouched
    from keyhole.app.trust import Dossier
    from keyhole.policy.policy import Policy

SHELL = "/bin/sh"
UNNAMED_USER = "sandbox"
"""What the user behind an idmapped project is called inside; the host has no name for them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that only needs to know whether a person sits in front of it."""

    base: Launch
    plan: FilePlan
    kit: Kit
    before: Snapshot
    berth: Berth | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """What the person should know of the files, once."""
        engine = self.berth.notices(self.base.bounds) if self.berth else ()
        return (*self.plan.notices, *self.kit.notices, *engine)

    def launch(self, *, interactive: bool, fault: str = "", lasting: bool = False) -> Launch:
        """The launch itself. `fault` is for tests: a step after which the helper dies."""
        return replace(self.base, interactive=interactive, fault=fault, lasting=lasting)

    def changes(self) -> tuple[Snapshot, Comparison]:
        """Files that the host may execute, as they are and what the run did to them (I11)."""
        after = snapshot(self.plan.scope)
        return after, compare(self.before, after)


@dataclass(frozen=True, slots=True)
class Intent:
    """What a person wants to run, under which policy, and where."""

    dossier: Dossier
    joined: Joined
    places: Places
    env: Mapping[str, str]
    command: tuple[str, ...]
    directory: Path
    name: str = ""
    """Of a sandbox that is kept under one."""
    home_volume: str = ""
    """What an engine keeps its home in."""
    pulling: Pulling | None = None
    """Shows how an image is pulled that the engine does not have; None: none is."""


def label_of(intent: Intent) -> str:
    """What a run is called in a list: its name or its program, never the arguments."""
    program = intent.name or intent.command[0]
    name = program.rpartition("/")[2] or program
    return "".join(c if " " <= c <= "~" else "?" for c in name)[:64]


@dataclass(frozen=True, slots=True)
class Site:
    """What is known of a sandbox before anybody vouches for its certificates."""

    found: programs.Programs
    who: identity.Identity
    user: str
    plan: FilePlan
    stand_ins: StandIns
    """What it has in place of secrets."""
    berth: Berth | None = None
    """The engine and image that it is made by and from; None for bubblewrap."""
    lasts: bool = False
    """Whether it has a name: then nothing is begun of which no record tells who clears up."""

    def begun(self, session: str) -> Site:
        """The same, with what can be begun for this session before the rest of it is ready."""
        if self.berth is None or self.lasts:
            return self
        return replace(self, berth=self.berth.begun(session, str(self.found.nft)))

    def close(self) -> None:
        """Leave nothing of that."""
        if self.berth is not None:
            self.berth.close()


def survey(intent: Intent) -> Site:
    """Judge what the sandbox will see and what the host executes for it; Refused or Missing."""
    dossier, places = intent.dossier, intent.places
    policy = intent.joined.policy
    project = dossier.file.directory
    berth = None
    if policy.sandbox.runtime is not Runtime.BWRAP:
        from keyhole.app.containers import find_berth

        berth = find_berth(policy.sandbox, intent.env, places.state, intent.pulling)
    found = programs.find(contained=berth is not None)
    who = identity.choose(project)
    if berth is not None:
        berth.refuse_unfit(who)
    user = _user_name(who.uid)
    kept = map(Path, berth.nature.trees) if berth else ()
    plan = plan_files(
        policy.sandbox,
        Facts(
            project=project,
            policy=dossier.file.path,
            home=places.home,
            user=user,
            uid=who.uid,
            gid=who.gid,
            own=(places.state, places.config, places.runtime, Path(sys.prefix), *kept),
            secrets=_secret_files(dossier, policy, places.home, intent.env),
            git=found.git,
            image=berth.accounts if berth else None,
            home_volume=intent.home_volume,
            search=tuple(intent.env.get("PATH", "").split(os.pathsep)),
        ),
    )
    _refuse_shown_logins(policy, plan, places.home, intent.env)
    # Nothing that is run or trusted on the host may lie where the sandbox can write (I11).
    referred = tuple(r.path for r in dossier.referred if r.path.is_absolute())
    roots = _roots(policy)
    settings = trusted_paths(intent.env) if any(s.secret for s in policy.services) else ()
    engine = (Path(berth.engine.path),) if berth else ()
    refuse_inside((*found.trusted, *referred, *roots, *settings, *engine), plan.writable)
    directory = intent.directory
    if not is_shown(directory, plan.entries):
        raise Refused(
            f"{directory} is not in the sandbox; go to the project (`cd {project}`), or let the"
            f' policy show this directory: sandbox.readable = ["{directory}"]'
        )
    stand_ins = StandIns(policy, secrets.token_bytes)
    return Site(found, who, user, plan, stand_ins, berth, lasts=bool(intent.name))


def prepare(intent: Intent, site: Site, vouched: Vouched | None = None) -> Prepared:
    """Everything that the sandbox will see. Nothing is vouched for where nothing is inspected."""
    joined, places = intent.joined, intent.places
    found, who, user, plan = site.found, site.who, site.user, site.plan
    policy, limits = joined.policy, joined.policy.limits
    kit = _kit(intent, site, vouched)
    of_image = dict(site.berth.image.environment) if site.berth else {}
    bound = () if site.berth else found.files  # an image has our interpreter in a volume
    files = (*plan.entries, *preset_files(joined, places.home), *kit.entries, *bound)
    refuse_below_shared(files)
    if site.berth:
        site.berth.refuse_led(files)
    base = Launch(
        command=intent.command,
        directory=str(intent.directory),
        environment=of_image
        | dict(kit.environment)
        | preset_variables(joined)
        | build_environment(
            policy.sandbox, intent.env, str(places.home), user, of_image.get("PATH", PATH), SHELL
        ),
        files=files,
        bounds=Bounds(limits.processes, limits.memory, cpus=limits.cpus or 0.0),
        uid=who.uid,
        gid=who.gid,
        maps_root=who.maps_root,
        bwrap=str(found.bwrap or ""),
        image=site.berth.image.id if site.berth else "",
        nft=str(found.nft),
        python=found.python,
    )
    return Prepared(base, plan, kit, snapshot(plan.scope), site.berth)


def _roots(policy: Policy) -> tuple[Path, ...]:
    """Where this host's roots are read, for a policy that has something to inspect."""
    if not inspects(policy):
        return ()
    from keyhole.certs.roots import find_bundle

    found = find_bundle()
    return (found,) if found else ()


def _kit(intent: Intent, site: Site, vouched: Vouched | None) -> Kit:
    """What clients inside need; without an inspected host, only what an agent may read."""
    certificates = None
    if vouched is not None:
        from keyhole.certs.truststore import java_truststore

        bundle = vouched.roots.bundle(vouched.authority)
        certificates = Certificates(vouched.authority, bundle, lambda: java_truststore(bundle))
    policy, home = intent.joined.policy, intent.places.home
    git = git_settings(policy, site.plan, Host(intent.env, home, intent.directory))
    today = datetime.date.today().isoformat()
    stores = site.berth.stores if site.berth else None
    shown = site.plan.entries
    return build(policy, certificates, shown, home, site.stand_ins, today, git=git, stores=stores)


def preset_variables(joined: Joined) -> dict[str, str]:
    """What package managers are told inside."""
    return {name: value for preset in joined.presets for name, value in preset.env}


def preset_files(joined: Joined, home: Path) -> tuple[Text, ...]:
    """Settings by which package managers with an empty home find their index; no credential."""
    files = (pair for preset in joined.presets for pair in preset.files)
    return tuple(Text(str(home / name), content) for name, content in files)


def is_shown(directory: Path, entries: Sequence[Entry]) -> bool:
    """Whether a directory of the host exists inside, so that the command can start in it.

    What is mounted last counts: a bind shows all that is below it, an empty directory shows itself
    and the directories that lead to another mount.
    """
    over = [entry for entry in entries if directory.is_relative_to(entry.target)]
    last = over[-1] if over else None
    if isinstance(last, Bind):
        return last.kind is Kind.DIR
    if isinstance(last, Mask):
        return False
    if isinstance(last, Tmpfs | Volume) and last.target == str(directory):
        return True
    return any(Path(entry.target).is_relative_to(directory) for entry in entries)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return UNNAMED_USER


def _logins(policy: Policy, home: Path, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Files of logins that the policy uses."""
    refs = [s.secret for s in policy.services if s.secret and s.secret.source is Source.LOGIN]
    if not refs:
        return ()
    from keyhole.vault.providers import locate_login

    return tuple(locate_login(ref, home, env) for ref in refs)


def _refuse_shown_logins(
    policy: Policy, plan: FilePlan, home: Path, env: Mapping[str, str]
) -> None:
    """A login is replaced when it is renewed, by us or by its client. Where its directory is shown,
    the new file, and the one that is being written, would not be masked (I1)."""
    shown = [Path(e.source) for e in plan.entries if isinstance(e, Bind) and e.kind is Kind.DIR]
    for path in _logins(policy, home, env):
        directory = Path(os.path.realpath(path)).parent
        if any(directory.is_relative_to(tree) for tree in shown):
            raise Refused(
                f"{visible(str(directory))} is shown in the sandbox, and the login in it is "
                "replaced while a run lasts; list the files that are needed from there one by one"
            )


def _secret_files(
    dossier: Dossier, policy: Policy, home: Path, env: Mapping[str, str]
) -> tuple[Path, ...]:
    """Files that secrets are read from: never seen inside, wherever they lie."""
    found = list(_logins(policy, home, env))
    for service in policy.services:
        if service.secret and service.secret.source is Source.FILE:
            with contextlib.suppress(NoPlace):  # the vault refuses it
                text = service.secret.locator
                found.append(locate(text, dossier.file.directory, home, env))
    return tuple(found)
