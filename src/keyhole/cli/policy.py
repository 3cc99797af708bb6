"""`keyhole policy schema` and `keyhole policy trust`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.policyfile import Unreadable
from keyhole.app.trust import TrustStore, examine
from keyhole.cli.check import grants_json
from keyhole.cli.consent import grants, obtain
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.reference import json_schema

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Print the schema, or ask for a policy's acceptance."""
    if options.action == "schema":
        print_json(json_schema())
        return EXIT_OK
    places = find_places()
    try:
        file = read_policy(options.policy, places, FileCatalogue())
        dossier = examine(file, places.home, environment().get("PATH", ""))
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid, so it cannot be accepted") from None
    except Unreadable as error:
        raise CliError(str(error)) from None
    store = TrustStore(places.trust)
    if options.json:
        accepted = obtain(dossier, store, options.trust, asks=False)
        print_json(
            {
                "policy": str(file.path),
                "digest": dossier.digest,
                "accepted": accepted,
                "grants": grants_json(grants(dossier)),
            }
        )
    else:
        accepted = obtain(dossier, store, options.trust)
        print(f"{'accepted' if accepted else 'not accepted'} {dossier.digest}")
    return EXIT_OK if accepted else EXIT_DENIED
