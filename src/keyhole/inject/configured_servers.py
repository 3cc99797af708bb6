"""The MCP servers of an agent's settings, as `init` and `doctor` need them (I1).

Called by `host` with a table of an agent's own file, which may hold tokens: in headers, variables,
arguments, and in the URL itself. None of these values is kept, so that none can reach a policy, a
question or a log; what is kept are names, hosts and paths of plain words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.https_url import HttpsUrl

MAX_SERVERS = 100
"""Servers that are read of one table; people have some dozen (I9)."""
MAX_NAME = 64
"""Characters of a server's or a variable's name."""
MAX_VARIABLES = 20

_URLS = ("url", "httpUrl", "uri", "serverUrl")
_HEADERS = ("headers", "http_headers", "env_http_headers")
_VARIABLES = ("env", "environment", "envs", "env_keys", "env_vars")
_TOKEN_KEYS = ("bearer_token_env_var", "api_key_env", "authProviderType")
_TELLS_WHO = re.compile("auth|token|key|secret|cookie", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Some vendors put a token into the path. A word of a path has letters, or is a version.
_WORD = re.compile(r"[A-Za-z][A-Za-z._-]{0,23}|v[0-9]{1,3}")
_REMOTE_BY_PROGRAM = "mcp-remote"
"""A local program that passes messages on to the server whose URL it is given."""


class ConfiguredServer(Struct, frozen=True):
    """One server, without any value that may be a credential."""

    name: str
    url: HttpsUrl | None = None
    """Where a remote one is; the path is `/` if the setting's is not of plain words."""
    narrowed: bool = False
    """Whether the setting's URL has a query or another path."""
    has_token: bool = False
    """Whether the setting gives it a credential."""
    program: str = ""
    """The program of a local one."""
    variables: tuple[str, ...] = ()
    """Names of the variables that it is given."""
    flaw: str = ""
    """Why no service can be proposed for it."""


def read_servers(table: object) -> tuple[ConfiguredServer, ...]:
    """The servers of a table by name, or of a list of tables with names; none of anything else."""
    if isinstance(table, list):
        named = [(each.get("name"), each) for each in table if isinstance(each, Mapping)]
    elif isinstance(table, Mapping):
        named = list(table.items())
    else:
        return ()
    found = (_server(name, each) for name, each in named[:MAX_SERVERS])
    return tuple(each for each in found if each is not None)


def _server(name: object, table: object) -> ConfiguredServer | None:
    if not isinstance(name, str) or not isinstance(table, Mapping) or not name.isprintable():
        return None
    if table.get("enabled") is False or table.get("disabled") is True:
        return None
    shown = name[:MAX_NAME]
    variables = tuple(_variables(table))[:MAX_VARIABLES]
    words = _words(table)
    given = next((table[key] for key in _URLS if isinstance(table.get(key), str)), None)
    if given is None and any(word.startswith(_REMOTE_BY_PROGRAM) for word in words):
        given = next((word for word in words if word.startswith(("https:", "http:"))), None)
    if given is not None:
        has_token = _has_token(table) or "--header" in words
        return _remote(shown, given, has_token=has_token, variables=variables)
    if words:
        program = words[0].rpartition("/")[2][:MAX_NAME]
        return ConfiguredServer(shown, program=program, variables=variables)
    return None


def _remote(
    name: str, text: str, *, has_token: bool, variables: tuple[str, ...]
) -> ConfiguredServer:
    try:
        url = HttpsUrl.parse(text.partition("#")[0])
    except Unparsable as error:
        return ConfiguredServer(name, flaw=error.message)
    plain = all(_WORD.fullmatch(word) for word in url.path.strip("/").split("/") if word)
    kept = url.beside(url.path if plain else "/")
    return ConfiguredServer(
        name, kept, kept.target != url.target, has_token or "=" in url.target, "", variables
    )


def _words(table: Mapping[str, Any]) -> list[str]:
    """A local server's program and arguments; the arguments do not leave this module."""
    command = table.get("command", table.get("cmd"))
    parts = [*command] if isinstance(command, list) else [command]
    args = table.get("args")
    parts += args if isinstance(args, list) else []
    return [part for part in parts if isinstance(part, str) and part]


def _variables(table: Mapping[str, Any]) -> Iterable[str]:
    for key in _VARIABLES:
        value = table.get(key)
        for name in value if isinstance(value, Mapping | list) else ():
            if isinstance(name, str) and len(name) <= MAX_NAME and _VARIABLE.fullmatch(name):
                yield name


def _has_token(table: Mapping[str, Any]) -> bool:
    headers = [value for key in _HEADERS if isinstance(value := table.get(key), Mapping)]
    named = (str(name) for each in headers for name in each)
    return any(table.get(key) for key in _TOKEN_KEYS) or any(map(_TELLS_WHO.search, named))
