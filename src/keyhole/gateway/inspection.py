"""How requests to one host are judged and dressed: shared by all its connections in a session.

Asked by `inspected.py` for every request. Decides by policy, takes the client's own credentials
off, writes the one that the service gets (I6), and keeps the connections that can be used again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.gateway.bands import BandWatch
from keyhole.gateway.errand import GIT_ENDINGS, Errand, GitReading, Reading, read_errand
from keyhole.gateway.largefiles import BatchReading, TransferReading, open_address, repo_of
from keyhole.gateway.minting import Minting
from keyhole.gateway.origin import Destination
from keyhole.gateway.pushes import Report
from keyhole.gateway.refusal import HTTP_MALFORMED, Form, Unfit
from keyhole.inject.canonical import SignedRequest
from keyhole.inject.injection import SignatureInjection
from keyhole.inject.returned import CONDITIONS, AnswerFields
from keyhole.inject.sigv4 import WRITTEN_NAMES, Refusal, SigningKey, check, sign, wants_digest
from keyhole.inject.slots import Place, Slot
from keyhole.inject.surgery import Surgery, written_slots
from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.value import dataclass
from keyhole.policy.forge import GitEndpoint
from keyhole.policy.request import Request, decide_among, decide_query
from keyhole.wire.gitrefs import RECEIVE_PACK, RESULT_TYPES, UPLOAD_PACK
from keyhole.wire.httpfield import Malformed
from keyhole.wire.httprequest import RequestHead, RequestReader, Treat
from keyhole.wire.websocket import valid_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyhole.gateway.lfs import LargeFiles, Transfer
    from keyhole.gateway.origin import Origin
    from keyhole.gateway.pushes import Told
    from keyhole.gateway.searched import Searched
    from keyhole.gateway.session import Interception
    from keyhole.inject.credential import Credential
    from keyhole.inject.scrub import Needles
    from keyhole.inject.usage import Usage
    from keyhole.policy.policy import GitGrant, Service
    from keyhole.policy.rulebook import HostRules, Rulebook
    from keyhole.wire.httpfield import Memo
    from keyhole.wire.lfs import BatchRequest
    from keyhole.wire.uploadpack import Abilities

MAX_DECISIONS = 1024
"""Decisions remembered per host; an agent asks for the same few paths again and again."""

MAX_REMEMBERED_TARGET = 512
"""Characters of a target whose decision is remembered."""

MAX_IDLE_ORIGINS = 256
"""Connections kept for the next request, per service of a host: as many as a session may have
open by default. One that is dialled anew costs as much as three requests."""

IDLE_ORIGIN = 50.0
"""Seconds after which a kept connection is closed; servers commonly wait 60."""

_COLLECTED_ALWAYS = ("sec-websocket-key", "sec-websocket-protocol", "sec-websocket-extensions")
_RANGES = frozenset({b"range", b"if-range", b"request-range", b"x-ms-range"})
"""What asks for a piece of an answer; Apache and Azure have spellings of their own."""
_COLLECTED_WHEN_SCANNED = (
    "accept-encoding",
    "accept-charset",
    *(name.decode("ascii") for name in _RANGES),
)
"""What would make an answer that cannot be scanned: encoded, or a piece at a time (I7)."""

_IDENTITY = b"Accept-Encoding: identity\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_EXPECT = b"Expect: 100-continue\r\n"
_UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


@dataclass(slots=True)
class Asked:
    """A request that policy allows, as the client sent it, and whose credential it gets."""

    raw: bytes
    head: RequestHead
    decision: RequestDecision
    service: str
    credential: Credential | None
    treat: Treat
    """For the fields behind its body."""
    errand: Errand | None = None
    """What it is of git's, if it is."""
    batch: BatchRequest | None = None
    """Of large files: what is asked for."""
    transfer: Transfer | None = None
    """The same, of one: where it is, once that is known."""
    told: Told | None = None
    """Of a push: who hears what the origin says of its refs."""


