"""Files without which a client does not start, with the placeholder where a token would be (I1).

Most clients take a placeholder from a variable; a few look for a login of their own making. What
they find says that somebody is logged in, for long, and authorises nothing. `app` calls this with
the placeholders of a session's services and puts the files into the sandbox's empty home.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FAR_FUTURE = 4102444800
"""2100-01-01: a client that reads when its login ends must not try to renew it."""

NOBODY = "00000000-0000-0000-0000-000000000000"
"""The account that a stand-in login names; the gateway writes the real one into requests."""

_APPROVED_CHARACTERS = 20
"""How many of a key's last characters Claude Code remembers an approval by."""


@dataclass(frozen=True, slots=True)
class Stub:
    """A file of a client: its path below the home, and what is in it."""

    path: str
    content: str


def stub_files(placeholders: Mapping[str, str], today: str) -> tuple[Stub, ...]:
    """The files for these placeholders, which are given by catalogue entry; `today` as 2026-07-01.

    Two entries may serve one client (a subscription, a key): the subscription's file is chosen,
    since the key works by its variable in other clients too.
    """
    found: dict[str, Stub] = {}
    for template, make in _MAKERS.items():
        if template in placeholders:
            stub = make(placeholders[template], today)
            found.setdefault(stub.path, stub)
    return tuple(found.values())


def _codex(placeholder: str, today: str) -> Stub:
    """Codex reads who it is from the tokens' claims, and asks for others after eight days."""
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
    return Stub(".codex/auth.json", _json(login))


def _codex_by_key(placeholder: str, _: str) -> Stub:
    return Stub(".codex/auth.json", _json({"OPENAI_API_KEY": placeholder}))


def _claude_code(_: str, __: str) -> Stub:
    """Without it the first thing to be seen is a tour; the token is in a variable."""
    return Stub(".claude.json", _json({"hasCompletedOnboarding": True}))


def _claude_code_by_key(placeholder: str, _: str) -> Stub:
    """A key from a variable is used once a person has approved of it."""
    answers = {"approved": [placeholder[-_APPROVED_CHARACTERS:]], "rejected": []}
    return Stub(
        ".claude.json", _json({"hasCompletedOnboarding": True, "customApiKeyResponses": answers})
    )


_MAKERS: Mapping[str, Callable[[str, str], Stub]] = {
    "codex": _codex,
    "openai": _codex_by_key,
    "claude": _claude_code,
    "anthropic": _claude_code_by_key,
}
"""By catalogue entry; of two that write the same file the first is chosen."""


def _unsigned(claims: Mapping[str, object], placeholder: str) -> str:
    """A JSON Web Token with the placeholder as it is in the place of the signature: a token that
    turns up at another host is known by it."""
    header = {"alg": "none", "typ": "JWT"}
    return ".".join((_encoded(header), _encoded(claims), placeholder))


def _encoded(value: Mapping[str, object]) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode("ascii")


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2) + "\n"
