"""`keyhole run -- CMD…`: its flags, and the processes that it starts before it reads the policy.

It imports little: the helper and the data plane start on other cores while `run_sandboxed`, which
needs most of Keyhole, is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.flags import (
    accept_any,
    add_changes_flag,
    add_command_argument,
    add_policy_flag,
    add_quiet_flag,
    add_trust_flag,
    command_words,
)

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.parser import Parser

_WITH_VALUES = frozenset({"--runtime", "--image", "--policy", "--publish", "--changes"})


def add_arguments(parser: Parser) -> None:
    add_quiet_flag(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="repeat notices that were shown before"
    )
    parser.add_argument(
        "--self-test", action="store_true", help="test every known way out again before the run"
    )
    parser.add_argument(
        "--own-gateway",
        action="store_true",
        help="run a separate gateway for this command, even if `keyhole up` has started one",
    )
    parser.add_argument(
        "--runtime", choices=("bwrap", "docker", "podman"), help="instead of the policy's"
    )
    parser.add_argument("--image", metavar="IMAGE", help="instead of the policy's; for containers")
    add_changes_flag(parser)
    parser.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="[OUTER:]INNER",
        help="open a port of the sandbox to this host's browser; may be given several times",
    )
    parser.add_argument(
        "--learn",
        action="store_true",
        help="open every host that the policy does not name, without any credential, and record "
        "what the command uses, for `keyhole learn`; asks first",
    )
    parser.add_argument("--unsafe-learn", action="store_true", help="as --learn, without asking")
    parser.add_argument(
        "--unsafe-learn-with-credentials",
        action="store_true",
        help="with --learn: services get their credentials anyway",
    )
    parser.add_argument(
        "--unsafe-no-isolation",
        action="store_true",
        help="run it on this host, as you, without a sandbox, a policy or secrets of Keyhole",
    )
    add_policy_flag(parser)
    add_trust_flag(parser)
    add_command_argument(parser)
    parser.split = lambda words, _: accept_any(words, _WITH_VALUES)


def run(options: argparse.Namespace) -> int:
    """Run one command; returns its exit code."""
    command = command_words(options)
    if not command:
        raise CliError("name a command: `keyhole run -- CMD…`")
    if options.unsafe_no_isolation:
        from keyhole.cli import unisolated

        return unisolated.run(options, command)
    from keyhole.cli.desktop_start import start_desktop
    from keyhole.cli.early_start import start_data_plane, start_helper

    # An engine makes a container's network, so that no helper has to.
    helper = start_helper() if options.runtime in (None, "bwrap") else None
    learns = options.learn or options.unsafe_learn
    plane = start_data_plane(options.policy, alone=options.own_gateway or learns)
    desktop = None if learns else start_desktop()
    from keyhole.cli.run_sandboxed import run_sandboxed

    return run_sandboxed(options, command, helper, plane, desktop)
