"""Sends one request to an endpoint that issues tokens, over verified TLS, within bounds.

Called by `login_source.py` and `github_app_source.py`, from threads without a loop, and by the
steps of a login in `oauth/`. No sandbox influences the host. The dialler of the data plane
resolves, judges, dials and verifies it, under the same policy (I4); no redirect is followed.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed, UpstreamFailed
from keyhole.system.dialler import own_dialler
from keyhole.system.event_loop import run_on_loop
from keyhole.system.https import HttpsRequest, exchange
from keyhole.vault.json_document import read_document

if TYPE_CHECKING:
    from keyhole.model.https_url import HttpsUrl
    from keyhole.vault.json_document import Document
    from keyhole.vault.login_provider import EndpointAccess, LoginTokenRequest

DIALLING = 10.0
"""Seconds for a connection and its TLS; before that nothing is spent."""

MAX_ANSWER = 64 * 1024
"""Bytes of an answer: tokens with claims come to some 6,000 (I9)."""

SPENT = frozenset(
    "invalid_grant refresh_token_expired refresh_token_reused refresh_token_invalidated "
    "refresh_token_revoked".split()
)
"""Codes for a refresh token that is no longer valid (RFC 6749 §5.2, and OpenAI's own)."""


class EndpointAnswer(Struct, frozen=True, eq=False):
    """The result of a request. The zero value has neither an answer nor a reason."""

    status: int = 0
    """0: there was no answer."""
    document: Document | None = None
    """The JSON object in it, if it is one."""
    challenges: tuple[str, ...] = ()
    why: str = ""
    """The reason why there is no answer, in our own words."""

    def __repr__(self) -> str:
        return f"EndpointAnswer({self.status}, {self.why!r})"

    @property
    def error(self) -> str:
        """The code of an error (RFC 6749 §5.2), which may be nested; empty if there is none."""
        error = (self.document or {}).get("error")
        code = error.get("code") if isinstance(error, dict) else error
        return code if isinstance(code, str) else ""


class TokenAnswer(Struct, frozen=True, eq=False):
    """The result of a renewal. The zero value has neither a token nor a reason."""

    document: Document | None = None
    """The endpoint's answer, if there was one."""
    why: str = ""
    """The reason why there is none, in our own words."""
    spent: bool = False
    """Whether the refresh token is no longer valid, so that asking again is useless."""

    def __repr__(self) -> str:
        return f"TokenAnswer({self.why!r})"


def request_token(request: LoginTokenRequest, reach: EndpointAccess) -> TokenAnswer:
    """Send the request and judge the answer. Raises nothing."""
    return _judge(request.url.host.name, send_request(request, reach))


def send_request(
    request: LoginTokenRequest, reach: EndpointAccess, limit: int = MAX_ANSWER
) -> EndpointAnswer:
    """Send the request and read `limit` bytes of the answer at most. Raises nothing."""
    where = request.url
    sent = HttpsRequest(
        where.authority,
        where.target,
        request.kind,
        request.body,
        request.agent,
        method=request.method,
        authorization=request.authorization,
        accept=request.accept,
    )
    return run_on_loop(lambda: ask_endpoint(where, sent, reach, limit))


async def ask_endpoint(
    where: HttpsUrl, request: HttpsRequest, reach: EndpointAccess, limit: int = MAX_ANSWER
) -> EndpointAnswer:
    """Send a request to the host of a URL, and read `limit` bytes at most. Raises nothing."""
    host = where.host
    try:
        async with asyncio.timeout(min(DIALLING, reach.patience)):
            stream = await own_dialler().dial_verified(
                reach.book(), host, where.port, reach.context()
            )
    except UpstreamFailed as failed:
        return EndpointAnswer(why=f"{host} cannot be reached: {failed} ({failed.reason})")
    except OSError as error:
        return EndpointAnswer(why=f"{host} cannot be reached: {_words(error)}")
    try:
        async with asyncio.timeout(reach.patience):
            answer = await exchange(stream, request, limit)
    except (OSError, Malformed) as error:
        return EndpointAnswer(why=f"{host} gave no answer: {_words(error)}")
    return EndpointAnswer(answer.status, read_document(answer.body), answer.challenges)


def _judge(host: str, answer: EndpointAnswer) -> TokenAnswer:
    if not answer.status:
        return TokenAnswer(why=answer.why)
    if answer.status == 200 and answer.document is not None:
        return TokenAnswer(answer.document)
    if 400 <= answer.status < 500 and answer.error in SPENT:
        return TokenAnswer(why=f"{host} says {answer.error}", spent=True)
    # The body is not shown: it may repeat the request.
    no_json = " and no JSON" if answer.status == 200 else ""
    return TokenAnswer(why=f"{host} answered {answer.status}{no_json}")


def _words(error: OSError | Malformed) -> str:
    """Our own words or the system's, never received text."""
    if isinstance(error, Malformed):
        return error.why
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.strerror or str(error) or type(error).__name__).lower()
