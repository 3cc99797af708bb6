"""Runs an installed agent once, in a sandbox, against a trap on loopback, and compares its requests
with its profile and its service.

Called by `keyhole doctor --agents`. The sandbox, its door and the gateway are those of `keyhole
run NAME`; the policy has the agent's service with a secret that was made up for the trial. Every
host of that service leads to the trap, and no other name is resolved, so nothing leaves this
machine. The agent finds an empty home: its own settings and login are neither read nor written.

Then it is started once more for each variable that may name trusted roots, with the hosts tunnelled
to the trap, until its first handshake has succeeded or failed.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.proofs.agent_requests import AgentRequest, find_requests
from keyhole.app.proofs.provider_answers import ANSWER
from keyhole.app.proofs.provider_trap import ProviderTrap, TrapMeeting, serve_trap
from keyhole.app.proofs.runtime_choice import unattended_runtime
from keyhole.app.run.own_gateway_setup import prepare_own_gateway
from keyhole.app.run.run import Run, UnattendedListener, execute_run
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_events import new_session
from keyhole.app.setup.agent_launch import prepare_agent
from keyhole.app.setup.host_paths import POLICY_NAME, HostPaths
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_acceptance import examine_policy
from keyhole.app.setup.policy_file import PolicyWithPresets, open_policy
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogFilter, LogReader
from keyhole.host.agent_programs import find_agent
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.host import Host
from keyhole.model.secret import SecretScheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.audit.log_line import LogRecord
    from keyhole.host.program_trees import ProgramTrees
    from keyhole.inject.agent_profile import AgentAccess, AgentProfile
    from keyhole.inject.catalogue import Catalogue
    from keyhole.sandbox.interface import RunningSandbox

ANSWER_SECONDS = 60
"""How long an agent may take to answer; alone the slowest takes six."""
HANDSHAKE_SECONDS = 20
"""How long it may take to its first connection."""
MAX_OUTPUT = 1 << 16
"""Bytes of an agent's output that are read, from the end."""
MAX_WORDS = 200
"""Characters of its last line that are shown."""

VARIABLES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CODEX_CA_CERTIFICATE")
"""The variables that are tried; agents are programs of Node, Bun, Rust and Python."""

_TRAP = "trap.pem"
"""The file with the trap's authority."""


class AgentTrial(Struct, frozen=True):
    """One agent, as it was seen."""

    name: str
    title: str
    program: str
    service: str
    answered: bool
    seconds: float
    said: str
    """Its last line."""
    requests: tuple[AgentRequest, ...]
    protocols: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The protocols that it offers to each host (ALPN)."""
    certificates: tuple[str, ...] = ()
    """The variables by which it trusts a certificate, of `VARIABLES`."""

    @property
    def drifted(self) -> tuple[AgentRequest, ...]:
        """The requests that neither its profile nor its service names."""
        return tuple(each for each in self.requests if not each.known)


class TrialHost(Struct, frozen=True):
    """The host of a trial."""

    places: HostPaths
    env: Mapping[str, str]
    catalogue: FileCatalogue
    profiles: Mapping[str, AgentProfile]


class _Trial(Struct, frozen=True):
    """An agent with its program and its service, in a directory of the trial's own."""

    host: TrialHost
    profile: AgentProfile
    program: ProgramTrees
    access: AgentAccess
    names: tuple[str, ...]
    """The hosts of its service."""
    directory: Path


class _TrialSetting(Struct, frozen=True):
    """The differences between the runs of one trial."""

    seconds: int
    variable: str = ""
    """The only one that names the trap's authority; the hosts are tunnelled to the trap."""
    unnamed: tuple[str, ...] = ()
    """Hosts beside those of its service that lead to the trap."""


class _TrialRun(Struct, frozen=True):
    code: int
    said: str
    records: tuple[LogRecord, ...]
    seconds: float


