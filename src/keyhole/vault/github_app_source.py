"""`github-app:ID`: a token of a GitHub App, minted here for what the policy grants, and renewed.

The app's key is in the store, by the name `github-app-ID`, and stays in this process: a gateway
gets tokens alone, each good for an hour, for the granted repositories and the permissions that
`push` and `api` need.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.system import clock
from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretReading, SecretUnavailable
from keyhole.vault.login_provider import LoginTokenRequest
from keyhole.vault.secret_lifetime import SecretLifetime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.secret import Secret
    from keyhole.policy.github_app import AppGrant
    from keyhole.vault.interface import SecretSource
    from keyhole.vault.login_provider import EndpointAccess
    from keyhole.vault.token_endpoint import EndpointAnswer

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer: it describes each repository in some 8,000 (I9)."""

PATIENCE = 20.0
"""Seconds for each answer."""

KEY_PREFIX = "github-app-"
"""The name of an app's key in the store, before the app's id."""

_ACCEPT = "application/vnd.github+json"


def key_reference(ref: SecretRef) -> SecretRef:
    """The key of an app, in the store."""
    return SecretRef(SecretScheme.STORE, f"{KEY_PREFIX}{ref.locator}")


class GitHubAppSource:
    """Tokens of apps, minted for one policy."""

    def __init__(
        self,
        keys: SecretSource,
        grants: Mapping[SecretRef, AppGrant],
        reach: EndpointAccess | None,
    ) -> None:
        self._keys = keys
        self._grants = grants
        self._reach = reach

    def read(self, ref: SecretRef) -> SecretReading:
        """A new token."""
        kept = key_reference(ref)
        try:
            key = self._keys.read(kept)
        except SecretUnavailable as error:
            raise SecretUnavailable(ref, f"{error.why}, from the app's .pem file") from None
        grant = self._grants.get(ref)
        if grant is None or self._reach is None:
            raise SecretUnavailable(ref, "no service of this policy says what the token is for")
        if key.secret is None:
            raise SecretUnavailable(ref, key.flaw)
        reach = replace(self._reach, patience=min(PATIENCE, self._reach.patience))
        found = _mint(ref.locator, key.secret, grant, reach)
        if isinstance(found, str):
            raise SecretUnavailable(ref, found)
        return found

    def mark(self, ref: SecretRef) -> object:
        """The key's: another key means another token."""
        return self._keys.mark(key_reference(ref))


def _mint(app: str, secret: Secret, grant: AppGrant, reach: EndpointAccess) -> SecretReading | str:
    """The token, or why there is none; nothing raises while characters are in scope."""
    from keyhole.vault import github_app  # it brings a cipher library

    key = github_app.read_key(secret)
    if key is None:
        return "the stored key is not an app's private key: a .pem file with an RSA key"
    name = f"{grant.owner}/{grant.repositories[0]}"

    def ask(path: str, body: bytes = b"", method: str = "GET") -> EndpointAnswer:
        proof = github_app.claim(key, app, time.time())
        return _ask(grant, path, f"Bearer {proof}", body, method, reach)

    answer = ask(f"/repos/{name}/installation")
    where = grant.api.host
    if answer.status == 404:
        return f"the app {app} is not installed for {name} at {where}: install it there"
    found = github_app.read_installation(answer.document or {})
    if answer.status != 200 or found is None:
        return _refusal(where.name, answer)
    lacking = github_app.missing_permissions(grant, found)
    if lacking:
        return (
            f"the app {app} lacks permissions that this policy needs ({', '.join(lacking)}): add "
            f"them in its settings at {where}, and accept them for the installation"
        )
    body = github_app.token_request(grant, found)
    asked = clock.now()
    answer = ask(f"/app/installations/{found.number}/access_tokens", body, "POST")
    if answer.status == 422:
        return f"the app {app} is not installed for each repository of this policy"
    if answer.status != 201:
        return _refusal(where.name, answer)
    token = github_app.read_app_token(answer.document or {}, grant)
    if isinstance(token, str):
        return f"{where}: {token}"
    left = token.expires - time.time()
    if left <= 0:
        return f"{where} gave a token that has ended; is this host's clock right?"
    life = SecretLifetime(asked, clock.now() + left)
    return replace(seal_secret(token.token.encode("ascii")), life=life)


def _ask(
    grant: AppGrant,
    path: str,
    authorization: str,
    body: bytes,
    method: str,
    reach: EndpointAccess,
) -> EndpointAnswer:
    from keyhole.vault.token_endpoint import send_request  # it brings sockets and TLS

    url = grant.api.beside(f"{grant.api.path.rstrip('/')}{path}")
    kind = "application/json" if body else ""
    request = LoginTokenRequest(
        url, kind, body, authorization=authorization, method=method, accept=_ACCEPT
    )
    return send_request(request, reach, MAX_ANSWER)


def _refusal(host: str, answer: EndpointAnswer) -> str:
    if not answer.status:
        return answer.why
    if answer.status == 401:
        return f"{host} does not accept the app's key; is it this app's, and the clock right?"
    return f"{host} answered {answer.status}"
