"""Requests of LFS: their bodies judged, their answers read, and transfers made by the gateway.

Used by `inspection.py` and `inspected.py`; what an address stands for is kept in `lfs.py`. The
sandbox never learns where an object is stored, nor what opens it there (I1, I2).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.gateway.batch import BatchRewriter, Instant, tell_error
from keyhole.gateway.errand import Unauthorized
from keyhole.gateway.gathering import Gathered, Gathering
from keyhole.gateway.lfs import Repo, Unopened, Upload
from keyhole.gateway.refusal import Unfit
from keyhole.gateway.storage import redirected, tidy
from keyhole.model.decision import Reason
from keyhole.model.value import replace
from keyhole.policy.largefiles import LargeFileEndpoint, judge_body
from keyhole.wire.httpfield import Malformed
from keyhole.wire.lfs import MAX_REQUEST
from keyhole.wire.lfsjson import is_lfs_json

if TYPE_CHECKING:
    from keyhole.gateway.errand import Errand, Rewriter
    from keyhole.gateway.inspection import Asked, Inspection
    from keyhole.gateway.lfs import LargeFiles, Transfer
    from keyhole.gateway.session import SessionState
    from keyhole.inject.scrub import Needles
    from keyhole.model.host import Host
    from keyhole.policy.policy import Service
    from keyhole.wire.httprequest import RequestHead
    from keyhole.wire.httpresponse import ResponseHead
    from keyhole.wire.lfs import BatchRequest

_OK = 200
_UNAUTHORIZED = 401


class Elsewhere(Exception):
    """What was asked for is to be had in another place, which the gateway goes to itself."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__("a storage host redirects")
        self.transfer = transfer


class LargeFileBody(Gathering):
    """The body of a batch, of a lock, or of a verification."""

    __slots__ = ("_inspection",)

    def __init__(self, asked: Asked, state: SessionState, inspection: Inspection) -> None:
        super().__init__(asked, state)
        self._inspection = inspection

    @property
    def most(self) -> int:
        """Bytes that it may have."""
        return MAX_REQUEST

    def finish(self) -> Gathered:
        """What goes on in its place. Raises Unfit."""
        body, asked = self._whole(), self.asked
        errand = asked.errand
        if errand is None or errand.large is None:
            raise Unfit(Reason.LFS_REFUSED, "not a request of LFS")
        if errand.large.endpoint is LargeFileEndpoint.TRANSFER:
            transfer = self._inspection.open_transfer(asked)
            try:
                transfer.check_body(body)
            except Malformed as error:
                raise Unfit(Reason.LFS_REFUSED, error.why) from None
            return Gathered(replace(asked, transfer=transfer), self._set_length(transfer.body))
        service = self._inspection.service(asked.service)
        limits = self._state.session.book.policy.limits
        judged = judge_body(service, errand.large, body, largest=limits.body)
        if not judged.decision.allowed:
            raise Unfit(judged.decision.reason, judged.why, judged.decision.rule)
        return Gathered(replace(asked, batch=judged.batch), self._set_length(judged.body))


def open_address(
    files: LargeFiles,
    repo: Repo,
    errand: Errand,
    head: RequestHead,
    lines: tuple[bytes, ...],
    needles: Needles,
) -> Transfer:
    """What one of our addresses stands for. Raises Unfit."""
    opaque = errand.large.opaque if errand.large is not None else ""
    upload = Upload.of(head.length, head.lines)
    try:
        opened = files.open(repo, opaque, head.method, upload, time.monotonic())
    except Unopened as error:
        raise Unfit(Reason.LFS_REFUSED, error.why) from None
    return opened(lines, needles)


def repo_of(service: Service, errand: Errand, host: Host, port: int) -> Repo:
    """Whose large files a request is about."""
    hosts = (each for each in service.hosts if each.inject or each.git_inject)
    credentialed = tuple(pattern for each in hosts for pattern in each.patterns)
    return Repo(host, port, service.name, errand.grant.forge, errand.repository, credentialed)


class BatchReading:
    """The answer to a batch: its addresses become ours."""

    whole = True

    def __init__(
        self, files: LargeFiles, repo: Repo, base: str, batch: BatchRequest, needles: Needles
    ) -> None:
        self._rewriter = (files, repo, base, batch, needles)

    def read(self, head: ResponseHead) -> Rewriter | None:
        """As `Reading`."""
        if head.status == _UNAUTHORIZED:
            raise Unauthorized
        if head.status != _OK:
            return tell_error(head)
        if not is_lfs_json(head.lines):
            raise Malformed("the answer to a batch is not of LFS's type")
        return BatchRewriter(*self._rewriter, Instant(time.monotonic(), time.time()))


class TransferReading:
    """A storage host's answer."""

    whole = False

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def read(self, head: ResponseHead) -> Rewriter | None:
        """As `Reading`, and raises Elsewhere."""
        onward = redirected(self._transfer, head)
        if onward is not None:
            raise Elsewhere(onward)
        return tidy(self._transfer, head)
