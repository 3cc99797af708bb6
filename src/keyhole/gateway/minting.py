"""Short-lived tokens: fetched by the gateway itself, before they are needed, once for all requests.

Asked by `inspection.py` for the credential of a host whose injection mints. The key file never goes
anywhere but into a signature; the token goes to the service's hosts as any other credential.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from keyhole.inject.credential import Credential, Unusable, make_credential
from keyhole.inject.scrub import Needles
from keyhole.inject.serviceaccount import MAX_ANSWER, NoToken, read_token, token_request
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.value import replace
from keyhole.system.dialler import AddressRefused, Dialler, Unreachable
from keyhole.wire.httpbody import ChunkedReader
from keyhole.wire.httpfield import END_OF_HEAD, Malformed
from keyhole.wire.httpresponse import Framing, parse_response

if TYPE_CHECKING:
    import ssl

    from keyhole.inject.serviceaccount import Account, TokenRequest
    from keyhole.policy.policy import ServiceHost
    from keyhole.policy.rulebook import Rulebook

FRESH = 300.0
"""Seconds before its end at which a token is fetched anew; the old one serves meanwhile."""

TIMEOUT = 20.0
"""Seconds for the whole exchange with the issuer."""

PATIENCE = 10.0
"""Seconds before an issuer that gave no token is asked again."""


class Unminted(Exception):
    """No token can be had; the text is for a person."""


class Minting:
    """The tokens of one account for one host of a service."""

    def __init__(
        self, account: Account, host: ServiceHost, placeholder: str, book: Rulebook
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
        """The credential, unless it is to be fetched before the next request."""
        return self._credential if now < self._ends else None

    @property
    def needles(self) -> Needles:
        """What must not come back: the present token and the one before it."""
        return self._credential.needles if self._credential is not None else Needles.none()

    def is_old(self, now: float) -> bool:
        """Whether a new token should be fetched while this one still serves."""
        return now > self._old

    async def fetch(self, upstream: Dialler, trust: ssl.SSLContext) -> None:
        """Fetch a token; whoever comes meanwhile waits for the same one. Raises Unminted."""
        fetching = self._fetching or self.renew(upstream, trust)
        if fetching is None:
            raise Unminted(self._failed[1])
        # One client that leaves must not take the token from the others.
        await asyncio.shield(fetching)

    def renew(self, upstream: Dialler, trust: ssl.SSLContext) -> asyncio.Task[None] | None:
        """Begin to fetch a token, unless one is being fetched or none could be had just now."""
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
                status, body = await self._post(upstream, trust, request)
            token = read_token(status, body)
            made = make_credential(
                token.secret, self._host.inject, self._host.merge, self._placeholder
            )
        except (NoToken, Unusable) as error:
            raise Unminted(error.why) from None
        except Malformed as error:
            raise Unminted(f"the issuer's answer is malformed: {error.why}") from None
        except AddressRefused as error:
            raise Unminted(f"{request.host} is refused: {error.decision.reason}") from None
        except (Unreachable, OSError, TimeoutError) as error:
            raise Unminted(f"{request.host} cannot be reached: {error}") from None
        # The token before this one is still good for a while, so it must not come back either (I7).
        self._credential = replace(made, needles=made.needles | self._last)
        self._last = made.needles
        self._ends = asked + token.expires_in
        self._old = self._ends - min(FRESH, token.expires_in / 2)

    async def _post(
        self, upstream: Dialler, trust: ssl.SSLContext, request: TokenRequest
    ) -> tuple[int, bytes]:
        dialled = await upstream.dial(self._book, Host.parse(request.host), DEFAULT_PORT)
        reader, writer = await asyncio.open_connection(
            sock=dialled.sock, ssl=trust, server_hostname=request.host
        )
        try:
            writer.write(
                f"POST {request.path} HTTP/1.1\r\nHost: {request.host}\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\nAccept: application/json\r\n"
                f"Content-Length: {len(request.body)}\r\nConnection: close\r\n\r\n".encode()
                + request.body
            )
            return await _read_answer(reader)
        finally:
            writer.transport.abort()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        raw = await reader.readuntil(END_OF_HEAD)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Malformed("it has no head") from None
    head = parse_response(raw[: -len(END_OF_HEAD)], "POST", {})
    if head.framing is Framing.LENGTH and head.length <= MAX_ANSWER:
        try:
            return head.status, await reader.readexactly(head.length)
        except asyncio.IncompleteReadError:
            raise Malformed("it is cut off") from None
    if head.framing is Framing.CHUNKED:
        return head.status, await _read_chunks(reader)
    raise Malformed("it has no length, or too much of it")


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks, body = ChunkedReader(None), b""
    while not chunks.done and len(body) <= MAX_ANSWER:
        data = await reader.read(MAX_ANSWER)
        if not data:
            raise Malformed("it is cut off")
        body += chunks.feed(data)
    return body
