"""`keyhole policy schema` and `keyhole policy trust`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.cli.consent import grants, obtain
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_argument, add_trust_flag, chosen_policy
from keyhole.cli.grants import grants_json
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import print_json
from keyhole.cli.schema_file import policy_schema, save_schema, schema_reference
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible
from keyhole.policy.policy_draft import schema_line

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    text = "print the JSON Schema of keyhole.toml, for editors"
    schema = actions.add_parser("schema", help=text, description=text)
    schema.add_argument(
        "--save",
        action="store_true",
        help="write it to a file instead, and print the line that tells editors about it",
    )
    text = "show what a policy grants and accept it on this host"
    trust = actions.add_parser("trust", help=text, description=text)
    add_policy_argument(trust)
    add_trust_flag(trust)
    add_json_flag(trust)


def run(options: argparse.Namespace) -> int:
    """Print the schema, or accept a policy."""
    if options.action == "schema":
        if options.save:
            _save()
        else:
            print_json(policy_schema())
        return EXIT_OK
    places = find_host_paths()
    file = read_policy(chosen_policy(options), places, FileCatalogue())
    examined = examine_policy(file, places.home, environment().get("PATH", ""))
    store = AcceptanceStore(places.trust)
    if options.json:
        accepted = obtain(examined, store, options.trust, asks=False)
        print_json(
            {
                "policy": str(file.path),
                "digest": examined.digest,
                "accepted": accepted,
                "grants": grants_json(grants(examined)),
            }
        )
    else:
        accepted = obtain(examined, store, options.trust)
        print(f"{'accepted' if accepted else 'not accepted'} {examined.digest}")
    return EXIT_OK if accepted else EXIT_DENIED


def _save() -> None:
    places = find_host_paths()
    try:
        save_schema(places)
    except OSError as error:
        raise CliError(f"{visible(str(places.schema))}: {error.strerror}") from None
    # Elsewhere than below the home there is no other way to name it than by its whole path.
    print(schema_line(schema_reference(places, Path.cwd()) or places.schema.absolute().as_uri()))
