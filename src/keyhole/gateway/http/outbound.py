"""Builds the request to the origin from the parsed one, with one credential (I6).

Each inspected host of a session has one `OutboundWriter`, which `stream.py` calls for requests that
`authorize.py` allowed. It writes only fields that were parsed and kept, so never the client's own
credentials.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.gateway.git.bands import BandWatch
from keyhole.gateway.git.largefiles import (
    BatchResponseReader,
    CollectedLargeFile,
    TransferResponseReader,
    open_address,
    repo_of,
)
from keyhole.gateway.git.push_report import PushReport
from keyhole.gateway.git.responses import GitResponseReader, advertisement_reader
from keyhole.gateway.refusal_messages import Form, form_of_call
from keyhole.gateway.upstream.minting import Minting
from keyhole.http.request import OutboundHead, Treatment
from keyhole.inject.canonical import SignedRequest
from keyhole.inject.event_signing import EventSigner
from keyhole.inject.sigv4 import (
    EVENTS,
    SignatureRefusal,
    SigningKey,
    check,
    sign,
    signature_in,
    wants_digest,
)
from keyhole.model.decision import Reason
from keyhole.model.errors import RequestUnfit
from keyhole.model.rule import GRPC
from keyhole.policy.forge import GitEndpoint
from keyhole.wire.git_refs import RECEIVE_PACK, RESULT_TYPES, UPLOAD_PACK
from keyhole.wire.websocket import valid_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.bodies import Collected
    from keyhole.gateway.git.lfs import LargeFiles, Transfer
    from keyhole.gateway.git.push_report import ReportCallback
    from keyhole.gateway.git.responses import ResponseReader
    from keyhole.gateway.http.host import HostFacts
    from keyhole.gateway.requests import AuthorizedRequest, GitOperation
    from keyhole.http.request import RequestHead
    from keyhole.inject.credential import Credential
    from keyhole.inject.scrub import Needles
    from keyhole.policy.body import BodyJudge
    from keyhole.policy.policy import GitGrant, Service
    from keyhole.policy.rulebook import HostRules

RANGES = frozenset({b"range", b"if-range", b"request-range", b"x-ms-range"})
"""Fields that ask for a part of a response; Apache and Azure have spellings of their own."""

_IDENTITY = b"Accept-Encoding: identity\r\n"


class OutboundRequest(Struct):
    """A request to the origin, with the values that are needed to read the response."""

    head: OutboundHead
    """The head, with the credential."""
    service: str
    needles: Needles
    """The needles for the response: the secrets of all accounts at this host."""
    pool: str
    """The name under which its connection may be kept."""
    ranges: bool = False
    websocket_key: bytes = b""
    credentialed: bool = False
    """Whether a credential is written into it."""
    form: Form = Form.JSON
    """The form of the error that the client gets without a response."""
    reader: ResponseReader | None = None
    """Reads the response, if that is not passed on unchanged."""
    transfer: Transfer | None = None
    """For a large file: the transfer to a storage host in place of this host."""
    grant: GitGrant | None = None
    """For a push: the grant by which it was judged."""
    judge: BodyJudge | None = None
    """The judge that has judged it, and that reads its response or a WebSocket's messages."""
    catalogued: bool = False
    """Whether the server is known to read every body that it accepts."""
    events: EventSigner | None = None
    """Signs the body, where that is an event stream of AWS's."""

    @property
    def unread(self) -> bool:
        """Whether nothing of it is read any more once it was sent."""
        return self.reader is None and not self.head.websocket


