"""The runtime of one `keyhole run`: bubblewrap with the helper that waits, or a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.run.early_start import release_helper
from keyhole.app.selftest.selftest_cache import SelftestCache
from keyhole.app.selftest.wall_trial import WallTrial
from keyhole.confine.cgroup import CPU
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.terminal import Terminal
from keyhole.sandbox.containers.console import ContainerConsole as Relayed

if TYPE_CHECKING:
    import argparse

    from keyhole.app.remote.remote_run import RemoteRun
    from keyhole.app.run.daemon_gateway import DaemonRun
    from keyhole.app.run.held_changes import HeldChanges
    from keyhole.app.run.own_gateway_setup import OwnGatewayRun
    from keyhole.app.run.run_findings import RunFindings
    from keyhole.app.setup.launch_preparation import RunRequest
    from keyhole.audit.log import AuditLog
    from keyhole.cli.run_messages import RunMessages
    from keyhole.sandbox.bwrap.bwrap_runtime import BubblewrapRuntime
    from keyhole.sandbox.bwrap.helper import Helper
    from keyhole.sandbox.interface import SandboxRuntime


def open_runtime(
    options: argparse.Namespace,
    gateway: DaemonRun | OwnGatewayRun | RemoteRun,
    messages: RunMessages,
    request: RunRequest,
    helper: Helper | None,
    after: HeldChanges | RunFindings,
) -> tuple[SandboxRuntime, AuditLog | None]:
    """The runtime that the policy or the person chose, and the log if it is open already. `after`
    looks at the sandbox's files when it has ended."""
    policy, places = request.joined.policy, request.places
    target = gateway.prepared.container_target
    if target is not None:
        messages.terminal = relayed = Relayed(0, 1, 2)
        launch = after.fit(gateway.prepared.launch(interactive=relayed.interactive))
        trial = WallTrial(policy, places.tried, force=options.self_test)
        session, try_walls = gateway.session, trial.in_container(target)
        return target.runtime(launch, relayed, session, try_walls), None
    if helper is None:
        raise SetupFailed("the helper was not started")
    messages.terminal = own = Terminal(0, 1, 2)
    runtime, log = _in_bubblewrap(options, gateway, own, request, helper, after)
    if policy.limits.cpus and not (helper.group and CPU in helper.group.bounds):
        messages.say(
            "processors are not bounded (limits.cpus): no control group is delegated to us"
        )
    return runtime, log


def _in_bubblewrap(
    options: argparse.Namespace,
    gateway: DaemonRun | OwnGatewayRun | RemoteRun,
    terminal: Terminal,
    request: RunRequest,
    helper: Helper,
    after: HeldChanges | RunFindings,
) -> tuple[BubblewrapRuntime, AuditLog | None]:
    """Send the launch to the helper, which makes its mounts while the rest of Keyhole is imported.

    A run that needs nothing of the data plane first releases its helper here already.
    """
    prepared = gateway.prepared.launch(interactive=terminal.interactive, fault=helper.fault)
    launch = after.fit(prepared)
    helper.tell(launch, terminal.streams)
    policy, places = request.joined.policy, request.places
    log = None
    if not options.self_test and gateway.simple:
        rate = policy.limits.audit_per_second
        tried = SelftestCache(places.tried)
        log = release_helper(gateway.session, launch, helper, tried, places.audit, rate)
    from keyhole.sandbox.bwrap.bwrap_runtime import BubblewrapRuntime

    trial = WallTrial(policy, places.tried, force=options.self_test)
    return BubblewrapRuntime(launch, terminal, trial.in_bubblewrap, helper), log
