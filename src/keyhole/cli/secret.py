"""`keyhole secret set/list/test/rotate/rm`: the store. A value comes from a prompt or a pipe.

Never from an argument: the shell keeps those in its history, and /proc shows them to everyone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag, add_trust_flag
from keyhole.cli.secret_set import replace_secret, set_secret
from keyhole.cli.verb_context import find_host_paths
from keyhole.vault.memory_guard import guard_memory
from keyhole.vault.store import DIRECTORY, MAX_NAME, Store, is_name

if TYPE_CHECKING:
    import argparse

    _Actions = argparse._SubParsersAction[argparse.ArgumentParser]

VALUE_TYPED = (
    "a value is never an argument: your shell keeps it, and /proc shows it to every process. "
    "`keyhole secret set NAME` asks for it; one that you typed here should be changed"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # The words are not repeated: a CI log would keep what may be a secret (I8).
    parser.set_defaults(unknown_words=VALUE_TYPED)
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    _add_set(actions)
    text = "list names, how each is stored, its age, and where it is used; never values"
    listing = actions.add_parser("list", help=text, description=text)
    add_policy_flag(listing)
    add_json_flag(listing)
    _add_test(actions)
    _add_rotate(actions)
    text = "forget a secret"
    actions.add_parser("rm", help=text, description=text).add_argument("name", metavar="NAME")


def _add_set(actions: _Actions) -> None:
    text = "store a secret; its value comes from a prompt or standard input"
    parser = actions.add_parser("set", help=text, description=text)
    parser.add_argument("name", metavar="NAME", help="a policy calls it store:NAME")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--encrypted",
        action="store_true",
        help="encrypted with a passphrase, even if the desktop has a keyring",
    )
    ways.add_argument(
        "--plain", action="store_true", help="not encrypted, in a file that only you can read"
    )
    _add_short_flag(parser)


def _add_test(actions: _Actions) -> None:
    text = "make its service's cheapest request with it, and print the status"
    parser = actions.add_parser("test", help=text, description=text)
    parser.add_argument("name", metavar="NAME", help="of a secret in the store, or of a service")
    parser.add_argument(
        "--path", metavar="/PATH", help="path to request, if the catalogue has none"
    )
    add_policy_flag(parser)
    add_trust_flag(parser)
    add_json_flag(parser)


def _add_rotate(actions: _Actions) -> None:
    text = "replace a stored secret, and hand it to sessions that use it"
    parser = actions.add_parser("rotate", help=text, description=text)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--end-sessions", action="store_true", help="end the sessions that had the old one"
    )
    _add_short_flag(parser)


def _add_short_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unsafe-short",
        action="store_true",
        help="accept one of fewer than 16 characters, which is not removed from responses",
    )


def run(options: argparse.Namespace) -> int:
    """Run one action."""
    store = Store(find_host_paths().state / DIRECTORY)
    if options.action == "list":
        from keyhole.cli.secret_list import list_secrets

        return list_secrets(store, options.policy, as_json=options.json)
    guard_memory()
    _check_name(options.name)
    if options.action == "test":
        from keyhole.cli.secret_check import check  # imports the gateway and the sandbox

        return check(options)
    if options.action == "rm":
        return _remove(store, options.name)
    if options.action == "rotate":
        return replace_secret(store, options)
    return set_secret(store, options)


def _check_name(name: str) -> None:
    if not is_name(name):
        # Not printed: it may be the secret itself.
        raise CliError(
            f"NAME has at most {MAX_NAME} letters, digits, '.', '_' and '-'; the value is asked for"
        )


def _remove(store: Store, name: str) -> int:
    if not store.remove(name):
        raise CliError(f"the store has no {name}; `keyhole secret list` shows what it has")
    print(f"removed {name}")
    return EXIT_OK
