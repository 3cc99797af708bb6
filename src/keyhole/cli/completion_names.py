"""Names that a completion script asks for when a person presses Tab.

Used by `completion.py`. A source that cannot be read gives no names, and prints no error into the
line that is being typed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import list_sandboxes
from keyhole.app.run.finding_store import FindingStore
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import find_policy
from keyhole.cli.gateway_client import find_gateways
from keyhole.cli.named_policy import read_policy
from keyhole.cli.parser import VERBS
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.client import ControlFailed
from keyhole.control.endpoints import ask_all
from keyhole.model.errors import KeyholeError
from keyhole.model.secret import LOGINS, SecretScheme
from keyhole.model.text import visible
from keyhole.sandbox.homes.home_store import HomeStore
from keyhole.vault.kept_login import SUFFIX, logins_directory
from keyhole.vault.store import DIRECTORY, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def list_names(kind: str) -> list[str]:
    """The names of one kind, sorted; those that no shell could take as one word are left out."""
    try:
        found = sorted(set(NAMES[kind]()))
    except (KeyholeError, OSError):
        return []
    return [name for name in found if name == visible(name) and len(name.split()) == 1]


def _secrets() -> Iterable[str]:
    return [entry.name for entry in Store(find_host_paths().state / DIRECTORY).entries()]


def _sessions() -> Iterable[str]:
    with find_gateways() as endpoints:
        for _, found in ask_all(endpoints, lambda each: each.sessions()):
            if not isinstance(found, ControlFailed):
                yield from (each.id for each in found)


def _asks() -> Iterable[str]:
    with find_gateways() as endpoints:
        for _, found in ask_all(endpoints, lambda each: each.asks()):
            if not isinstance(found, ControlFailed):
                yield from (each.id for each in found)


def _sandboxes() -> Iterable[str]:
    return [each.name for each in list_sandboxes(find_host_paths().sandboxes)]


def _running() -> Iterable[str]:
    return [*_sandboxes(), *_sessions()]


def _findings() -> Iterable[str]:
    books = FindingStore(find_host_paths().findings).every()
    return [each.id for book in books for each in book.open]


def _homes() -> Iterable[str]:
    return [each.key.policy for each in HomeStore(find_host_paths().homes).list(measured=False)]


def _logins() -> Iterable[str]:
    """Logins that are there, to be made again or ended."""
    directory = logins_directory(find_host_paths().home, environment())
    own = (name.removesuffix(SUFFIX) for name in os.listdir(directory) if name.endswith(SUFFIX))
    return [name for name in own if not name.startswith(".")]


def _login_targets() -> Iterable[str]:
    """Services of the policy here that are logged in to, and clients that everybody knows."""
    places = find_host_paths()
    path = find_policy(Path.cwd(), places.home)
    services = read_policy(path, places, FileCatalogue()).loaded.policy.services
    used = (s.name for s in services if s.secret and s.secret.source is SecretScheme.LOGIN)
    return [*LOGINS, *used]


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "agents": FileProfiles,
    "asks": _asks,
    "services": FileCatalogue,
    "secrets": _secrets,
    "logins": _logins,
    "login-targets": _login_targets,
    "sessions": _sessions,
    "sandboxes": _sandboxes,
    "running": _running,
    "findings": _findings,
    "homes": _homes,
    "verbs": lambda: VERBS,
}
"""Each kind of names, and the function that finds them."""
