"""How requests to one host are judged and dressed: shared by all its connections in a session.

Asked by `inspected.py` for every request. Decides by policy, takes the client's own credentials
off, writes the one that the service gets (I6), and keeps the connections that can be used again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.gateway.minting import Minting
from keyhole.gateway.refusal import HTTP_MALFORMED
from keyhole.inject.canonical import SignedRequest
from keyhole.inject.credential import Credential
from keyhole.inject.injection import SignatureInjection
from keyhole.inject.scrub import Needles
from keyhole.inject.sigv4 import WRITTEN_NAMES, Refusal, SigningKey, check, sign, wants_digest
from keyhole.inject.slots import Place, Slot
from keyhole.inject.surgery import Surgery, written_slots
from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.value import dataclass
from keyhole.policy.forge import find_git_request
from keyhole.policy.request import Request, decide_among, decide_query
from keyhole.wire.httprequest import RequestHead, RequestReader, Treat
from keyhole.wire.websocket import valid_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.origin import Origin
    from keyhole.gateway.session import Interception
    from keyhole.policy.rulebook import HostRules, Rulebook

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


class Misdressed(Exception):
    """The request cannot be given its credential; `reason` is a stable code."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why


class Inspection:
    """One host of one session."""

    def __init__(self, book: Rulebook, interception: Interception, host: Host, port: int) -> None:
        self.host = host
        self.port = port
        self._services = book.services(host, port)
        self._rules = {rules.service.name: rules for rules in self._services}
        self._credentials = {
            name: interception.credential(rules) for name, rules in self._rules.items()
        }
        own = {v for name in self._rules for v in interception.stand_ins.get(name, ())}
        self._decoys = tuple(
            (value, service)
            for service, values in interception.stand_ins.items()
            for value in values
            if value not in own
        )
        # One account's secret may come back in another's answer, also from another port (I7).
        credentials = [interception.credential(rules) for rules in book.rules_of_name(host)]
        self._minting = [each for each in credentials if isinstance(each, Minting)]
        self._needles = Needles.none()
        for each in credentials:
            if isinstance(each, Credential):
                self._needles |= each.needles
        self._scanned = bool(self._needles or self._minting)
        self._retired = False
        scanned = any(credentials)
        merged = {name for rules in self._rules.values() for name, _ in rules.host.merge}
        collected = (*_COLLECTED_ALWAYS, *(_COLLECTED_WHEN_SCANNED if scanned else ()), *merged)
        served = [rules.host for rules in self._rules.values()]
        strip = [slot for each in served for slot in (*each.strip, *written_slots(each.inject))]
        if any(isinstance(way, SignatureInjection) for each in served for way in each.inject):
            strip += [Slot(Place.HEADER, name.decode("ascii")) for name in WRITTEN_NAMES]
        keep = [slot for each in served for slot in each.keep]
        self.surgery = Surgery(strip, keep, collected)
        self.reader = RequestReader(host.name, port, self.surgery.treat, {})
        self.known_answers: dict[bytes, bytes] = {}
        authority = host.name if port == DEFAULT_PORT else f"{host.name}:{port}"
        self._host_line = f"Host: {authority}\r\n".encode("ascii")
        self._decisions: dict[tuple[str, str, str], RequestDecision] = {}
        self._git = any(rules.host.git for rules in self._rules.values())
        self._idle: dict[str, list[Origin]] = {}

    # ── judging ───────────────────────────────────────────────────────────────────────────────────

    def decide(self, head: RequestHead) -> RequestDecision:
        """Policy's word on a request."""
        if head.dns_message:
            return RequestDecision(reason=Reason.DNS_OVER_HTTPS)
        query = head.query or ""
        if query and not self._git:
            # A query is refused or not by itself; what varies in it must not empty the memory.
            refusal = decide_query(query)
            if refusal is not None:
                return refusal
            query = ""
        key = (head.method, head.path, query)
        known = self._decisions.get(key)
        if known is not None:
            return known
        request = Request(head.method, head.path, query)
        decision = decide_among(self._services, request)
        if decision.allowed and self._is_unseen_git(decision, request):
            decision = RequestDecision(reason=Reason.NOT_YET, rule=decision.rule)
        if len(head.path) + len(query) <= MAX_REMEMBERED_TARGET:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def _is_unseen_git(self, decision: RequestDecision, request: Request) -> bool:
        """Whether it is of git and would do what is not looked into yet: a push, or large files."""
        rules = self._rules[decision.service or ""]
        if not (rules.host.git and rules.service.git):
            return False
        path = RequestPath.parse(request.path, opaque_slash=rules.host.encoded_slash)
        found = find_git_request(rules.service.git.forge, path)
        return found is not None and not found.reads(request.query)

    def decoys(self, head: bytes) -> list[str]:
        """Services whose placeholder turned up here, where it stands for nothing."""
        # Not `in`, which takes four times as long: it asks first whether the value is a number.
        return [service for value, service in self._decoys if head.find(value) >= 0]

    # ── dressing ──────────────────────────────────────────────────────────────────────────────────

    def asked(self, raw: bytes, head: RequestHead, decision: RequestDecision) -> Asked | Minting:
        """An allowed request with its credential, or what is to be waited for first."""
        service = decision.service or ""
        credential = self._credentials[service]
        if isinstance(credential, Minting):
            minted = credential.current(time.monotonic())
            if minted is None:
                return credential
            credential = minted
        return Asked(raw, head, decision, service, credential, self.surgery.treat)

    def aging(self, service: str) -> Minting | None:
        """Where to get the next token when the present one will soon be over."""
        if not self._minting:
            return None
        credential = self._credentials[service]
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
        lines = [self._request_line(head, credential), self._host_line, *head.lines]
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
        ranges = rules.host.ranges
        return Dressed(b"".join(lines), asked.service, self.needles(), ranges, key)

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
            raise Misdressed(checked.flaw, checked.why)
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
        """Every secret that requests to this host carry, whichever account's."""
        found = self._needles
        for minting in self._minting:
            found |= minting.needles
        return found

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
                case b"accept-encoding" | b"accept-charset":
                    if not scanned:
                        yield field.line
                case name if name in _RANGES:
                    if not scanned or rules.host.ranges:
                        yield field.line
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
            raise Misdressed(HTTP_MALFORMED, "a WebSocket handshake has one key of 16 bytes")
        return keys[0]

    # ── connections for the next request ──────────────────────────────────────────────────────────

    def take_idle(self, service: str) -> Origin | None:
        """A kept connection of this very service, the last one used first."""
        kept = self._idle.get(service)
        while kept:
            origin = kept.pop()
            if origin.alive:
                return origin
        return None

    def keep_idle(self, service: str, origin: Origin, now: float) -> None:
        """Keep a connection, unless there are enough."""
        kept = self._idle.setdefault(service, [])
        if self._retired or len(kept) >= MAX_IDLE_ORIGINS:
            origin.close()
            return
        origin.idle_since = now
        kept.append(origin)

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long, and forget what the origin closed."""
        for service, kept in self._idle.items():
            for origin in kept:
                if now - origin.idle_since > IDLE_ORIGIN:
                    origin.close()
            self._idle[service] = [origin for origin in kept if origin.alive]

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


_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
"""RFC 9110 §8.6: methods that anticipate content say so even when there is none."""
