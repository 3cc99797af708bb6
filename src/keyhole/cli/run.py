"""`keyhole run -- CMD…`: the command in a sandbox, under the policy of this project."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.kit import inspects
from keyhole.app.leaving import Leaving
from keyhole.app.lodging import find_lodging
from keyhole.app.policyfile import Unreadable, with_presets
from keyhole.app.prepare import Intent
from keyhole.app.trust import TrustStore, examine
from keyhole.audit.directory import AuditUnusable
from keyhole.cli.consent import obtain
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.cli.pulling import shown
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.model.text import visible
from keyhole.model.value import replace
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.schema import Runtime as Runtimes
from keyhole.sandbox.cgroup import CPU
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SandboxLost, SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.sandbox.terminal import Terminal
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    import argparse

    from keyhole.app.attached import Lodged
    from keyhole.app.bubblewrap import Bubblewrap
    from keyhole.app.furnish import Furnished
    from keyhole.app.places import Places
    from keyhole.app.policyfile import Joined
    from keyhole.audit.log import AuditLog
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.interface import Console, Runtime
    from keyhole.vault.stored import Ask

EXIT_REFUSED = 125


def run(options: argparse.Namespace) -> int:
    """Run one command; its exit code is ours."""
    options.berth = options.leaving = None
    command = tuple(options.command[1:] if options.command[:1] == ["--"] else options.command)
    if not command:
        raise CliError("what is to be run? `keyhole run -- CMD…`", EXIT_REFUSED)
    try:
        if options.unsafe_no_isolation:
            from keyhole.cli import unisolated

            return unisolated.run(options, command, EXIT_REFUSED)
        return _run(options, command)
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid, so nothing was run", EXIT_REFUSED) from None
    except SandboxLost as error:
        raise CliError(f"the run was ended: {visible(str(error))}", EXIT_REFUSED) from None
    except SetupFailed as error:
        message = f"nothing was run: {visible(str(error))}; `keyhole doctor` says more"
        raise CliError(message, EXIT_REFUSED) from None
    except (Unreadable, Refused, Missing, AuditUnusable, Unavailable) as error:
        raise CliError(f"nothing was run: {visible(str(error))}", EXIT_REFUSED) from None
    except CliError as error:
        raise CliError(str(error), EXIT_REFUSED) from None
    finally:
        for begun in (options.helper, options.berth, options.leaving, options.plane):
            if begun is not None:
                begun.close()


def _run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    places, env = find_places(), environment()
    # 1. Authorise: the policy, and a person's consent to these very bytes (I11).
    file = read_policy(options.policy, places, FileCatalogue())
    dossier = examine(file, places.home, env.get("PATH", ""))
    if not obtain(dossier, TrustStore(places.trust), options.trust, sys.stderr):
        raise CliError("the policy is not accepted, so nothing was run", EXIT_REFUSED)
    if file.loaded.policy.services or file.loaded.policy.presets:
        # Before the first secret: settings of package managers hold some, too.
        from keyhole.vault.memory import guard_memory

        guard_memory()
    joined = _as_typed(with_presets(file, env, places.home), options)
    policy = joined.policy
    if options.plane is not None:
        options.plane.confine(places.audit, places.quarantine, inspects=inspects(policy))
    # 2. Validate: everything that the sandbox will see, and everything that must not be in it.
    intent = Intent(
        dossier, joined, places, env, command, Path.cwd(), pulling=shown(quiet=options.quiet)
    )
    lodging = find_lodging(intent, alone=options.own_gateway, asked=_asked, plane=options.plane)
    session, prepared = lodging.session, lodging.prepared
    options.berth = prepared.berth

    terminal: Console | None = None

    def tell(line: str) -> None:
        raw = terminal is not None and terminal.raw and os.isatty(2)
        ending = "\r\n" if raw else "\n"
        text = f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {visible(line)}{ending}"
        # Its reader may be gone (`2>&1 | head`): the command goes on, and its exit code is ours.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def say(line: str) -> None:
        if not options.quiet:
            tell(line)

    for line in (*joined.notes, *lodging.notes):
        say(line)
    leaving = options.leaving = Leaving(places.findings, file.directory, prepared, session)
    if reminder := leaving.begin():
        tell(reminder)
    # 3. Touch: the sandbox, its door and the gateway, until the command ends.
    runtime: Runtime
    log = None
    if prepared.berth is not None:
        from keyhole.app.boxed import Boxed
        from keyhole.app.tried import Remembered
        from keyhole.sandbox.containers.console import Console as Relayed

        terminal = relayed = Relayed(0, 1, 2)
        launch = prepared.launch(interactive=terminal.interactive)
        made = prepared.berth.runtime(launch, relayed, session)
        tried, test = Remembered(places.tried), options.self_test
        runtime = Boxed(made, prepared.berth, policy, tried, force_test=test)
    else:
        terminal = own = Terminal(0, 1, 2)
        runtime, log = _in_bubblewrap(options, lodging, own, policy, places)
        group = options.helper.group
        if policy.limits.cpus and not (group and CPU in group.bounds):
            say("processors are not bounded (limits.cpus): no control group is delegated to us")
    from keyhole.app.run import Run, execute

    ends = lodging.post(say, log, tell)
    try:
        outcome = execute(Run(policy, session, runtime, ends, say, tell, left=leaving.look))
        leaving.done()
    finally:
        # 4. Tell, also a quiet person, what is left behind, however the run ended (I11).
        if leaving.lines:
            terminal.make_room()
            tell("files your host may execute, left or changed by this run:")
        for line in leaving.lines:
            tell(line)
        if leaving.found:
            tell("`keyhole findings` shows them again, until you dismiss them")
    if outcome.uncovered:
        tell(f"{outcome.uncovered} was replaced on the host, which uncovered it inside: run ended")
    # A gateway that died says no last word.
    head = f"audit head {outcome.head}" if outcome.head else "its gateway's log has no last line"
    say(f"session {outcome.session}, {head}")
    return outcome.code


def _as_typed(joined: Joined, options: argparse.Namespace) -> Joined:
    """What runs it, as the person says here rather than as the policy does."""
    sandbox = joined.policy.sandbox
    runtime = Runtimes(options.runtime) if options.runtime else sandbox.runtime
    contained = runtime is not Runtimes.BWRAP
    if options.image and not contained:
        raise CliError("--image is for containers: add --runtime docker", EXIT_REFUSED)
    image = (options.image or sandbox.image) if contained else None
    changed = replace(sandbox, runtime=runtime, image=image)
    return replace(joined, policy=replace(joined.policy, sandbox=changed))


def _in_bubblewrap(
    options: argparse.Namespace,
    lodging: Lodged | Furnished,
    terminal: Terminal,
    policy: Policy,
    places: Places,
) -> tuple[Bubblewrap, AuditLog | None]:
    """The helper makes its mounts while the rest of Keyhole is imported; then it waits for the
    gateway's word, which it has here where nothing else is to be waited for."""
    helper = options.helper
    launch = lodging.prepared.launch(interactive=terminal.interactive, fault=helper.fault)
    helper.tell(launch, terminal.streams)
    from keyhole.app.ahead import release
    from keyhole.app.tried import Remembered

    tried = Remembered(places.tried)
    log = None
    if not options.self_test and lodging.simple:
        rate = policy.limits.audit_per_second
        log = release(lodging.session, launch, helper, tried, places.audit, rate)
    from keyhole.app.bubblewrap import Bubblewrap

    test = options.self_test
    return Bubblewrap(launch, terminal, policy, tried, force_test=test, helper=helper), log


def _asked() -> Ask | None:
    """Who is asked for the store's passphrase."""
    from keyhole.cli.secret import ask_passphrase, has_terminal

    return ask_passphrase if has_terminal() else None
