"""One command in a sandbox, under the policy of this project, from the policy to the last message.

Called by `run.py`, which has the flags and has started the helper and the data plane by now.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.run.gateway_choice import choose_gateway
from keyhole.app.run.held_changes import HeldChanges, change_store
from keyhole.app.run.port_claims import make_register
from keyhole.app.run.run_findings import RunFindings
from keyhole.app.run.said_notices import SaidNotices
from keyhole.app.setup.agent_launch import prepare_agent
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.client_setup import inspects_tls
from keyhole.app.setup.host_paths import find_policy
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import parse_policy, with_presets
from keyhole.app.setup.program_visibility import (
    NOT_STARTED,
    explain_hidden,
    explain_missing,
)
from keyhole.app.setup.secret_paths import secret_files
from keyhole.cli.consent import require_accepted
from keyhole.cli.errors import CliError
from keyhole.cli.flags import check_image
from keyhole.cli.learning_consent import agree_to_learning
from keyhole.cli.named_policy import read_policy
from keyhole.cli.passphrase import passphrase_prompt
from keyhole.cli.pull_progress import pull_display
from keyhole.cli.run_messages import RunMessages, tell_end, tell_findings
from keyhole.cli.run_runtime import open_runtime
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import Unparsable
from keyhole.model.text import visible
from keyhole.policy.asks import asked_kinds
from keyhole.policy.policy_draft import EMPTY_POLICY
from keyhole.policy.ports import PublishedPort, refuse_ambiguous
from keyhole.policy.schema import ChangesMode
from keyhole.policy.schema import RuntimeName as Runtimes
from keyhole.vault.memory_guard import guard_memory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from keyhole.app.remote.remote_run import RemoteRun
    from keyhole.app.run.daemon_gateway import DaemonRun
    from keyhole.app.run.data_plane_process import RunDataPlaneProcess
    from keyhole.app.run.own_gateway_setup import OwnGatewayRun
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.kept_home import SandboxHome
    from keyhole.app.setup.launch_preparation import PreparedLaunch
    from keyhole.app.setup.policy_file import PolicyFile, PolicyWithPresets
    from keyhole.cli.desktop_start import DesktopStart
    from keyhole.policy.policy import Sandbox
    from keyhole.sandbox.bwrap.helper import Helper
    from keyhole.sandbox.containers.container_target import ContainerTarget
    from keyhole.vault.store_source import PassphrasePrompt


def run_sandboxed(
    options: argparse.Namespace,
    command: tuple[str, ...],
    helper: Helper | None,
    plane: RunDataPlaneProcess | None,
    desktop: DesktopStart | None = None,
    attach: Callable[[RunRequest], RemoteRun] | None = None,
) -> int:
    """Run one command; returns its exit code. Closes the helper and the data plane. `attach`
    chooses a gateway on another machine."""
    resources = _Resources(helper, plane)
    try:
        return _run(options, command, resources, desktop, attach)
    finally:
        resources.close()


class _Resources:
    """Everything that a run has open."""

    def __init__(self, helper: Helper | None, plane: RunDataPlaneProcess | None) -> None:
        self.helper = helper
        self.target: ContainerTarget | None = None
        self.kept: SandboxHome | None = None
        self.findings: RunFindings | None = None
        self.changes: HeldChanges | None = None
        self.plane = plane

    def close(self) -> None:
        # The sandbox ends first: then its findings are settled, and its gateway closes.
        for each in (
            self.helper,
            self.target,
            self.kept,
            self.findings,
            self.changes,
            self.plane,
        ):
            if each is not None:
                each.close()


def _run(
    options: argparse.Namespace,
    command: tuple[str, ...],
    resources: _Resources,
    desktop: DesktopStart | None,
    attach: Callable[[RunRequest], RemoteRun] | None,
) -> int:
    places, messages = find_host_paths(), RunMessages(quiet=options.quiet)
    # 1. Authorise: the policy, and a person's consent to these very bytes (I11).
    request = _accept(options, command, places)
    policy = request.joined.policy
    if resources.plane is not None:
        if policy.sandbox.host_ports:
            make_register(places.ports)
        resources.plane.confine(places, inspects=inspects_tls(policy))
    if desktop is not None and asked_kinds(policy.approvals, watched=True):
        desktop.wait()
    # 2. Validate: everything that the sandbox will see, and everything that must not be in it.
    gateway: DaemonRun | OwnGatewayRun | RemoteRun
    if attach is not None:
        gateway = attach(request)
    else:
        gateway = choose_gateway(
            request, alone=options.own_gateway, asked=_passphrase_prompt, plane=resources.plane
        )
    resources.target = gateway.prepared.container_target
    resources.kept = gateway.prepared.kept
    agent = request.agent.notes if request.agent else ()
    project = request.examined.file.directory
    said = SaidNotices(places.notices, project)
    above = _found_above(options, request)
    notices = (*above, *request.joined.notes, *agent, *gateway.prepared.notices)
    for line in (*_new(notices, said, options), *gateway.warnings):
        messages.say(line)
    for line in gateway.addresses:
        messages.say(line)
    accepted = AcceptanceStore(places.trust)
    findings = RunFindings(places.findings, project, gateway.prepared, gateway.session, accepted)
    resources.findings = findings
    if reminder := findings.begin():
        messages.tell(reminder)
    held = _hold_changes(request, gateway.prepared, gateway.session, resources)
    if held is not None and (line := held.begin(places.audit)):
        messages.tell(line)
    # 3. Touch: the sandbox, its door and the gateway, until the command ends.
    runtime, log = open_runtime(
        options, gateway, messages, request, resources.helper, held or findings
    )
    from keyhole.app.run.run import Run, execute_run

    ends = gateway.post(messages.say, log, messages.tell)
    ends.repeated = messages.repeated
    run = Run(
        policy,
        gateway.session,
        runtime,
        ends,
        messages.say,
        messages.tell,
        runtime_directory=places.runtime,
        left=findings.look,
    )
    try:
        outcome = execute_run(run)
        findings.done()
    finally:
        # 4. Report what had to wait and the findings, even with --quiet and however the run ended
        # (I11).
        messages.release()
        tell_findings(findings, messages)
        if held is not None and (line := held.finish()):
            messages.tell(line)
    if outcome.code in NOT_STARTED and resources.target is None:
        base, host = gateway.prepared.base, _host(request.joined, project, places)
        lines = explain_hidden(base, policy.sandbox, host)
        for line in lines or explain_missing(command[0], FileProfiles(), host):
            messages.tell(line)
    tell_end(outcome, messages)
    if request.learning:
        messages.tell(f"`keyhole learn {gateway.session}` shows what a policy for this would be")
    return outcome.code


def _hold_changes(
    request: RunRequest, prepared: PreparedLaunch, session: str, resources: _Resources
) -> HeldChanges | None:
    """The views of a run whose changes are reviewed; None if they go to the person's files."""
    if not prepared.plan.reviewed:
        return None
    store = change_store(request.places.changes, request.examined.file.path)
    fault = resources.helper.fault if resources.helper else ""
    resources.changes = HeldChanges(store, prepared, session, fault=fault)
    return resources.changes


