"""Requests of LFS: judges their bodies, reads their responses, and makes the transfers.

Used by `http/collecting.py` and `http/outbound.py`; `lfs.py` keeps what an address stands for. The
sandbox never learns where an object is stored, nor the credential for it (I1, I2).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway.bodies import BufferedBody, Collected
from keyhole.gateway.git.batch import BatchRewriter, Instant, tell_error
from keyhole.gateway.git.lfs import Repo, Upload
from keyhole.gateway.git.storage import redirected, tidy
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, RequestUnfit, ResponseUnfit
from keyhole.policy.large_files import LargeFileEndpoint, judge_body
from keyhole.wire.lfs_json import is_lfs_json
from keyhole.wire.lfs_request import MAX_REQUEST

if TYPE_CHECKING:
    from keyhole.gateway.git.lfs import LargeFiles, Transfer
    from keyhole.gateway.git.responses import BodyRewriter
    from keyhole.gateway.requests import AuthorizedRequest, GitOperation
    from keyhole.gateway.session import SessionState
    from keyhole.http.request import RequestHead
    from keyhole.http.response import ResponseHead
    from keyhole.inject.scrub import Needles
    from keyhole.model.host import Host
    from keyhole.policy.policy import Service
    from keyhole.wire.lfs_request import BatchRequest

_OK = 200
_UNAUTHORIZED = 401


class CollectedLargeFile(Collected, frozen=True):
    """The body of an LFS request, and the decision on it."""

    batch: BatchRequest | None = None
    transfer: Transfer | None = None


class LargeFileHost(Protocol):
    """The host of an LFS request."""

    def service(self, name: str) -> Service:
        """A service of this host."""

    def open_transfer(self, request: AuthorizedRequest) -> Transfer:
        """The transfer behind an address that was given out. Raises RequestUnfit."""


class LargeFileBody(BufferedBody):
    """The body of a batch, of a lock, or of a verification."""

    __slots__ = ("_host",)

    def __init__(
        self, request: AuthorizedRequest, state: SessionState, host: LargeFileHost
    ) -> None:
        super().__init__(request, state)
        self._host = host

    @property
    def most(self) -> int:
        """The largest size in bytes."""
        return MAX_REQUEST

    def finish(self) -> Collected:
        """The body that is sent in its place. Raises RequestUnfit."""
        body, request = self._whole(), self.request
        operation = request.operation
        if operation is None or operation.large is None:
            raise RequestUnfit(Reason.LFS_REFUSED, "not a request of LFS")
        if operation.large.endpoint is LargeFileEndpoint.TRANSFER:
            transfer = self._host.open_transfer(request)
            try:
                transfer.check_body(body)
            except Malformed as error:
                raise RequestUnfit(Reason.LFS_REFUSED, error.why) from None
            return CollectedLargeFile(transfer.body, transfer=transfer)
        service = self._host.service(request.service)
        limits = self._state.session.book.policy.limits
        judged = judge_body(service, operation.large, body, largest=limits.body)
        if not judged.decision.allowed:
            raise RequestUnfit(judged.decision.reason, judged.why, judged.decision.rule)
        return CollectedLargeFile(judged.body, batch=judged.batch)


def open_address(
    files: LargeFiles,
    repo: Repo,
    operation: GitOperation,
    head: RequestHead,
    lines: tuple[bytes, ...],
    needles: Needles,
) -> Transfer:
    """The transfer that one of our addresses stands for. Raises RequestUnfit."""
    opaque = operation.large.opaque if operation.large is not None else ""
    upload = Upload.of(head.length, head.lines)
    opened = files.open(repo, opaque, head.method, upload, time.monotonic())
    return opened(lines, needles)


def repo_of(service: Service, operation: GitOperation, host: Host, port: int) -> Repo:
    """The repository of a request for large files."""
    hosts = (each for each in service.hosts if each.inject or each.git_inject)
    credentialed = tuple(pattern for each in hosts for pattern in each.patterns)
    return Repo(host, port, service.name, operation.grant.forge, operation.repository, credentialed)


class BatchResponseReader:
    """The answer to a batch: its addresses become ours."""

    whole = True

    def __init__(
        self, files: LargeFiles, repo: Repo, base: str, batch: BatchRequest, needles: Needles
    ) -> None:
        self._rewriter = (files, repo, base, batch, needles)

    def read(self, head: ResponseHead) -> BodyRewriter | None:
        """As `ResponseReader`."""
        if head.status == _UNAUTHORIZED:
            raise ResponseUnfit(Reason.CREDENTIAL_REFUSED)
        if head.status != _OK:
            return tell_error(head)
        if not is_lfs_json(head.lines):
            raise Malformed("the answer to a batch is not of LFS's type")
        return BatchRewriter(*self._rewriter, Instant(time.monotonic(), time.time()))


class TransferResponseReader:
    """A storage host's answer."""

    whole = False

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def read(self, head: ResponseHead) -> BodyRewriter | Transfer | None:
        """As `ResponseReader`."""
        return redirected(self._transfer, head) or tidy(self._transfer, head)
