"""`keyhole logout NAME`: ends a login at its issuer, where that is offered, and forgets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag
from keyhole.cli.login_access import accepted_access
from keyhole.cli.paint import notice, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.vault.kept_login import revocations
from keyhole.vault.login_file import LoginFile
from keyhole.vault.login_providers import PROVIDERS, locate_login
from keyhole.vault.memory_guard import guard_memory
from keyhole.vault.new_login import remove_login
from keyhole.vault.store import is_name
from keyhole.vault.token_endpoint import send_request

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from keyhole.vault.login_provider import EndpointAccess, LoginTokenRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="as `keyhole login --list` shows it")
    add_policy_flag(parser)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Forget the login, then tell its issuer: sandboxes lose it even if nobody answers."""
    guard_memory()
    name = options.name
    if not is_name(name):
        raise CliError("NAME has letters, digits, '.', '_' and '-'")
    if name in PROVIDERS:
        raise CliError(f"login:{name} belongs to its client, which others use too: log out there")
    places = find_host_paths()
    path = locate_login(SecretRef(SecretScheme.LOGIN, name), places.home, environment())
    requests = _requests(path)
    if not remove_login(path):
        raise CliError(f"there is no login {name}; `keyhole login --list` shows what there is")
    reach = accepted_access(options.policy, places)
    failed = [why for each in requests if (why := _revoke(each, reach))]
    revoked = bool(requests) and not failed
    if failed:
        notice(f"the issuer was not told: {failed[0]}. Tokens may be good until they end")
    if options.json:
        print_json({"id": name, "revoked": revoked})
    else:
        ended = "its tokens are revoked" if revoked else "its issuer offers no revocation"
        print(f"logged out of {name}" if failed else f"logged out of {name}; {ended}")
    return EXIT_OK


def _requests(path: Path) -> tuple[LoginTokenRequest, ...]:
    """The requests that end the login; none if the file cannot be read."""
    try:
        file = LoginFile(path)
    except ResourceUnusable:
        return ()
    try:
        return revocations(file.read().document)
    except ResourceUnusable:
        return ()
    finally:
        file.close()


def _revoke(request: LoginTokenRequest, reach: EndpointAccess) -> str:
    """Send one request. Returns why it failed."""
    answer = send_request(request, reach)
    # RFC 7009 §2.2: 200, whatever the body; an unknown token is no error either.
    return "" if answer.status == 200 else answer.why or f"it answered {answer.status}"
