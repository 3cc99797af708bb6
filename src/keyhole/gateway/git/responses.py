"""Reads the responses to git's and LFS's requests before they are passed to the client.

`http/outbound.py` chooses a reader when it builds a request, and `http/response.py` calls it with
the head of the response. Other responses have no reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.http.field import values_of
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, ResponseUnfit
from keyhole.policy.forge import GitEndpoint
from keyhole.wire.git_refs import (
    ADVERTISEMENT_TYPES,
    RECEIVE_PACK,
    UPLOAD_PACK,
    AdvertisementRewriter,
)

if TYPE_CHECKING:
    from keyhole.gateway.git.lfs import Transfer
    from keyhole.gateway.requests import GitOperation
    from keyhole.http.response import ResponseHead

_OK = 200
_UNAUTHORIZED = 401


class BodyRewriter(Protocol):
    """Rewrites the body of a response; both methods may raise Malformed."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be passed on now."""

    def end(self) -> bytes:
        """The remaining bytes."""


class ResponseReader(Protocol):
    """Reads a response before it is passed on."""

    whole: bool
    """Whether nothing is passed on before all of it was read."""

    def read(self, head: ResponseHead) -> BodyRewriter | Transfer | None:
        """The rewriter of its body, if it has one; or the transfer that replaces this one, where
        the object is elsewhere. Raises Malformed or ResponseUnfit."""


class GitResponseReader:
    """A response to git: of one media type where its body is rewritten."""

    whole = False

    def __init__(self, media: bytes = b"", rewriter: BodyRewriter | None = None) -> None:
        self._media = media
        self._rewriter = rewriter

    def read(self, head: ResponseHead) -> BodyRewriter | None:
        """As `ResponseReader`."""
        if head.status == _UNAUTHORIZED:
            # If it were passed on, git would ask its user for a password and wait.
            raise ResponseUnfit(Reason.CREDENTIAL_REFUSED)
        if self._rewriter is None or head.status != _OK:
            return None
        if values_of(head.lines, b"content-type") != [self._media]:
            raise Malformed("the origin does not speak smart HTTP")
        return self._rewriter


def advertisement_reader(operation: GitOperation) -> ResponseReader:
    """The reader of an advertisement: it offers only what the gateway can judge."""
    if operation.endpoint is not GitEndpoint.REFS:
        return GitResponseReader()
    service = RECEIVE_PACK if operation.writes else UPLOAD_PACK
    rewriter = AdvertisementRewriter(service, options=bool(operation.grant.push_options))
    return GitResponseReader(ADVERTISEMENT_TYPES[service], rewriter)
