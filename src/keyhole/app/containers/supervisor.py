"""The supervisor of a named sandbox: an unattended run.

A background process of `keyhole new` and `keyhole start`. It holds the sandbox's lock, and is the
parent of a bubblewrap sandbox or has the connection that keeps a container's holder alive: when it
ends in any way, everything inside ends too. The home outlives it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.containers.named_sandbox import MAX_LEFT, new_lifecycle
from keyhole.app.run.gateway_choice import choose_gateway
from keyhole.app.run.held_changes import HeldChanges, change_store
from keyhole.app.run.run import Run, UnattendedListener, execute_run
from keyhole.app.run.run_findings import RunFindings
from keyhole.app.selftest.wall_trial import WallTrial
from keyhole.app.session.session_register import SUPERVISOR
from keyhole.app.setup.agent_launch import prepare_agent
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy, with_presets
from keyhole.app.setup.secret_paths import secret_files
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import Refused, SetupFailed
from keyhole.policy.schema import ChangesMode, RuntimeName
from keyhole.sandbox.bwrap.bwrap_runtime import BubblewrapRuntime
from keyhole.sandbox.bwrap.job_control import child_of
from keyhole.sandbox.bwrap.unattended_terminal import UnattendedTerminal
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.console import UnattendedConsole
from keyhole.sandbox.containers.container_target import BOXES
from keyhole.sandbox.containers.engine import Engine
from keyhole.sandbox.containers.engine_client import EngineFailed
from keyhole.sandbox.containers.orphans import remove_ended_sessions
from keyhole.sandbox.containers.volumes import remove_volume, volume_marks
from keyhole.sandbox.homes.home_store import HomeKey, HomeStore
from keyhole.system.interrupts import interrupt_on_termination
from keyhole.system.syscalls import name_process
from keyhole.vault.memory_guard import guard_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.containers.named_sandbox import NamedSandbox, SandboxLifecycle, SandboxRecord
    from keyhole.app.setup.agent_launch import AgentLaunch
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.launch_preparation import PreparedLaunch
    from keyhole.app.setup.policy_file import PolicyFile, PolicyWithPresets
    from keyhole.sandbox.interface import RunningSandbox, SandboxRuntime
    from keyhole.vault.store_source import PassphrasePrompt

IDLE = (*holder_image.program_command("keyhole.sandbox.containers.idle"),)
"""The command of a container that was given none."""

IDLE_ON_HOST = ("sleep", "infinity")
"""The same for bubblewrap, which shows this host's programs."""

SETTLE_SECONDS = 0.2
"""How long a command of bubblewrap runs before it is said to run: one that is not found ends
sooner."""

ADDRESS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


class StartListener(Struct, frozen=True):
    """Callbacks of the process that waits until the sandbox runs."""

    ready: Callable[[], None]
    say: Callable[[str], None]
    """Prints a line for the person, and for the log."""
    note: Callable[[str], None]
    """Writes a line to the log alone."""
    ask: PassphrasePrompt | None
    """Prompts for the store's passphrase, until the sandbox is ready."""


def supervise(
    named: NamedSandbox, places: HostPaths, env: Mapping[str, str], watched: StartListener
) -> int:
    """Supervise the sandbox until it ends, and return its exit code. Raises Refused, and every
    error of a run."""
    name_process(SUPERVISOR)
    interrupt_on_termination()
    lock = named.hold()
    try:
        record = named.record()
        remove_killed_run(named, record, places)
        return _supervise(named, record, places, env, watched)
    finally:
        os.close(lock)


