"""`keyhole invite`: prints a code by which one sandbox of another machine may use this gateway."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_file import with_presets
from keyhole.app.setup.provision import grants_digest
from keyhole.cli.consent import require_accepted
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag, add_trust_flag
from keyhole.cli.gateway_client import open_gateway_client
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.values import SessionRequest

if TYPE_CHECKING:
    import argparse

_LABEL = "remote"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_policy_flag(parser)
    add_trust_flag(parser)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Have the policy accepted here, and print a code that works once."""
    places, env = find_host_paths(), environment()
    file = read_policy(options.policy, places, FileCatalogue())
    examined = require_accepted(file, places, options.trust, "nobody was invited")
    request = SessionRequest(
        policy=str(file.path),
        trusted=examined.digest,
        label=_LABEL,
        granted=grants_digest(with_presets(file, env, places).policy),
        search_path=env.get("PATH", ""),
    )
    with open_gateway_client() as client:
        invited = client.invite(request)
    if options.json:
        print_json({"code": invited.code, "gateway": invited.gateway, "seconds": invited.seconds})
        return EXIT_OK
    # The code alone is on standard output, for `keyhole invite | ssh …`.
    print(invited.code)
    minutes = invited.seconds // 60
    print(
        f"keyhole: this code works once, within {minutes} minutes. On the other machine:\n"
        f"  keyhole door --gateway {invited.gateway} -- CMD…\n"
        "keyhole: name this host there as that machine reaches it; the code is asked for",
        file=sys.stderr,
    )
    return EXIT_OK