@dataclass(slots=True)
class Dressed:
    """A request as it goes to the origin, with what is needed to read the answer."""

    message: bytes
    """Its head, with the credential."""
    service: str
    needles: Needles
    """What must not be in the answer: the secrets of all accounts at this host."""
    ranges: bool = False
    websocket_key: bytes = b""
    credentialed: bool = False
    """Whether a credential is written into it."""
    form: Form = Form.JSON
    """How the client is told that there is no answer."""
    reading: Reading | None = None
    """How the answer is understood, where it is not passed as it is."""
    transfer: Transfer | None = None
    """Where it goes instead of to this host."""
    grant: GitGrant | None = None
    """Of a push: what it was judged by."""
    catalogued: bool = False
    """Whether it goes to a server that is known to read the bodies that it accepts."""


class Inspection:
    """One host of one session."""

    def __init__(
        self,
        book: Rulebook,
        interception: Interception,
        files: LargeFiles,
        searched: Searched,
        host: Host,
        port: int,
    ) -> None:
        self._files = files
        self.host = host
        self.port = port
        self._services = book.services(host, port)
        self._rules = {rules.service.name: rules for rules in self._services}
        self._credentials = {
            (name, git): interception.credential(rules, git=git)
            for name, rules in self._rules.items()
            for git in (False, True)
        }
        own = {v for name in self._rules for v in interception.stand_ins.get(name, ())}
        self._decoys = tuple(
            (value, service)
            for service, values in interception.stand_ins.items()
            for value in values
            if value not in own
        )
        # One account's secret may come back in another's answer, also from another port (I7).
        credentials = [
            interception.credential(rules, git=git)
            for rules in book.rules_of_name(host)
            for git in (False, True)
        ]
        self._minting = [each for each in credentials if isinstance(each, Minting)]
        self._minted = [each.needles for each in self._minting]
        self._searched = searched
        self._needles = searched.of(host)
        counted = any(_counts_tokens(rules) for rules in self._rules.values())
        self._scanned = bool(self._needles or self._minting or counted)
        self._retired = False
        scanned = any(credentials) or self._scanned
        served = [rules.host for rules in self._rules.values()]
        # A key that is signed with is not sent, so nothing that is derived from it comes back; the
        # session token beside it is too long to be guessed by a digest.
        sent = [each for each in credentials if isinstance(each, Minting) or not _signs(each)]
        self._tags = searched.tags.of(host.name) if any(sent) else None
        self._fields: AnswerFields | None = None
        if any(credentials) or self._needles:
            kept = [slot for each in served for slot in each.keep if slot.place is Place.COOKIE]
            returned = [slot for each in served for slot in each.returned]
            self._fields = AnswerFields((*kept, *returned), self._tags)
        merged = {name for rules in self._rules.values() for name, _ in rules.host.merge}
        if self._tags is not None:
            merged |= {name.decode("ascii") for name in CONDITIONS}
        collected = (*_COLLECTED_ALWAYS, *(_COLLECTED_WHEN_SCANNED if scanned else ()), *merged)
        strip = [slot for each in served for slot in (*each.strip, *written_slots(each.inject))]
        if any(isinstance(way, SignatureInjection) for each in served for way in each.inject):
            strip += [Slot(Place.HEADER, name.decode("ascii")) for name in WRITTEN_NAMES]
        keep = [slot for each in served for slot in each.keep]
        self.surgery = Surgery(strip, keep, collected)
        self.reader = RequestReader(host.name, port, self.surgery.treat, {})
        self.known_answers: Memo = {}
        authority = host.name if port == DEFAULT_PORT else f"{host.name}:{port}"
        self._host_line = f"Host: {authority}\r\n".encode("ascii")
        self._decisions: dict[tuple[str, str, str], RequestDecision] = {}
        self._git = any(rules.host.git for rules in self._rules.values())
        self._idle: dict[str, list[Origin]] = {}
        self.abilities: dict[tuple[str, str], Abilities] = {}
        """What repositories' servers can do, by service and path."""

    # ── judging ───────────────────────────────────────────────────────────────────────────────────

    def decide(self, head: RequestHead) -> RequestDecision:
        """Policy's word on a request."""
        if head.dns_message:
            return RequestDecision(reason=Reason.DNS_OVER_HTTPS)
        if head.overrides:
            return RequestDecision(reason=Reason.METHOD_OVERRIDE)
        query = head.query or ""
        if query and not self._git:
            # A query is refused or not by itself; what varies in it must not empty the memory.
            refusal = decide_query(query)
            if refusal is not None:
                return refusal
            query = ""
        word = head.word
        key = (word, head.path, query)
        known = self._decisions.get(key)
        if known is not None:
            return known
        request = Request(word, head.path, query)
        decision = decide_among(self._services, request)
        if len(head.path) + len(query) <= MAX_REMEMBERED_TARGET:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def judge_again(self, asked: Asked) -> Asked | None:
        """A request that another policy allowed, as this one has it; None where it does not.

        Its head is read anew: which of its fields are the client's credentials is the policy's to
        say (I6). What was found out by the terms of another grant proves nothing here.
        """
        try:
            head = self.reader.parse(asked.raw)
            decision = self.decide(head)
            again = self.asked(asked.raw, head, decision) if decision.allowed else None
        except (Malformed, Unfit):
            return None
        if not isinstance(again, Asked) or again.service != asked.service:
            return None
        was, now = (each.errand.grant if each.errand else None for each in (asked, again))
        return again if was == now else None

    def form(self, head: RequestHead) -> Form:
        """How the client that asks this reads a refusal."""
        if self._git and head.path.endswith(GIT_ENDINGS):
            return Form.TEXT
        return Form.LFS if self._git and "/info/lfs/" in head.path else Form.JSON

    def service(self, name: str) -> Service:
        """A service of this host."""
        return self._rules[name].service

    def catalogued(self, name: str) -> bool:
        """Whether the catalogue knows this host as the service's."""
        return self._rules[name].host.catalogued

    def usage(self, name: str) -> tuple[Usage, ...]:
        """How answers of a service of this host say their tokens."""
        return self._rules[name].host.usage

    def decoys(self, head: bytes) -> Sequence[str]:
        """Services whose placeholder turned up here, where it stands for nothing."""
        if not self._decoys:
            return ()
        # Not `in`, which takes four times as long: it asks first whether the value is a number.
        return [service for value, service in self._decoys if head.find(value) >= 0]

    # ── dressing ──────────────────────────────────────────────────────────────────────────────────

    def asked(self, raw: bytes, head: RequestHead, decision: RequestDecision) -> Asked | Minting:
        """An allowed request with its credential, or what is to be waited for first.

        Raises Unfit where it is of git and not in git's form.
        """
        service = decision.service or ""
        errand = read_errand(self._rules[service], head) if self._git else None
        credential = self._credentials[service, errand is not None]
        if isinstance(credential, Minting):
            minted = credential.current(time.monotonic())
            if minted is None:
                return credential
            credential = minted
        return Asked(raw, head, decision, service, credential, self.surgery.treat, errand)

    def aging(self, service: str) -> Minting | None:
        """Where to get the next token when the present one will soon be over."""
        if not self._minting:
            return None
        credential = self._credentials[service, False]
        if isinstance(credential, Minting) and credential.is_old(time.monotonic()):
            return credential
        return None

    def wants_body(self, asked: Asked) -> bool:
        """Whether the body must be here before the head can go: its hash is in the signature."""
        credential = asked.credential
        if credential is None or credential.signer is None:
            return False
        return wants_digest(self._signed(asked))

    def dress(self, asked: Asked, digest: str | None = None) -> Dressed:
        """The request's head as it goes on, re-serialised from its parsed form."""
        head, credential, rules = asked.head, asked.credential, self._rules[asked.service]
        key = self._websocket_key(head) if head.websocket else b""
        errand = asked.errand
        if errand is not None and errand.large is not None and errand.large.opaque:
            return self._dress_transfer(asked)
        lines = [self._request_line(head, credential), self._host_line]
        if errand is not None:
            lines += [*errand.fields, _IDENTITY]
        else:
            lines += head.lines
            if head.collected or (credential is not None and credential.merge):
                lines += self._put_back(head, rules, credential)
            if self._scanned:
                lines.append(_IDENTITY)
        if credential is not None:
            lines += credential.lines
            if credential.signer is not None:
                lines += self._sign(asked, credential.signer, lines[1:], digest)
        if head.length < 0:
            lines.append(_CHUNKED)
        elif head.length or head.method in _WITH_LENGTH:
            lines.append(b"Content-Length: %d\r\n" % head.length)
        if head.expects_continue:
            lines.append(_EXPECT)
        if head.websocket:
            lines.append(_UPGRADE)
        lines.append(b"\r\n")
        message, needles, ranges = b"".join(lines), self.needles(), rules.host.ranges
        opened, known = credential is not None, rules.host.catalogued
        if errand is None:
            return Dressed(message, asked.service, needles, ranges, key, opened, catalogued=known)
        reading = errand.reading()
        if asked.told is not None:
            watch = BandWatch(needles, Report(asked.told, needles))
            reading = GitReading(RESULT_TYPES[RECEIVE_PACK], watch)
        elif errand.endpoint is GitEndpoint.FETCH:
            reading = GitReading(RESULT_TYPES[UPLOAD_PACK], BandWatch(needles))
        if asked.batch is not None:
            repo = repo_of(rules.service, errand, self.host, self.port)
            reading = BatchReading(self._files, repo, errand.path, asked.batch, needles)
        grant = errand.grant if asked.told is not None else None
        return Dressed(
            message,
            asked.service,
            needles,
            form=self.form(head),
            reading=reading,
            credentialed=opened,
            grant=grant,
            catalogued=known,
        )

    def open_transfer(self, asked: Asked) -> Transfer:
        """Where one of our addresses leads. Raises Unfit."""
        errand, lines = asked.errand, asked.credential.lines if asked.credential else ()
        if errand is None:
            raise Unfit(Reason.LFS_REFUSED, "not a request of LFS")
        repo = repo_of(self.service(asked.service), errand, self.host, self.port)
        return open_address(self._files, repo, errand, asked.head, lines, self.needles())

    def _dress_transfer(self, asked: Asked) -> Dressed:
        transfer = asked.transfer or self.open_transfer(asked)
        return Dressed(
            transfer.message,
            asked.service,
            transfer.needles,
            form=Form.LFS,
            reading=TransferReading(transfer),
            transfer=transfer,
            credentialed=asked.credential is not None,
            catalogued=self.catalogued(asked.service),
        )

    def question(
        self, service: str, method: str, target: str, fields: bytes, body: bytes = b""
    ) -> bytes:
        """A request of the gateway's own, with the service's credential."""
        credential = self._credentials[service, True]
        if isinstance(credential, Minting):
            credential = credential.current(time.monotonic())
        lines = [f"{method} {target} HTTP/1.1\r\n".encode("ascii"), self._host_line, _IDENTITY]
        if credential is not None:
            lines += credential.lines
        if body:
            lines.append(b"Content-Length: %d\r\n" % len(body))
        return b"".join([*lines, fields, b"\r\n", body])

    def _signed(self, asked: Asked) -> SignedRequest:
        head = asked.head
        lines = asked.raw.split(b"\r\n")[1:]
        return SignedRequest(self.host.name, head.method, head.path, head.query, lines)

    def _sign(
        self, asked: Asked, signer: SigningKey, lines: list[bytes], digest: str | None
    ) -> tuple[bytes, ...]:
        """Check what the client signed with its placeholders; sign what goes on with the keys."""
        now = time.time()
        checked = check(signer, self._signed(asked), now, digest)
        if isinstance(checked, Refusal):
            raise Unfit(checked.flaw, checked.why)
        head = asked.head
        query = self.surgery.query(head.query) if head.query else head.query
        onward = SignedRequest(self.host.name, head.method, head.path, query, lines)
        return sign(signer, checked, onward, now)

    def _request_line(self, head: RequestHead, credential: Credential | None) -> bytes:
        query = (self.surgery.query(head.query) or None) if head.query else head.query
        if credential is not None and credential.query:
            query = f"{query}&{credential.query}" if query else credential.query
        target = head.path if query is None else f"{head.path}?{query}"
        return f"{head.method} {target} HTTP/1.1\r\n".encode("ascii")

    def needles(self) -> Needles:
        """Every secret that requests to this host carry or carried, whichever account's."""
        for number, minting in enumerate(self._minting):
            if minting.needles is not self._minted[number]:
                self._minted[number] = minting.needles
                self._searched.refresh(self.host)
        return self._needles

    def _put_back(
        self, head: RequestHead, rules: HostRules, credential: Credential | None
    ) -> Iterable[bytes]:
        """Those of the collected fields that go on, as they may."""
        merge = dict(credential.merge) if credential is not None else {}
        scanned = self._scanned
        for field in head.collected:
            match field.name:
                case b"cookie":
                    kept = self.surgery.cookies(field.value)
                    if kept:
                        yield b"Cookie: %b\r\n" % kept
                case b"sec-websocket-protocol":
                    kept = self.surgery.protocols(field.value) if head.websocket else b""
                    if kept:
                        yield b"Sec-WebSocket-Protocol: %b\r\n" % kept
                case b"sec-websocket-key":
                    if head.websocket:
                        yield field.line
                case b"sec-websocket-extensions":
                    pass  # permessage-deflate would hide the frames from the scan
                case b"if-match" | b"if-none-match" if self._tags is not None:
                    yield b"%b: %b\r\n" % (field.name, self._tags.open(field.value))
                case b"accept-encoding" | b"accept-charset":
                    if not scanned:
                        yield field.line
                case name if name in _RANGES:
                    if not scanned or rules.host.ranges:
                        value = self._tags.open(field.value) if self._tags else field.value
                        yield b"%b: %b\r\n" % (name, value)
                case name if name in merge:
                    flags = [flag.strip() for flag in field.value.split(b",")]
                    wanted = merge.pop(name)
                    flags += [] if wanted in flags else [wanted]
                    yield b"%b: %b\r\n" % (name, b",".join(flags))
                case _:
                    yield field.line
        for name, flag in merge.items():
            yield b"%b: %b\r\n" % (name, flag)

    def _websocket_key(self, head: RequestHead) -> bytes:
        keys = [field.value for field in head.collected if field.name == b"sec-websocket-key"]
        if len(keys) != 1 or not valid_key(keys[0]):
            raise Unfit(HTTP_MALFORMED, "a WebSocket handshake has one key of 16 bytes")
        return keys[0]

    # ── connections for the next request ──────────────────────────────────────────────────────────

    def destination(self, transfer: Transfer | None = None) -> Destination:
        """Where a request goes."""
        if transfer is None:
            return Destination(self.host, self.port, self.known_answers, self._fields)
        return Destination(transfer.host, transfer.port, {})

    def take_idle(self, pool: str) -> Origin | None:
        """A kept connection of this very service or storage host, the last one used first."""
        kept = self._idle.get(pool)
        while kept:
            origin = kept.pop()
            if origin.alive():
                return origin
        return None

    def keep_idle(self, pool: str, origin: Origin, now: float) -> None:
        """Keep a connection, unless there are enough."""
        kept = self._idle.get(pool)
        if kept is None:
            kept = self._idle[pool] = []
        if self._retired or len(kept) >= MAX_IDLE_ORIGINS:
            origin.close()
            return
        origin.idle_since = now
        kept.append(origin)

    @property
    def kept(self) -> int:
        """Connections that wait for a request."""
        return sum(map(len, self._idle.values()))

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long, and forget what the origin closed."""
        for service, kept in self._idle.items():
            for origin in kept:
                if now - origin.idle_since > IDLE_ORIGIN:
                    origin.close()
            self._idle[service] = [origin for origin in kept if origin.alive()]

    def retire(self) -> None:
        """It is forgotten while connections may still use it: keep nothing any more."""
        self._retired = True
        self.close()

    def close(self) -> None:
        """Close every kept connection."""
        for kept in self._idle.values():
            for origin in kept:
                origin.close()
        self._idle.clear()


def _signs(credential: Credential | None) -> bool:
    return credential is None or credential.signer is not None


def _counts_tokens(rules: HostRules) -> bool:
    """Whether answers must come so that they can be read."""
    limits = rules.service.limits
    return bool(rules.host.usage and limits is not None and limits.budget.tokens)


_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
"""RFC 9110 §8.6: methods that anticipate content say so even when there is none."""