def _supervise(
    named: NamedSandbox,
    record: SandboxRecord,
    places: HostPaths,
    env: Mapping[str, str],
    watched: StartListener,
) -> int:
    # 1. and 2. Authorise, and validate by the same steps as a run.
    intent = _accepted_request(record, places, env)
    joined, file = intent.joined, intent.examined.file
    gateway_run = choose_gateway(intent, alone=False, asked=lambda: watched.ask)
    prepared = gateway_run.prepared
    told = (*gateway_run.prepared.notices, *gateway_run.warnings, *gateway_run.addresses)
    for line in (*joined.notes, *told):
        watched.say(line)
    # 3. Touch. The session's record is on disk before the engine makes anything for it.
    life = new_lifecycle(gateway_run.session, shared=gateway_run.shared)
    named.write_life(life)
    held = _hold_changes(record, gateway_run.session, prepared, places)
    if held is not None and (line := held.begin(places.audit)):
        watched.say(line)
    store = AcceptanceStore(places.trust)
    run_findings = RunFindings(
        places.findings, file.directory, prepared, gateway_run.session, store
    )
    if reminder := run_findings.begin():
        watched.say(reminder)
    trial = WallTrial(joined.policy, places.tried)
    made = _runtime_of(prepared, trial, gateway_run.session, held or run_findings)
    ran: list[bool] = []

    def runs() -> None:
        ran.append(True)
        named.write_life(replace(life, container=made.container()))
        watched.ready()

    def started(running: RunningSandbox) -> None:
        if running.init is None:
            return
        if record.contained:
            runs()
            return

        def settled() -> None:
            if running.init is not None and child_of(running.init) is not None:
                runs()

        asyncio.get_running_loop().call_later(SETTLE_SECONDS, settled)

    lasting = UnattendedListener(
        started, lambda ending: named.note_closed(str(ending)), made.attach
    )
    post = gateway_run.post(watched.say)
    run = Run(
        joined.policy,
        gateway_run.session,
        made.runtime,
        post,
        watched.say,
        lasting=lasting,
        runtime_directory=places.runtime,
        left=run_findings.look,
    )
    try:
        outcome = execute_run(run)
        run_findings.done()
    finally:
        run_findings.close()
        # 4. Record how it ended, its findings, and the changes that wait.
        left = run_findings.lines
        for line in left:
            watched.note(f"left behind, and your host may execute it: {line}")
        waiting = held.finish() if held is not None else ""
        if waiting:
            watched.note(waiting)
    if outcome.uncovered:
        watched.note(f"{outcome.uncovered} was replaced on the host, which uncovered it inside")
    watched.note(f"session {outcome.session} ended, exit code {outcome.code}")
    ended = replace(named.life(), code=outcome.code, left=left[:MAX_LEFT], waiting=waiting)
    named.write_life(ended)
    if not ran:
        said = made.console.last_line.removeprefix("keyhole: ")
        raise SetupFailed(f"its command ended at once, exit code {outcome.code}: {said}")
    return outcome.code


def _accepted_request(
    record: SandboxRecord, places: HostPaths, env: Mapping[str, str]
) -> RunRequest:
    """The run that a record describes, under its policy. Raises Refused if that was not accepted as
    it is now."""
    # 1. Authorise: exactly these bytes were accepted when the sandbox was started (I11).
    file = open_policy(Path(record.policy), places, FileCatalogue())
    examined = examine_policy(file, places.home, env.get("PATH", ""))
    accepted = AcceptanceStore(places.trust).find(file.path)
    if accepted is None or accepted.digest != examined.digest:
        raise Refused("the policy was changed meanwhile, and not accepted")
    if file.loaded.policy.services or file.loaded.policy.presets:
        guard_memory()
    # 2. Validate: the record's runtime, image and mode of changes replace the policy's own.
    env = dict(env)
    if record.contained:
        env |= {ADDRESS[record.runtime]: f"unix://{record.engine}"}
    joined = with_presets(file, env, places)
    own = joined.policy.sandbox
    sandbox = replace(
        own,
        runtime=RuntimeName(record.runtime),
        image=record.image or None,
        changes=ChangesMode(record.changes) if record.changes else own.changes,
    )
    joined = replace(joined, policy=replace(joined.policy, sandbox=sandbox))
    return RunRequest(
        examined,
        joined,
        places,
        env,
        record.command or (IDLE if record.contained else IDLE_ON_HOST),
        Path(record.directory),
        name=record.name,
        home_volume=record.volume,
        agent=None if record.contained else _agent_of(record, joined, file, places, env),
    )


