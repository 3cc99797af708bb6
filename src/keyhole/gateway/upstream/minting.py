"""Fetches short-lived tokens before they are needed, one for all requests.

Used by `http/authorize.py` for the credential of a host whose injection mints. The key file is only
used to sign; the token goes to the service's hosts as any other credential.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.inject.credential import Credential, make_credential
from keyhole.inject.scrub import Needles
from keyhole.inject.service_account import MAX_ANSWER, read_token, token_request
from keyhole.model.errors import CredentialUnusable, Malformed, UpstreamFailed
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.system.https import HttpsRequest, exchange

if TYPE_CHECKING:
    import ssl

    from keyhole.inject.service_account import GoogleAccount, TokenRequest
    from keyhole.policy.policy import ServiceHost
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.dialler import Dialler
    from keyhole.system.https import HttpsAnswer

FRESH = 300.0
"""Seconds before its end at which a new token is fetched; the old one is used meanwhile."""

TIMEOUT = 20.0
"""Seconds for the whole exchange with the issuer."""

PATIENCE = 10.0
"""Seconds before an issuer that returned no token is asked again."""

_FORM = "application/x-www-form-urlencoded"


class Minting:
    """The tokens of one account for one host of a service."""

    def __init__(
        self, account: GoogleAccount, host: ServiceHost, placeholder: str, book: Rulebook
    ) -> None:
        self._account = account
        self._host = host
        self._placeholder = placeholder
        self._book = book
        self._credential: Credential | None = None
        self._last = Needles.none()
        self._ends = 0.0
        self._old = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._failed: tuple[float, str] = (-PATIENCE, "")

    def current(self, now: float) -> Credential | None:
        """The credential, unless one must be fetched before the next request."""
        return self._credential if now < self._ends else None

    @property
    def needles(self) -> Needles:
        """The needles of the present token and the one before it."""
        return self._credential.needles if self._credential is not None else Needles.none()

    def is_old(self, now: float) -> bool:
        """Whether a new token should be fetched while this one still serves."""
        return now > self._old

    async def fetch(self, upstream: Dialler, trust: ssl.SSLContext) -> None:
        """Fetch a token; requests that come meanwhile wait for the same one.

        Raises CredentialUnusable.
        """
        fetching = self._fetching or self.renew(upstream, trust)
        if fetching is None:
            raise CredentialUnusable(self._failed[1])
        # One client that leaves must not take the token from the others.
        await asyncio.shield(fetching)

    def renew(self, upstream: Dialler, trust: ssl.SSLContext) -> asyncio.Task[None] | None:
        """Begin to fetch a token, unless one is being fetched or the last attempt has just
        failed."""
        if self._fetching is not None or time.monotonic() - self._failed[0] < PATIENCE:
            return None
        task = self._fetching = asyncio.ensure_future(self._fetch(upstream, trust))
        task.add_done_callback(self._fetched)
        return task

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            self._failed = (time.monotonic(), str(task.exception()))

    async def _fetch(self, upstream: Dialler, trust: ssl.SSLContext) -> None:
        asked = time.monotonic()
        request = token_request(self._account, time.time())
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._post(upstream, trust, request)
            token = read_token(answer.status, answer.body)
            made = make_credential(
                token.secret, self._host.inject, self._host.merge, self._placeholder
            )
        except Malformed as error:
            raise CredentialUnusable(f"the issuer's answer is malformed: {error.why}") from None
        except (UpstreamFailed, OSError) as error:
            raise CredentialUnusable(f"{request.host} cannot be reached: {error}") from None
        # The token before this one is still good for a while, so it must not come back either (I7).
        self._credential = replace(made, needles=made.needles | self._last)
        self._last = made.needles
        self._ends = asked + token.expires_in
        self._old = self._ends - min(FRESH, token.expires_in / 2)

    async def _post(
        self, upstream: Dialler, trust: ssl.SSLContext, request: TokenRequest
    ) -> HttpsAnswer:
        stream = await upstream.dial_verified(
            self._book, Host.parse(request.host), DEFAULT_PORT, trust
        )
        sent = HttpsRequest(request.host, request.path, _FORM, request.body)
        return await exchange(stream, sent, MAX_ANSWER)