class OutboundWriter:
    """The requests to one host."""

    __slots__ = ("_facts", "_files", "_minted")

    def __init__(self, facts: HostFacts, files: LargeFiles) -> None:
        self._facts = facts
        self._files = files
        self._minted = [each.needles for each in facts.minting]

    def service(self, name: str) -> Service:
        """A service of this host."""
        return self._facts.rules[name].service

    def catalogued(self, name: str) -> bool:
        """Whether the catalogue knows this host as the service's."""
        return self._facts.rules[name].host.catalogued

    def needles(self) -> Needles:
        """The secrets of all accounts that requests to this host carry or have carried."""
        facts = self._facts
        if facts.minting:
            self._follow_minting()
        return facts.needles

    def _follow_minting(self) -> None:
        """Also search for tokens that were minted since."""
        facts = self._facts
        for number, minting in enumerate(facts.minting):
            if minting.needles is not self._minted[number]:
                self._minted[number] = minting.needles
                facts.searched.refresh(facts.host)

    def wants_body(self, request: AuthorizedRequest) -> bool:
        """Whether the body must be complete before the head is sent, because its hash is signed."""
        credential = request.credential
        if credential is None or credential.signer is None:
            return False
        return wants_digest(self._signed(request.head))

    def build(
        self,
        request: AuthorizedRequest,
        body: Collected | None = None,
        on_report: ReportCallback | None = None,
    ) -> OutboundRequest:
        """The request for the origin. Raises RequestUnfit.

        `on_report` is called with the origin's report on a push.
        """
        operation = request.operation
        if operation is not None:
            large = operation.large
            if large is not None and large.opaque:
                return self._build_transfer(request, body)
        facts, head, credential = self._facts, request.head, request.credential
        rules = facts.rules[request.service]
        key = self._websocket_key(head) if head.websocket else b""
        if operation is not None:
            lines = [*operation.fields, _IDENTITY]
        else:
            lines = head.lines.copy()
            if head.collected or (credential is not None and credential.merge):
                lines += self._put_back(head, rules, credential)
            if facts.scanned:
                lines.append(_IDENTITY)
        events = None
        if credential is not None:
            lines += credential.lines
            if credential.signer is not None:
                written, events = self._sign(request, credential.signer, lines, body)
                lines += written
        stripper = facts.strippers[request.service]
        query = (stripper.query(head.query) or None) if head.query else head.query
        if credential is not None and credential.query:
            query = f"{query}&{credential.query}" if query else credential.query
        outbound = OutboundRequest(
            OutboundHead(
                head.method,
                head.path if query is None else f"{head.path}?{query}",
                facts.authority,
                lines,
                head.length if body is None else len(body.body),
                head.expects_continue and body is None,
                head.websocket,
                head.trailers,
            ),
            request.service,
            self.needles(),
            request.service,
            rules.host.ranges,
            key,
            credential is not None,
            catalogued=rules.host.catalogued,
            events=events,
        )
        if head.word == GRPC:
            outbound.form = form_of_call(head.lines)
        if operation is not None:
            self._read_as_git(outbound, request, operation, body, on_report)
        return outbound

    def _read_as_git(
        self,
        outbound: OutboundRequest,
        request: AuthorizedRequest,
        operation: GitOperation,
        body: Collected | None,
        on_report: ReportCallback | None,
    ) -> None:
        """Set the reader for the response to one of git's requests."""
        outbound.ranges = False
        outbound.form = Form.LFS if operation.large is not None else Form.TEXT
        needles, facts = outbound.needles, self._facts
        if on_report is not None:
            watch = BandWatch(needles, PushReport(on_report, needles))
            outbound.reader = GitResponseReader(RESULT_TYPES[RECEIVE_PACK], watch)
            outbound.grant = operation.grant
        elif operation.endpoint is GitEndpoint.FETCH:
            outbound.reader = GitResponseReader(RESULT_TYPES[UPLOAD_PACK], BandWatch(needles))
        else:
            outbound.reader = advertisement_reader(operation)
        if isinstance(body, CollectedLargeFile) and body.batch is not None:
            service = facts.rules[request.service].service
            repo = repo_of(service, operation, facts.host, facts.port)
            outbound.reader = BatchResponseReader(
                self._files, repo, operation.path, body.batch, needles
            )

    def open_transfer(self, request: AuthorizedRequest) -> Transfer:
        """The transfer behind one of our addresses. Raises RequestUnfit."""
        operation, facts = request.operation, self._facts
        if operation is None:
            raise RequestUnfit(Reason.LFS_REFUSED, "not a request of LFS")
        lines = request.credential.lines if request.credential else ()
        repo = repo_of(self.service(request.service), operation, facts.host, facts.port)
        return open_address(self._files, repo, operation, request.head, lines, self.needles())

    def _build_transfer(
        self, request: AuthorizedRequest, body: Collected | None
    ) -> OutboundRequest:
        transfer = body.transfer if isinstance(body, CollectedLargeFile) else None
        transfer = transfer or self.open_transfer(request)
        return OutboundRequest(
            transfer.head,
            request.service,
            transfer.needles,
            transfer.pool(request.service),
            form=Form.LFS,
            reader=TransferResponseReader(transfer),
            transfer=transfer,
            credentialed=request.credential is not None,
            catalogued=self.catalogued(request.service),
        )

    def question(
        self, service: str, method: str, target: str, lines: list[bytes], length: int
    ) -> OutboundHead:
        """A request of the gateway's own, with the service's credential."""
        credential = self._facts.credentials[service, True]
        if isinstance(credential, Minting):
            credential = credential.current(time.monotonic())
        own = credential.lines if credential is not None else ()
        fields = [_IDENTITY, *own, *lines]
        return OutboundHead(method, target, self._facts.authority, fields, length)

    # ── signatures ────────────────────────────────────────────────────────────────────────────────

    def _signed(self, head: RequestHead) -> SignedRequest:
        lines = head.raw.split(b"\r\n")[1:]
        return SignedRequest(self._facts.host.name, head.method, head.path, head.query, lines)

    def _sign(
        self,
        request: AuthorizedRequest,
        signer: SigningKey,
        lines: list[bytes],
        body: Collected | None,
    ) -> tuple[tuple[bytes, ...], EventSigner | None]:
        """Check the client's signature by its placeholders, and sign the outbound request with the
        real keys. Its body goes on unchanged, or through the signer of its events."""
        now, facts, head = time.time(), self._facts, request.head
        digest = body.digest if body is not None else None
        checked = check(signer, self._signed(head), now, digest)
        if isinstance(checked, SignatureRefusal):
            raise RequestUnfit(checked.flaw, checked.why)
        stripper = facts.strippers[request.service]
        query = stripper.query(head.query) if head.query else head.query
        host_line = f"Host: {facts.authority}\r\n".encode("ascii")
        onward = SignedRequest(facts.host.name, head.method, head.path, query, [host_line, *lines])
        written = sign(signer, checked, onward, now)
        if checked.payload != EVENTS:
            return written, None
        return written, EventSigner(signer, checked, signature_in(written[0]))

    # ── fields ────────────────────────────────────────────────────────────────────────────────────

    def _put_back(
        self, head: RequestHead, rules: HostRules, credential: Credential | None
    ) -> Iterable[bytes]:
        """The collected fields that are passed on, in their permitted form."""
        merge = dict(credential.merge) if credential is not None else {}
        facts = self._facts
        scanned, tags = facts.scanned, facts.tags
        stripper = facts.strippers[rules.service.name]
        for field in head.collected:
            match field.name:
                case b"cookie":
                    allowed = stripper.cookies(field.value)
                    if allowed:
                        yield b"Cookie: %b\r\n" % allowed
                case b"sec-websocket-protocol":
                    allowed = stripper.protocols(field.value) if head.websocket else b""
                    if allowed:
                        yield b"Sec-WebSocket-Protocol: %b\r\n" % allowed
                case b"sec-websocket-key":
                    if head.websocket:
                        yield field.line
                case b"sec-websocket-extensions":
                    pass  # permessage-deflate would hide the frames from the scan
                case b"if-match" | b"if-none-match" if tags is not None:
                    yield b"%b: %b\r\n" % (field.name, tags.open(field.value))
                case b"grpc-accept-encoding" | b"connect-accept-encoding":
                    yield b"%b: identity\r\n" % field.name if scanned else field.line
                case b"accept-encoding" | b"accept-charset":
                    if not scanned:
                        yield field.line
                case name if name in RANGES:
                    if not scanned or rules.host.ranges:
                        value = tags.open(field.value) if tags else field.value
                        yield b"%b: %b\r\n" % (name, value)
                case name if name in merge:
                    flags = [flag.strip() for flag in field.value.split(b",")]
                    wanted = merge.pop(name)
                    flags += [] if wanted in flags else [wanted]
                    yield b"%b: %b\r\n" % (name, b",".join(flags))
                case name:
                    if stripper.treat(name) is not Treatment.DROP:
                        yield field.line
        for name, flag in merge.items():
            yield b"%b: %b\r\n" % (name, flag)

    @staticmethod
    def _websocket_key(head: RequestHead) -> bytes:
        keys = [field.value for field in head.collected if field.name == b"sec-websocket-key"]
        if len(keys) != 1 or not valid_key(keys[0]):
            raise RequestUnfit(
                Reason.HTTP_MALFORMED, "a WebSocket handshake has one key of 16 bytes"
            )
        return keys[0]
