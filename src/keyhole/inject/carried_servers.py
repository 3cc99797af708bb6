"""The MCP servers of an agent's own settings, as they come along into the sandbox (I1).

Called by `app` when an agent is run by name. Headers and values of variables stay on the host: a
remote server gets its credential from the gateway, a local one reads a placeholder from a variable
of the sandbox. A server that cannot work like that, or whose command line looks as if it had a
credential in it, is left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from keyhole.inject.configured_servers import MAX_SERVERS, ConfiguredServer, read_servers
from keyhole.model.https_url import HttpsUrl

if TYPE_CHECKING:
    from keyhole.inject.agent_settings import Rejects

MAX_ARGUMENTS = 50
MAX_ARGUMENT = 1024
"""Characters of one argument."""

_REMOTE_KEYS = ("type", "url", "httpUrl", "transport", "enabled", "timeout", "startup_timeout_sec")
_URL_KEYS = ("url", "httpUrl")
_LOCAL_KEYS = ("type", "enabled", "timeout", "startup_timeout_sec")
_COMMAND_KEYS = ("command", "args")
_VARIABLE_KEYS = ("env", "environment")
# A value that is no credential, whatever the variable is called.
_HARMLESS = re.compile(r"true|false|[0-9]{1,5}|info|debug|warn|error|production|development")

Granted: TypeAlias = Callable[[HttpsUrl], bool]
"""Whether the policy has a service for this server."""


class CarriedServers(Struct, frozen=True):
    """The servers that come along, and the names of those that do not."""

    kept: dict[str, Any]
    left: tuple[str, ...]


def carry_servers(
    table: object,
    granted: Granted,
    variables: frozenset[str],
    reference: str,
    rejects: Rejects,
) -> CarriedServers:
    """The servers of a table that can be used inside. `variables` are those that hold placeholders
    there."""
    kept: dict[str, Any] = {}
    left: list[str] = []
    named = list(table.items())[:MAX_SERVERS] if isinstance(table, Mapping) else []
    for name, settings in named:
        # One that is switched off is none.
        for found in read_servers({name: settings}):
            if found.url is not None:
                made = _remote(settings, found, granted)
            else:
                made = _local(settings, found, variables, reference, rejects)
            if made is None:
                left.append(found.name)
            else:
                kept[name] = made
    return CarriedServers(kept, tuple(left))


def _remote(
    settings: Mapping[str, Any], found: ConfiguredServer, granted: Granted
) -> dict[str, Any] | None:
    # A path or a query that is not of plain words may be a token.
    if found.url is None or found.narrowed or "command" in settings or not granted(found.url):
        return None
    kept = {key: settings[key] for key in _REMOTE_KEYS if _is_plain(settings.get(key))}
    return {key: found.url.text if key in _URL_KEYS else value for key, value in kept.items()}


def _local(
    settings: Mapping[str, Any],
    found: ConfiguredServer,
    variables: frozenset[str],
    reference: str,
    rejects: Rejects,
) -> dict[str, Any] | None:
    command = {key: settings[key] for key in _COMMAND_KEYS if key in settings}
    words = [word for value in command.values() for word in _listed(value)]
    whole = " ".join(map(str, words))
    if not found.program or len(words) > MAX_ARGUMENTS or not all(map(_is_argument, words)):
        return None
    if rejects("", whole) or any(rejects("", str(word)) for word in words):
        return None
    made = command | {key: settings[key] for key in _LOCAL_KEYS if _is_plain(settings.get(key))}
    given = next((key for key in _VARIABLE_KEYS if isinstance(settings.get(key), Mapping)), "")
    values = settings[given] if given else {}
    kept = {name: value for name, value in values.items() if _is_harmless(name, value, rejects)}
    wanted = [name for name in found.variables if name in variables and name not in kept]
    if reference:
        kept |= {name: reference.replace("NAME", name) for name in wanted}
    elif wanted:
        made["env_vars"] = wanted
    return made | ({given or _VARIABLE_KEYS[0]: kept} if kept else {})


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _is_argument(word: object) -> bool:
    """Whether it can be shown. A URL with a query, or with a user, may have a token in it."""
    if not isinstance(word, str) or len(word) > MAX_ARGUMENT or not word.isprintable():
        return False
    return "://" not in word or not set(word) & set("@?=")


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= MAX_ARGUMENT)


def _is_harmless(name: object, value: object, rejects: Rejects) -> bool:
    if not isinstance(name, str) or not isinstance(value, str) or rejects(name, value):
        return False
    return _HARMLESS.fullmatch(value) is not None
