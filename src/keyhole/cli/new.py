"""`keyhole new NAME [-- CMD…]`: makes a named sandbox, and starts it in the background."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.containers.named_sandbox import (
    SandboxRecord,
    make_sandbox,
    new_volume,
    refuse_taken_name,
)
from keyhole.app.containers.supervisor import destroy_sandbox
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import (
    add_changes_flag,
    add_name_argument,
    add_policy_flag,
    add_trust_flag,
    check_image,
)
from keyhole.cli.pull_progress import pull_display
from keyhole.cli.sandbox_start import accept_policy, start_supervisor
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.errors import Refused
from keyhole.policy.schema import RuntimeName
from keyhole.sandbox.containers.container_target import find_container_target
from keyhole.system.interrupts import delay_interrupts

if TYPE_CHECKING:
    from keyhole.app.containers.named_sandbox import NamedSandbox
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    add_name_argument(parser, "name of the sandbox")
    parser.add_argument(
        "--runtime", choices=("bwrap", "docker", "podman"), help="instead of the policy's"
    )
    parser.add_argument("--image", metavar="IMAGE", help="instead of the policy's; for containers")
    add_changes_flag(parser)
    add_policy_flag(parser)
    add_trust_flag(parser)
    parser.add_argument(
        "stray",
        nargs="?",
        action=_Stray,
        metavar="-- CMD …",
        help="command to run; without one the sandbox idles, and `keyhole exec` runs commands",
    )
    parser.split = _take_command


def _take_command(words: list[str], options: argparse.Namespace) -> list[str]:
    """`new NAME --flags -- CMD…`: flags may come after the name, and none of CMD's is ours."""
    at = words.index("--") if "--" in words else len(words)
    options.command = words[at + 1 :]
    return words[:at]


class _Stray(argparse.Action):
    """A command that was typed without `--` before it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        """Refuse it, and say how to type it. Called without a value when there is none."""
        if values:
            parser.error("a command comes after `--`: keyhole new NAME -- CMD…")


def run(options: argparse.Namespace) -> int:
    """Make the sandbox, and return when it runs; remove it if it does not start."""
    command = tuple(options.command)
    places = find_host_paths()
    refuse_taken_name(places.sandboxes, options.name)
    file = accept_policy(options.policy, places, options.trust)
    record = _record(options, command, file, places)
    named: NamedSandbox | None = None
    try:
        with delay_interrupts():
            named = make_sandbox(places.sandboxes, record)
        start_supervisor(named)
    except BaseException:  # also Ctrl-C
        if named is not None:
            _undo(named, places)
        raise
    print(f"{named.name} runs; `keyhole exec {named.name} -- CMD` runs CMD in it")
    return EXIT_OK


def _undo(named: NamedSandbox, places: HostPaths) -> None:
    try:
        with delay_interrupts():  # a second Ctrl-C
            destroy_sandbox(named, places)
    except Refused as error:
        raise CliError(f"{error}; `keyhole destroy {named.name}` removes it") from None


def _record(
    options: argparse.Namespace, command: tuple[str, ...], file: PolicyFile, places: HostPaths
) -> SandboxRecord:
    sandbox = file.loaded.policy.sandbox
    runtime = RuntimeName(options.runtime) if options.runtime else sandbox.runtime
    contained = runtime is not RuntimeName.BWRAP
    check_image(options.image, contained=contained)
    made = SandboxRecord(
        name=options.name,
        runtime=str(runtime),
        image="",
        engine="",
        policy=str(file.path),
        directory=str(Path.cwd()),
        command=command,
        volume="",
        created=int(time.time()),
        changes=options.changes or "",
    )
    if not contained:
        return made
    image = options.image or sandbox.image
    # Checked now, while a person can read the error, rather than in the background.
    wanted = replace(sandbox, runtime=runtime, image=image)
    target = find_container_target(wanted, environment(), places.state, pull_display())
    target.engine.close()
    volume = new_volume(options.name)
    return replace(made, image=str(image), engine=target.engine.path, volume=volume)