class _MadeRuntime(Struct, frozen=True):
    """The runtime of a named sandbox."""

    runtime: SandboxRuntime
    console: UnattendedConsole | UnattendedTerminal
    container: Callable[[], str]
    """Once it runs: the engine's id of its container, or the session's id."""
    attach: Callable[[], tuple[int, int]] | None = None


def _hold_changes(
    record: SandboxRecord, session: str, prepared: PreparedLaunch, places: HostPaths
) -> HeldChanges | None:
    """The views of a sandbox whose changes are reviewed; the lock ends with this process."""
    if not prepared.plan.reviewed:
        return None
    store = change_store(places.changes, record.policy)
    return HeldChanges(store, prepared, session, name=record.name)


def _runtime_of(
    prepared: PreparedLaunch, trial: WallTrial, session: str, after: HeldChanges | RunFindings
) -> _MadeRuntime:
    launch = after.fit(prepared.launch(interactive=True, lasting=True))
    target = prepared.container_target
    if target is None:
        terminal = UnattendedTerminal()
        runtime = BubblewrapRuntime(launch, terminal, trial.in_bubblewrap)
        return _MadeRuntime(runtime, terminal, lambda: session, terminal.attach)
    console = UnattendedConsole()
    container = target.runtime(launch, console, session, trial.in_container(target))
    return _MadeRuntime(container, console, lambda: container.container)


def _agent_of(
    record: SandboxRecord,
    joined: PolicyWithPresets,
    file: PolicyFile,
    places: HostPaths,
    env: Mapping[str, str],
) -> AgentLaunch | None:
    """The additions of the profile that fits the command, as `keyhole run` has them."""
    if not record.command:
        return None
    policy, project = joined.policy, file.directory
    writable = tuple((project / p).expanduser().resolve() for p in policy.sandbox.writable)
    return prepare_agent(
        record.command,
        FileProfiles(),
        HostEnvironment(env=env, home=places.home, writable=writable),
        policy,
        project,
        Path(record.directory),
        contained=False,
        secrets=secret_files(policy, project, places.home, env),
    )


def remove_killed_run(named: NamedSandbox, record: SandboxRecord, places: HostPaths) -> None:
    """Remove what a killed supervisor left in the engine. The caller has the sandbox's lock.

    The supervisor may have been killed while its walls were tried, in a session that no record
    names. A bubblewrap sandbox ends with its supervisor, and leaves nothing.
    """
    if not record.contained:
        return
    life: SandboxLifecycle = named.life()
    try:
        engine = Engine(record.engine)
        try:
            remove_ended_sessions(engine, places.state / BOXES, life.session)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def destroy_sandbox(named: NamedSandbox, places: HostPaths) -> None:
    """Remove a sandbox that does not run, its home included. Raises Refused."""
    lock = named.hold()
    try:
        try:
            record = named.record()
        except Refused:  # nothing of it can be found any more
            named.remove()
            raise
        try:
            remove_killed_run(named, record, places)
            _remove_home(record, places)
        except (EngineFailed, Refused) as failed:
            raise Refused(f"{named.name} is kept: {failed}") from None
        named.remove()
    finally:
        os.close(lock)


def _remove_home(record: SandboxRecord, places: HostPaths) -> None:
    if not record.contained:
        policy = Path(record.policy)
        store, key = HomeStore(places.homes), HomeKey.of(policy.parent, policy, record.name)
        if store.find(key.id) is not None:
            store.remove(key.id)
        return
    engine = Engine(record.engine)
    try:
        remove_volume(engine, record.volume, volume_marks(places.state / BOXES))
    finally:
        engine.close()