def _found_above(options: argparse.Namespace, request: RunRequest) -> tuple[str, ...]:
    """A policy that was not named and does not lie in this directory: which one it is."""
    path = request.examined.file.path
    if options.policy is not None or path.parent == request.directory:
        return ()
    return (f"the policy is {visible(str(path))}, found above this directory",)


def _new(lines: tuple[str, ...], said: SaidNotices, options: argparse.Namespace) -> Iterable[str]:
    """The notices to say: each once in a project, and all of them with --verbose."""
    if options.quiet:
        return ()
    new = said.take_new(lines)
    return lines if options.verbose else new


def _accept(options: argparse.Namespace, command: tuple[str, ...], places: HostPaths) -> RunRequest:
    """Read the policy, have it accepted, and apply the flags; CliError if it is not accepted."""
    env = environment()
    learning = agree_to_learning(options)
    if learning and options.policy is None and (drafted := _unwritten(places)):
        # Nobody needs to accept a policy that grants nothing.
        examined = examine_policy(drafted, places.home, env.get("PATH", ""))
    else:
        file = read_policy(options.policy, places, FileCatalogue())
        examined = require_accepted(file, places, options.trust, "nothing was run")
    file = examined.file
    if file.loaded.policy.services or file.loaded.policy.presets:
        # Before the first secret is read; settings of package managers hold secrets, too.
        guard_memory()
    joined = _as_typed(with_presets(file, env, places), options)
    if learning:
        joined = replace(joined, policy=learning.apply(joined.policy))
    project = examined.file.directory
    agent = prepare_agent(
        command,
        FileProfiles(),
        _host(joined, project, places),
        joined.policy,
        project,
        Path.cwd(),
        contained=joined.policy.sandbox.runtime is not Runtimes.BWRAP,
        secrets=secret_files(joined.policy, project, places.home, env),
    )
    pulling = pull_display(quiet=options.quiet)
    return RunRequest(
        examined,
        joined,
        places,
        env,
        command,
        Path.cwd(),
        agent=agent,
        learning=learning,
        pulling=pulling,
    )


def _unwritten(places: HostPaths) -> PolicyFile | None:
    """A policy that grants nothing, for a directory that has none to learn from."""
    path = find_policy(Path.cwd(), places.home)
    if os.path.lexists(path):
        return None
    return parse_policy(path, EMPTY_POLICY, places, FileCatalogue())


def _host(joined: PolicyWithPresets, project: Path, places: HostPaths) -> HostEnvironment:
    """This host, without what the sandbox could have written."""
    writable = tuple((project / p).expanduser().resolve() for p in joined.policy.sandbox.writable)
    return HostEnvironment(env=environment(), home=places.home, writable=writable)


def _as_typed(joined: PolicyWithPresets, options: argparse.Namespace) -> PolicyWithPresets:
    """Apply --runtime, --image and --changes, which win over the policy, and --publish, which adds
    to it."""
    sandbox = joined.policy.sandbox
    runtime = Runtimes(options.runtime) if options.runtime else sandbox.runtime
    contained = runtime is not Runtimes.BWRAP
    check_image(options.image, contained=contained)
    image = (options.image or sandbox.image) if contained else None
    changes = ChangesMode(options.changes) if options.changes else sandbox.changes
    publish = _published(options.publish, sandbox)
    changed = replace(sandbox, runtime=runtime, image=image, changes=changes, publish=publish)
    return replace(joined, policy=replace(joined.policy, sandbox=changed))


def _published(typed: list[str], sandbox: Sandbox) -> tuple[PublishedPort, ...]:
    try:
        published = tuple(dict.fromkeys((*sandbox.publish, *map(PublishedPort.parse, typed))))
        refuse_ambiguous(published, sandbox.host_ports)
    except Unparsable as error:
        raise CliError(f"--publish: {error.message}") from None
    return published


def _passphrase_prompt() -> PassphrasePrompt | None:
    return passphrase_prompt()