class _Watch:
    """Ends a run when the trap has seen enough, and knows whether a person has ended it."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: RunningSandbox | None = None
        self._enough = False

    def started(self, running: RunningSandbox) -> None:
        self._running = running
        if self._enough:
            running.kill()

    def closed(self, reason: EndReason) -> None:
        self.stopped = self.stopped or reason is EndReason.STOPPED

    def met(self, _: TrapMeeting) -> None:
        """Called by a thread of the trap."""
        self._enough = True
        if self._running is not None:
            self._running.kill()


def try_agent(name: str, host: TrialHost) -> AgentTrial:
    """Run the agent. Raises a KeyholeError, and KeyboardInterrupt after it has ended all of it."""
    profile = host.profiles[name]
    found = find_agent(profile, HostEnvironment(host.env, host.places.home))
    if found is None:
        raise Refused(f"{profile.title} is not installed: {profile.install}")
    access, names = _service_of(profile, host.catalogue)
    with tempfile.TemporaryDirectory(prefix="keyhole-doctor-") as directory:
        trial = _Trial(host, profile, found, access, names, Path(directory).resolve())
        with serve_trap(names) as trap:
            ran = _run(trial, trap, _Watch(), _TrialSetting(ANSWER_SECONDS))
        requests = _with_paths(trial, find_requests(ran.records, profile.quiet))
        offered, certificates = _try_certificates(trial)
    return AgentTrial(
        name=name,
        title=profile.title,
        program=found.program,
        service=access.service,
        answered=ran.code == 0 and ANSWER in ran.said,
        seconds=ran.seconds,
        said=_last_line(ran.said),
        requests=requests,
        protocols=offered,
        certificates=certificates,
    )


def _service_of(profile: AgentProfile, catalogue: Catalogue) -> tuple[AgentAccess, tuple[str, ...]]:
    """Its first service that takes a key, and the hosts of that. A login is the person's own, and
    is not tried."""
    stored = [each for each in profile.access if each.secret.source is SecretScheme.STORE]
    for access in stored if profile.trial else ():
        patterns = [p for each in catalogue[access.service].hosts for p in each.hosts]
        # A name below a wildcard would be resolved, and its request would leave this machine.
        if patterns and not any(pattern.subdomains for pattern in patterns):
            return access, tuple(str(pattern.host) for pattern in patterns)
    raise Refused(f"{profile.title} cannot be tried: it has no service with a key and fixed hosts")


def _with_paths(trial: _Trial, seen: tuple[AgentRequest, ...]) -> tuple[AgentRequest, ...]:
    """The requests, with those to hosts that nothing names: for their sake it runs once more."""
    names = tuple(e.host for e in seen if not e.known and not e.method and _is_name(e.host))
    if not names:
        return seen
    with serve_trap((*trial.names, *names)) as trap:
        ran = _run(trial, trap, _Watch(), _TrialSetting(ANSWER_SECONDS, unnamed=names))
    more = [each for each in find_requests(ran.records, ()) if each.method and each.host in names]
    found = {each.host for each in more}
    kept = [each for each in seen if each.method or each.host not in found]
    return (*kept, *(replace(each, allowed=False, known=False) for each in more))


def _is_name(text: str) -> bool:
    try:
        Host.parse(text)
    except Unparsable:
        return False
    return True


def _try_certificates(
    trial: _Trial,
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]:
    """The protocols that it offers to each host, and the variables by which it trusts roots."""
    offered: dict[str, tuple[str, ...]] = {}
    trusted = []
    for variable in VARIABLES:
        watch = _Watch()
        with serve_trap(trial.names, watch.met) as trap:
            _run(trial, trap, watch, _TrialSetting(HANDSHAKE_SECONDS, variable))
        offered |= {each.host: each.offered for each in trap.meetings}
        if not trap.meetings:
            break  # none comes through a tunnel: Bun's hello has ECH, which tunnels refuse
        if any(each.trusted for each in trap.meetings):
            trusted.append(variable)
    return tuple(offered.items()), tuple(trusted)


def _run(trial: _Trial, trap: ProviderTrap, watch: _Watch, setting: _TrialSetting) -> _TrialRun:
    """One run of the agent."""
    base = Path(tempfile.mkdtemp(dir=trial.directory))
    project, empty = base / "project", base / "home"
    project.mkdir()
    empty.mkdir()
    (base / _TRAP).write_bytes(trap.ca_pem)
    key = base / "key"
    key.touch(mode=0o600)
    key.write_text(f"keyhole-made-up-{secrets.token_hex(16)}", "ascii")
    path = project / POLICY_NAME
    path.write_text(_policy(trial, trap.port, base, setting), "utf-8")
    (project / _TRAP).write_bytes(trap.ca_pem)
    host = trial.host
    places = HostPaths(host.places.home, *(base / each for each in ("config", "state", "run")))
    file = open_policy(path, places, host.catalogue)
    policy, examined = file.loaded.policy, examine_policy(file, places.home, "")
    command = (trial.profile.name, *trial.profile.trial)
    agent = prepare_agent(
        command,
        host.profiles,
        HostEnvironment(host.env, empty),
        policy,
        project,
        project,
        contained=False,
        program=trial.program,
    )
    joined, session = PolicyWithPresets(policy, (), ()), new_session()
    own_run = prepare_own_gateway(
        RunRequest(examined, joined, places, host.env, command, project, agent=agent), session
    )
    transcript, began = base / "transcript", time.monotonic()
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        outcome = execute_run(
            Run(
                policy=policy,
                session=session,
                runtime=unattended_runtime(
                    own_run.prepared,
                    policy,
                    host.places.tried,
                    session,
                    (nothing.fileno(), output.fileno()),
                ),
                post=own_run.post(_ignore),
                report=_ignore,
                lasting=UnattendedListener(watch.started, watch.closed),
            )
        )
    if watch.stopped:
        raise KeyboardInterrupt
    entries = LogReader(LogDirectory.open(places.audit)).read()
    wanted = LogFilter(session)
    records = [each.record for each in entries if each.record and wanted.takes(each)]
    took = time.monotonic() - began
    return _TrialRun(outcome.code, _end_of(transcript), tuple(records), took)


def _policy(trial: _Trial, port: int, base: Path, setting: _TrialSetting) -> str:
    # These characters are written alike in a JSON string and in one of TOML.
    lines = [
        f'version = 1\n[limits]\nttl = "{setting.seconds}s"',
        f"[services.{trial.access.service}]\nsecret = {json.dumps(f'file:{base}/key')}",
    ]
    if setting.variable:
        file = json.dumps(f"{base}/project/{_TRAP}")
        lines.append(f"unsafe_passthrough = {json.dumps(trial.names)}")
        lines.append(f"[sandbox.env]\n{setting.variable} = {file}")
    else:
        lines.append(f"[upstream]\nca_file = {json.dumps(f'{base}/{_TRAP}')}")
    if setting.unnamed:
        hosts = json.dumps(setting.unnamed)
        lines.append(f'[services.keyhole-doctor]\nhosts = {hosts}\nallow = ["* /**"]')
    lines.append("[upstream.connect]")
    every = (*trial.names, *setting.unnamed)
    lines += [f'"{name}:443" = "127.0.0.1:{port}"' for name in every]
    return "\n".join(lines) + "\n"


def _end_of(transcript: Path) -> str:
    with transcript.open("rb") as file:
        file.seek(max(0, transcript.stat().st_size - MAX_OUTPUT))
        return file.read().decode("utf-8", "replace")


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:MAX_WORDS] if lines else ""


def _ignore(_: str) -> None:
    """Print nothing: the trial has the result."""
