"""Files that a client needs to start, with a placeholder in place of a token (I1).

Most clients take a placeholder from a variable; a few look for a login file of their own. The file
made here looks like a valid login, and authorises nothing. `app` calls this with the placeholders
of a session's services and puts the files into the sandbox's empty home.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.inject.agent_profile import SettingsFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FAR_FUTURE = 4102444800
"""2100-01-01: a client that reads when its login ends must not try to renew it."""

NOBODY = "00000000-0000-0000-0000-000000000000"
"""The account that a stand-in login names; the gateway writes the real one into requests."""

_APPROVED_CHARACTERS = 20
"""The number of a key's last characters by which Claude Code remembers an approval."""


class StubFile(Struct, frozen=True):
    """A file of a client: its path below the home, and its content."""

    path: str
    content: str
    mode: int = 0o600
    fixed: Mapping[str, Any] | None = None
    """For a kept home: the values that are written at each start, while others stay as the client
    left them; None: the whole file is written again."""
    format: SettingsFormat = SettingsFormat.JSON


def stub_files(placeholders: Mapping[str, str], today: str) -> tuple[StubFile, ...]:
    """The files for these placeholders, which are given by catalogue entry; `today` as 2026-07-01.

    Two entries may serve one client (a subscription, a key): the subscription's file is chosen,
    since the key works by its variable in other clients too.
    """
    found: dict[str, StubFile] = {}
    for template, make in _MAKERS.items():
        if template in placeholders:
            stub = make(placeholders[template], today)
            found.setdefault(stub.path, stub)
    return tuple(found.values())


def _codex(placeholder: str, today: str) -> StubFile:
    """Codex reads its account from the tokens' claims, and requests others after eight days."""
    owner = {
        "chatgpt_account_id": NOBODY,
        "chatgpt_user_id": "keyhole",
        "chatgpt_plan_type": "plus",
    }
    token = _unsigned(
        {
            "email": "sandbox@keyhole.invalid",
            "exp": FAR_FUTURE,
            "https://api.openai.com/auth": owner,
        },
        placeholder,
    )
    tokens = {
        "id_token": token,
        "access_token": token,
        "refresh_token": placeholder,
        "account_id": NOBODY,
    }
    login = {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": f"{today}T00:00:00Z"}
    return StubFile(".codex/auth.json", _json(login))


def _codex_by_key(placeholder: str, _: str) -> StubFile:
    return StubFile(".codex/auth.json", _json({"OPENAI_API_KEY": placeholder}))


def _claude_code(_: str, __: str) -> StubFile:
    """Without this file, Claude Code begins with a tour; the token is in a variable."""
    return _claude_settings({"hasCompletedOnboarding": True})


def _claude_code_by_key(placeholder: str, _: str) -> StubFile:
    """Claude Code uses a key from a variable only after a person has approved it."""
    answers = {"approved": [placeholder[-_APPROVED_CHARACTERS:]], "rejected": []}
    return _claude_settings({"hasCompletedOnboarding": True, "customApiKeyResponses": answers})


def _claude_settings(table: Mapping[str, object]) -> StubFile:
    return StubFile(".claude.json", _json(table), fixed=table)


_MAKERS: Mapping[str, Callable[[str, str], StubFile]] = {
    "codex": _codex,
    "openai": _codex_by_key,
    "claude": _claude_code,
    "anthropic": _claude_code_by_key,
}
"""By catalogue entry; of two that write the same file the first is chosen."""


def _unsigned(claims: Mapping[str, object], placeholder: str) -> str:
    """A JSON Web Token with the plain placeholder in place of the signature, so that a token which
    turns up at another host is recognised."""
    header = {"alg": "none", "typ": "JWT"}
    return ".".join((_encoded(header), _encoded(claims), placeholder))


def _encoded(value: Mapping[str, object]) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode("ascii")


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2) + "\n"
