"""`keyhole run -- CMD…`: the command in a sandbox, under the policy of this project."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.policyfile import Unreadable, with_presets
from keyhole.app.prepare import prepare
from keyhole.app.trust import TrustStore, examine
from keyhole.audit.directory import AuditUnusable
from keyhole.cli.consent import obtain
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.model.text import visible
from keyhole.model.value import replace
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.presets import tunnel_presets
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.sandbox.terminal import Terminal

if TYPE_CHECKING:
    import argparse

EXIT_REFUSED = 125


def run(options: argparse.Namespace) -> int:
    """Run one command; its exit code is ours."""
    command = tuple(options.command[1:] if options.command[:1] == ["--"] else options.command)
    if not command:
        raise CliError("what is to be run? `keyhole run -- CMD…`", EXIT_REFUSED)
    try:
        return _run(options, command)
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid, so nothing was run", EXIT_REFUSED) from None
    except SetupFailed as error:
        message = f"nothing was run: {visible(str(error))}; `keyhole doctor` says more"
        raise CliError(message, EXIT_REFUSED) from None
    except (Unreadable, Refused, Missing, AuditUnusable) as error:
        raise CliError(f"nothing was run: {visible(str(error))}", EXIT_REFUSED) from None
    except CliError as error:
        raise CliError(str(error), EXIT_REFUSED) from None
    finally:
        options.helper.close()


def _run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    places, env = find_places(), environment()
    # 1. Authorise: the policy, and a person's consent to these very bytes (I11).
    file = read_policy(options.policy, places, FileCatalogue())
    dossier = examine(file, places.home, env.get("PATH", ""))
    if not obtain(dossier, TrustStore(places.trust), options.trust, sys.stderr):
        raise CliError("the policy is not accepted, so nothing was run", EXIT_REFUSED)
    joined = with_presets(file, env, places.home)
    policy, notes = tunnel_presets(joined.policy)
    joined = replace(joined, policy=policy)
    # 2. Validate: everything that the sandbox will see, and everything that must not be in it.
    prepared = prepare(dossier, joined, places, env, command, Path.cwd())

    def tell(line: str) -> None:
        ending = "\r\n" if os.isatty(2) and terminal.raw else "\n"
        text = f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {visible(line)}{ending}"
        sys.stderr.write(text)
        sys.stderr.flush()

    def say(line: str) -> None:
        if not options.quiet:
            tell(line)

    terminal = Terminal(0, 1, 2)
    for line in (*joined.notes, *notes, *prepared.notices):
        say(line)
    # 3. Touch: the sandbox, its door and the gateway, until the command ends. The helper makes its
    # mounts while the rest of Keyhole is imported; then it waits for the gateway's word.
    launch = prepared.launch(interactive=terminal.interactive)
    options.helper.tell(launch, terminal.streams)
    from keyhole.app.ahead import release
    from keyhole.app.tried import Remembered

    tried = Remembered(places.tried)
    begun = None
    if not options.self_test:
        rate = policy.limits.audit_per_second
        begun = release(launch, options.helper, tried, places.audit, rate)
    from keyhole.app.run import Run, execute

    outcome = execute(
        Run(
            policy,
            launch,
            terminal,
            places.audit,
            tried,
            options.self_test,
            say,
            options.helper,
            begun,
        )
    )
    if outcome.uncovered:
        tell(f"{outcome.uncovered} was replaced on the host, which uncovered it inside: run ended")
    # 4. Tell, also a quiet person, what is left behind; and the digest by which a cut log shows.
    changes = prepared.changes()
    if changes:
        tell("files your host may execute, left or changed by this run:")
    for line in changes:
        tell(line)
    say(f"session {outcome.session}, audit head {outcome.head}")
    return outcome.code
