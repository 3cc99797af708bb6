"""`keyhole login NAME`: logs in to a service by OAuth; the tokens stay outside of every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from keyhole.app.run.port_claims import PortClaim
from keyhole.app.setup.login_list import KnownLogin, list_logins
from keyhole.app.setup.login_target import client_login, find_service, login_wish
from keyhole.app.setup.redirect_file import RedirectFile
from keyhole.cli.amounts import age, moment
from keyhole.cli.browser import find_browser, open_page
from keyhole.cli.consent import require_accepted
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_policy_flag, add_trust_flag
from keyhole.cli.login_access import accepted_access, access_under, found_policy
from keyhole.cli.paint import print_json
from keyhole.cli.passphrase import passphrase_prompt
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.model.text import visible
from keyhole.system.event_loop import run_on_loop
from keyhole.vault.callback_listener import CallbackListener
from keyhole.vault.custody import admit_reading, seal_secret
from keyhole.vault.login_flow import LOGIN_SECONDS, LoginFlow, log_in_to_client
from keyhole.vault.login_providers import PROVIDERS, locate_login, login_provider
from keyhole.vault.memory_guard import guard_memory
from keyhole.vault.new_login import write_login
from keyhole.vault.store import Store, is_name
from keyhole.vault.store_source import StoreSource

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Iterator

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.model.secret import Secret
    from keyhole.policy.policy import Service
    from keyhole.vault.json_document import Document
    from keyhole.vault.oauth.grants import DeviceCode, WantedGrant

OTHER_NAMES = {"chatgpt": "codex", "gemini": "google"}
"""What people call the logins of clients, unless a service of the policy is called so."""

MAX_TYPED = 16 * 1024
"""Bytes of an address that is pasted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help='a service of the policy that has secret = "login:…"; or claude, chatgpt, google',
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--no-browser", action="store_true", help="print the link, without starting a browser"
    )
    ways.add_argument(
        "--device", action="store_true", help="log in with a code that you type on any device"
    )
    ways.add_argument("--list", action="store_true", help="list the logins of this host")
    add_policy_flag(parser)
    add_trust_flag(parser)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Log in, or list."""
    guard_memory()
    if options.list:
        return _list(as_json=options.json)
    if options.name is None:
        raise CliError("log in to which service? `keyhole login NAME`; --list shows the logins")
    if not is_name(options.name):
        raise CliError("NAME is the name of a service: letters, digits, '.', '_' and '-'")
    chosen = options.no_browser or options.device
    if not chosen and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError(
            f"no terminal: `keyhole login {options.name} --no-browser` prints the link and waits, "
            "--device a code that you type elsewhere"
        )
    places = find_host_paths()
    name = _client(options, places)
    known = _log_in_client(name, options, places) if name else _log_in(options, places)
    _tell(known, as_json=options.json)
    return EXIT_OK


def _client(options: argparse.Namespace, places: HostPaths) -> str:
    """The client whose own login is meant; empty for a service of the policy."""
    file = found_policy(options.policy, places)
    name = options.name
    services = [each.name for each in file.loaded.policy.services] if file else []
    name = name if name in services else OTHER_NAMES.get(name, name)
    if file is not None:
        return client_login(file.loaded.policy, name)
    if name in PROVIDERS:
        return str(name)
    raise CliError(
        "there is no policy here, and a login is for a service of one; `keyhole init` writes one"
    )


# ── a service of the policy ───────────────────────────────────────────────────────────────────────


def _log_in(options: argparse.Namespace, places: HostPaths) -> KnownLogin:
    file = found_policy(options.policy, places)
    if file is None:
        raise CliError("there is no policy here; `keyhole init` writes one")
    service = find_service(file.loaded.policy, options.name)
    # The policy says which host gets the token, and which addresses are reached (I11).
    examined = require_accepted(file, places, options.trust, "no login was begun")
    ref = service.secret
    if ref is None:
        raise CliError("this service has no secret")  # `find_service` has refused it
    wish = login_wish(service, _client_secret(service, places))
    screen = _Screen(options, places)
    flow = LoginFlow(wish, access_under(examined), screen)
    with screen:
        document = _ask(flow, options, places)
    provider = login_provider(ref.locator)
    path = locate_login(ref, places.home, environment())
    _admit(ref, document)
    failed = write_login(provider, path, lambda _: document)
    if failed:
        raise CliError(f"the login cannot be kept: {failed}")
    return _known(ref.locator, places)


def _ask(flow: LoginFlow, options: argparse.Namespace, places: HostPaths) -> Document:
    if options.device:
        return run_on_loop(flow.by_device)
    with CallbackListener() as listener, _claimed(places, listener):
        return run_on_loop(lambda: flow.by_browser(listener))


def _client_secret(service: Service, places: HostPaths) -> Secret | None:
    ref = service.login.client_secret
    if ref is None:
        return None
    source = StoreSource(Store(places.store), passphrase_prompt())
    return admit_reading(ref, source.read(ref), unsafe_short=True).secret


def _admit(ref: SecretRef, document: Document) -> None:
    """Refuse a token now that no run would take, such as one that is too short to be found."""
    admit_reading(ref, seal_secret(str(document.get("access_token")).encode()))


# ── a client that everybody knows ─────────────────────────────────────────────────────────────────


def _log_in_client(name: str, options: argparse.Namespace, places: HostPaths) -> KnownLogin:
    provider = PROVIDERS[name]
    login = provider.browser
    if login is None or options.device:
        raise CliError(f"{name} has no login by code; leave --device out")
    screen = _Screen(options, places)
    reach = accepted_access(options.policy, places)
    listener = CallbackListener(login.redirect_host, login.redirect_path, login.redirect_port)
    with screen, listener, _claimed(places, listener):
        answer = run_on_loop(lambda: log_in_to_client(login, reach, listener, screen))
    path = locate_login(SecretRef(SecretScheme.LOGIN, name), places.home, environment())
    failed = write_login(provider, path, lambda old: provider.renewed(old, answer, time.time()))
    if failed:
        raise CliError(f"the login cannot be kept: {failed}")
    return _known(name, places)


# ── what the person sees ──────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _claimed(places: HostPaths, listener: CallbackListener) -> Iterator[None]:
    """Keep sandboxes from the listener's port, should a policy open it to them by chance."""
    claim = PortClaim.take(places.ports, listener.port)
    try:
        yield
    finally:
        if claim is not None:
            claim.release()


