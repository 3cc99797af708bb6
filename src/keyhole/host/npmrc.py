"""Reads npmrc files for registries' credentials, which `npm config` does not print.

Called by `node`. It accepts what npm's own `ini` accepts at the top level, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING

from keyhole.host.found_credential import FoundCredential
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.host.fetch_location import FetchLocation

# npm's env-replace.js; a backslash keeps a reference from being one.
_REFERENCE = re.compile(r"(?<!\\)\$\{([^${}?]+)(\?)?\}")

# npm's `ini`: an unquoted value ends at a comment, unless its sign is escaped.
_UNQUOTED = re.compile(r"(?:\\.|[^;#\\])*")
_ESCAPED = re.compile(r"\\([\\;#])")


def parse(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """The file's keys and values, with `${VARIABLE}` replaced as npm does."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            break  # a section's keys are not npm's settings
        if not line or line[0] in ";#" or "=" not in line:
            continue
        key, _, value = line.partition("=")
        found[_replace(_plain(key), env)] = _replace(_plain(value), env)
    return found


def credential(
    files: Mapping[str, Mapping[str, str]], at: FetchLocation
) -> tuple[FoundCredential, tuple[str, ...]] | None:
    """The credential that npm would send there, and the path below which it sends it.

    `files` are settings by where they were read; later ones win.

    Like npm, it walks up from the registry's own path: `//host/a/b/`, `//host/a/b`, `//host/a/`, …
    """
    settings = {key: (value, where) for where in files for key, value in files[where].items()}
    key = f"//{at.netloc}{at.path or '/'}"
    floor = len(f"//{at.netloc}")
    while len(key) >= floor:
        found = _credential_at(settings, key)
        if found:
            return found, RequestPath.parse(key[floor:] or "/").segments
        key = re.sub(r"([^/]+|/)$", "", key)
    return None


def _credential_at(settings: Mapping[str, tuple[str, str]], key: str) -> FoundCredential | None:
    def value(name: str) -> str:
        found, _ = settings.get(f"{key}:{name}", ("", ""))
        # The variable is not set: npm would send its name.
        return "" if "${" in found else found

    try:
        for name, make in (
            ("_authToken", FoundCredential.bearer),
            ("_auth", FoundCredential.encoded_basic),
        ):
            if value(name):
                return make(value(name)).found_in(settings[f"{key}:{name}"][1])
        if value("username") and value("_password"):
            found = FoundCredential.basic(value("username"), _decoded(value("_password")))
            return found.found_in(settings[f"{key}:_password"][1])
    except Unparsable:
        return None
    return None


def _decoded(password: str) -> str:
    try:
        return base64.b64decode(password + "=" * (-len(password) % 4)).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise Unparsable("a _password is base64") from None


def _plain(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return _ESCAPED.sub(r"\1", _UNQUOTED.match(text)[0]).strip()  # type: ignore[index]


def _replace(text: str, env: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return env.get(found[1], "" if found[2] else found[0])

    return _REFERENCE.sub(value, text)
