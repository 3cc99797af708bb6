"""Sends one POST to a token endpoint, over verified TLS, within bounds.

Called by `login_source.py`, from a thread without a loop. The host is a constant of the provider's,
and no sandbox influences it. The dialler of the data plane resolves, judges, dials and verifies it,
under the same policy (I4).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed, UpstreamFailed
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.system.dialler import own_dialler
from keyhole.system.https import HttpsPost, post
from keyhole.vault.login_provider import read_document

if TYPE_CHECKING:
    from keyhole.vault.login_provider import Document, EndpointAccess, LoginTokenRequest

DIALLING = 10.0
"""Seconds for a connection and its TLS; before that nothing is spent."""

MAX_ANSWER = 64 * 1024
"""Bytes of an answer: tokens with claims come to some 6,000 (I9)."""

SPENT = frozenset(
    "invalid_grant refresh_token_expired refresh_token_reused refresh_token_invalidated "
    "refresh_token_revoked".split()
)
"""Codes for a refresh token that is no longer valid (RFC 6749 §5.2, and OpenAI's own)."""


class TokenAnswer(Struct, frozen=True, eq=False):
    """The result of a request. The zero value has neither a token nor a reason."""

    document: Document | None = None
    """The endpoint's answer, if there was one."""
    why: str = ""
    """The reason why there is none, in our own words."""
    spent: bool = False
    """Whether the refresh token is no longer valid, so that asking again is useless."""

    def __repr__(self) -> str:
        return f"TokenAnswer({self.why!r})"


def request_token(request: LoginTokenRequest, reach: EndpointAccess) -> TokenAnswer:
    """Send the request and read the answer. Raises nothing."""
    return asyncio.run(_ask(request, reach))


async def _ask(request: LoginTokenRequest, reach: EndpointAccess) -> TokenAnswer:
    host = Host.parse(request.host)
    try:
        async with asyncio.timeout(min(DIALLING, reach.patience)):
            stream = await own_dialler().dial_verified(
                reach.book(), host, DEFAULT_PORT, reach.context()
            )
    except UpstreamFailed as failed:
        return TokenAnswer(why=f"{request.host} cannot be reached: {failed} ({failed.reason})")
    except OSError as error:
        return TokenAnswer(why=f"{request.host} cannot be reached: {_words(error)}")
    sent = HttpsPost(request.host, request.path, request.kind, request.body, request.agent)
    try:
        async with asyncio.timeout(reach.patience):
            answer = await post(stream, sent, MAX_ANSWER)
    except (OSError, Malformed) as error:
        return TokenAnswer(why=f"{request.host} gave no answer: {_words(error)}")
    return _judge(request.host, answer.status, answer.body)


def _judge(host: str, status: int, body: bytes) -> TokenAnswer:
    found = read_document(body)
    if status == 200 and found is not None:
        return TokenAnswer(found)
    error = (found or {}).get("error")
    code = error.get("code") if isinstance(error, dict) else error
    if 400 <= status < 500 and isinstance(code, str) and code in SPENT:
        return TokenAnswer(why=f"{host} says {code}", spent=True)
    # The body is not shown: it may repeat the request.
    return TokenAnswer(why=f"{host} answered {status}" + (" and no JSON" if status == 200 else ""))


def _words(error: OSError | Malformed) -> str:
    """Our own words or the system's, never received text."""
    if isinstance(error, Malformed):
        return error.why
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.strerror or str(error) or type(error).__name__).lower()