class _Screen:
    """The terminal, or a pipe; with --json, standard error, since standard output is the
    result's."""

    def __init__(self, options: argparse.Namespace, places: HostPaths) -> None:
        self._name = options.name
        self._stream: TextIO = sys.stderr if options.json else sys.stdout
        self._program = None if options.no_browser else find_browser(environment())
        self._page = RedirectFile(places.runtime, "login")
        self._waits = not options.device and sys.stdin.isatty()

    def __enter__(self) -> None:
        """Nothing more to do."""

    def __exit__(self, *_: object) -> None:
        self._page.remove()

    def show_issuer(self, issuer: str, wanted: WantedGrant) -> None:
        scopes = ", ".join(wanted.scopes) or "what the issuer gives by itself"
        service = f" for {visible(wanted.resource)}" if wanted.resource else ""
        self._print(f"{self._name}: {visible(issuer)} issues the token{service}")
        self._print(f"rights that are asked for: {visible(scopes)}")

    def show_link(self, link: str) -> None:
        if self._program is not None:
            open_page(self._program, self._page.write(link))
            self._print("your browser opens; if it does not, open this link in it:")
        else:
            self._print("open this link in a browser of this host:")
        self._print(f"\n  {visible(link)}\n")
        minutes = int(LOGIN_SECONDS // 60)
        self._print(f"waiting for the browser to come back, {minutes} minutes at most")
        if self._waits:
            self._print(
                "a browser on another machine cannot open the last address: paste that here"
            )

    def show_code(self, code: DeviceCode) -> None:
        minutes = max(int(code.life // 60), 1)
        self._print(f"open {visible(code.where.text)} on any device, and type this code:")
        self._print(f"\n  {visible(code.shown)}\n")
        self._print(f"waiting, {minutes} minutes at most")

    def typed(self) -> Awaitable[str] | None:
        return _typed_line() if self._waits else None

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


async def _typed_line() -> str:
    """One line from the terminal, without a thread that nobody could end."""
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    found: asyncio.Future[str] = loop.create_future()
    data = bytearray()

    def read() -> None:
        piece = os.read(number, MAX_TYPED)
        data.extend(piece)
        if not piece:
            loop.remove_reader(number)  # the terminal has ended; the browser may still come
        elif (b"\n" in data or len(data) > MAX_TYPED) and not found.done():
            found.set_result(data.decode("utf-8", "replace"))

    loop.add_reader(number, read)
    try:
        return await found
    finally:
        loop.remove_reader(number)


# ── the logins that are there ─────────────────────────────────────────────────────────────────────


def _known(name: str, places: HostPaths) -> KnownLogin:
    found = list_logins(places.home, environment())
    return next((one for one in found if one.name == name), KnownLogin(name, name))


def _tell(known: KnownLogin, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(known))
        return
    if known.renewable:
        life = "Keyhole renews the token while it is used"
    elif known.expires is not None:
        life = f"the token ends in {age(known.expires - time.time())} and cannot be renewed"
    else:
        life = "the issuer does not say when the token ends"
    print(f'logged in to {known.name}; {life}. A policy names it by secret = "login:{known.name}"')


_COLUMNS = (
    Column("LOGIN"),
    Column("FOR", Fit.WRAPPED),
    Column("SCOPES", Fit.WRAPPED, needs=100),
    Column("STATE", Fit.WRAPPED),
)


def _list(*, as_json: bool) -> int:
    found = list_logins(find_host_paths().home, environment())
    if as_json:
        print_json([_json(one) for one in found])
    elif not found:
        print("there is no login yet; `keyhole login NAME` makes one")
    else:
        rows = tuple(
            (cell(one.name), cell(one.target), cell(", ".join(one.scopes)), cell(_state(one)))
            for one in found
        )
        show([Grid(_COLUMNS, rows)])
    return EXIT_OK


def _state(one: KnownLogin) -> str:
    left = None if one.expires is None else one.expires - time.time()
    if one.flaw:
        return f"unusable: {one.flaw}"
    if left is not None and left <= 0:
        return "renewed when it is used" if one.renewable else f"ended; `keyhole login {one.name}`"
    ends = "good" if left is None else f"good for {age(left)}"
    return f"{ends}, then renewed" if one.renewable and left is not None else ends


def _json(one: KnownLogin) -> dict[str, object]:
    return {
        "id": one.name,
        "reference": f"login:{one.name}",
        "for": one.target,
        "scopes": list(one.scopes),
        "since": None if one.since is None else moment(one.since),
        "expires": None if one.expires is None else moment(one.expires),
        "renewable": one.renewable,
        "flaw": one.flaw,
    }
