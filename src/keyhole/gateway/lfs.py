"""Large files: a forge's own addresses are kept here, and the sandbox gets opaque ones instead.

A batch's answer says where each object is stored and with which fields to ask for it; both carry
credentials (I1). `LargeFiles` keeps them for one session and gives out addresses on the forge's own
host, so that no other host becomes reachable (I2). When one is asked for, `open` says what the
gateway has to send to the storage host: a `Transfer`. Used by `inspection.py` and `exchange.py`;
values in, values out: nothing here has a socket.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

from keyhole.inject.scrub import Needles
from keyhole.inject.slots import GLOBAL_SLOTS, Place
from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.value import dataclass
from keyhole.policy.forge import LFS_TRANSFERS, repository_at
from keyhole.wire.httpfield import FIELD, HOP_BY_HOP, Malformed
from keyhole.wire.httprequest import METHOD_OVERRIDES, TARGET_OVERRIDES
from keyhole.wire.httpresponse import Framing
from keyhole.wire.lfs import (
    MAX_ANSWER,
    MEDIA_TYPE,
    Action,
    BatchRequest,
    LargeObject,
    Link,
    StorageAddress,
    Verb,
    read_batch_answer,
    read_object,
    rewrite_error,
    write_batch_answer,
    write_error,
    write_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from keyhole.model.repository import Forge, Repository
    from keyhole.wire.httpresponse import ResponseHead

MAX_ADDRESSES = 4096
"""Addresses that a session has at once: those of twenty full batches."""

MAX_KEPT = 16 * 1024 * 1024
"""Bytes of what a session's addresses stand for."""

MAX_LIFETIME = 3600
"""Seconds for which an address is good at most. The client is told, and asks again."""

DEFAULT_LIFETIME = 1800
"""Seconds where the forge tells none: as long as GitLab's tokens last at least."""

MAX_HOPS = 2
"""Redirects of a download: as many as the client itself would follow."""

MAX_SAID = 1024 * 1024
"""Bytes of an error's body that are read past."""

MAX_SEARCHED = 64
"""Characters at the end of a lent secret that are searched for, and gone when it comes back: the
signature of a token is there. To render a token of a thousand takes ten milliseconds, each time."""

_OPAQUE_BYTES = 24
_ERRORS = 400
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")

# RFC 9110 §7.6.1, what frames the message, and what the gateway writes itself.
_NOT_SENT = frozenset(
    name.decode("ascii") for name in HOP_BY_HOP | METHOD_OVERRIDES | TARGET_OVERRIDES
) | frozenset("host content-length expect accept-encoding user-agent range if-range".split())
_CREDENTIALS = tuple(slot for slot in GLOBAL_SLOTS if slot.place is Place.HEADER)
_PASSED = frozenset(b"content-type etag last-modified date retry-after".split())
"""Fields of a storage host's answer that a client has a use for. All others stay outside: cookies,
challenges, and the addresses that stand in Location."""

_PLAIN_FIELDS = frozenset(
    "accept content-type cache-control content-disposition date x-amz-date x-amz-acl"
    " x-amz-content-sha256 x-amz-storage-class x-ms-blob-type x-ms-version x-ms-date".split()
)
_PLAIN_QUERY = re.compile(
    r"(?:x-(?:amz|goog)-(?:algorithm|credential|date|expires|signedheaders)|expires"
    r"|s[etvrp]|sk[tev]|response-.*|rs[a-z]{1,2}|x-id|versionid|(?:file)?name|path)",
    re.IGNORECASE,
)
"""What is no secret. Of `AWS4-HMAC-SHA256` as a needle, every download that has it would break."""

_MIXED = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[!-~]{16,}")
"""What may be a secret, where it is not known to be one."""


class Unopened(Exception):
    """An address that stands for nothing here; `why` is for the client."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Repo:
    """Whose large files: a repository, on a host of a service."""

    host: Host
    port: int
    service: str
    forge: Forge
    repository: Repository

    def is_below(self, address: StorageAddress) -> bool:
        """Whether an address is the repository's own, so that its credential may go there (I4)."""
        if (address.host, address.port) != (self.host, self.port):
            return False
        try:
            segments = RequestPath.parse(address.path).segments
        except Unparsable:
            return False
        ends = range(1, len(segments))
        return any(repository_at(self.forge, segments[:i]) == self.repository for i in ends)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Kept:
    repo: Repo
    large: LargeObject
    verb: Verb
    action: Action
    ends: float
    weight: int


@dataclass(frozen=True, slots=True)
class Upload:
    """What a client says of the body that it sends; `length` is negative where it does not say."""

    length: int = 0
    content_type: str = ""

    @classmethod
    def of(cls, length: int, lines: Iterable[bytes]) -> Upload:
        """From the fields of a request that go on."""
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-type":
                return cls(length, value.strip().decode("latin-1"))
        return cls(length)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transfer:
    """What is sent to a storage host for an address that a client asked for."""

    host: Host
    port: int
    method: str
    message: bytes
    """The head, with the credentials that the forge gave for this."""
    body: bytes
    """To be sent in the place of the client's: of a verification."""
    large: LargeObject
    own: Needles
    """Of the service's own credential, which no redirect takes along."""
    needles: Needles
    """What must not be in the answer: these, and what was lent."""
    hops: int = 0

    def check_body(self, body: bytes) -> None:
        """Refuse what a client wants verified that is not this object. Raises Malformed."""
        if self.body and read_object(body) != self.large:
            raise Malformed("the address is of another object")

    def __repr__(self) -> str:
        return f"Transfer({self.method} {self.host}:{self.port})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a transfer cannot be pickled or copied")


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


class LargeFiles:
    """The addresses of one session. Another session's are simply not there."""

    def __init__(self, token: Callable[[], str] | None = None) -> None:
        self._token = token or (lambda: secrets.token_urlsafe(_OPAQUE_BYTES))
        self._kept: dict[str, _Kept] = {}
        self._weight = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._kept)

    def keep(
        self, repo: Repo, large: LargeObject, verb: Verb, action: Action, now: float, lasts: int
    ) -> str:
        """An opaque name for an action; the oldest are forgotten when there are too many (I9)."""
        weight = len(action.address.target) + sum(map(len, map("".join, action.header)))
        opaque = self._token()
        self._kept[opaque] = _Kept(repo, large, verb, action, now + lasts, weight)
        self._weight += weight
        while len(self._kept) > MAX_ADDRESSES or self._weight > MAX_KEPT:
            self._forget(next(iter(self._kept)))
        return opaque

    def open(
        self, repo: Repo, opaque: str, method: str, upload: Upload, now: float
    ) -> Callable[[tuple[bytes, ...], Needles], Transfer]:
        """What an address stands for, or Unopened.

        The result wants the header lines of the service's credential, which are written only where
        the address is the repository's own and came without any; and what must not come back.
        """
        kept = self._kept.get(opaque)
        if kept is None or kept.repo != repo:
            # Whether another repository has it is not said.
            raise Unopened("the address is not known; ask for it again")
        if now >= kept.ends:
            self._forget(opaque)
            raise Unopened("the address is over; ask for it again")
        if method != kept.verb.method:
            raise Unopened(f"the address is for {kept.verb.method} alone")
        if kept.verb is Verb.UPLOAD:
            if upload.length != kept.large.size:
                raise Unopened("the body does not have the size of the object")
            # Once: what was uploaded and verified is not to be replaced.
            self._forget(opaque)
        elif kept.verb is Verb.DOWNLOAD and upload.length:
            raise Unopened("a download has no body")
        return lambda lines, needles: _transfer(kept, upload, lines, needles)

    def _forget(self, opaque: str) -> None:
        self._weight -= self._kept.pop(opaque).weight


def _transfer(
    kept: _Kept, upload: Upload, credential: tuple[bytes, ...], needles: Needles
) -> Transfer:
    action, verb = kept.action, kept.verb
    given = [(name, value) for name, value in action.header if name.lower() not in _NOT_SENT]
    names = {name.lower() for name, _ in given}
    body = b""
    if verb is Verb.VERIFY:
        body = write_object(kept.large)
        given = [(n, v) for n, v in given if n.lower() not in ("content-type", "accept")]
        media = MEDIA_TYPE.decode("ascii")
        given += [("Content-Type", media), ("Accept", media)]
    elif verb is Verb.UPLOAD and "content-type" not in names:
        plain = _CONTENT_TYPE.fullmatch(upload.content_type)
        given.append(("Content-Type", plain[0] if plain else "application/octet-stream"))
    lines = [f"{name}: {value}\r\n".encode("ascii") for name, value in given]
    if kept.repo.is_below(action.address) and not any(map(_is_credential, names)):
        lines += credential
    if verb is not Verb.DOWNLOAD:
        length = len(body) if verb is Verb.VERIFY else kept.large.size
        lines.append(b"Content-Length: %d\r\n" % length)
    return Transfer(
        action.address.host,
        action.address.port,
        verb.method,
        _head(verb.method, action.address, lines),
        body,
        kept.large,
        needles,
        needles | lent_secrets(action, kept.large.oid),
    )


def _head(method: str, address: StorageAddress, lines: Iterable[bytes]) -> bytes:
    plain = address.port == DEFAULT_PORT
    authority = address.host.name if plain else f"{address.host}:{address.port}"
    start = f"{method} {address.target} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: git-lfs\r\n"
    # Encoded, an object could not be searched for secrets (I7).
    return b"".join([start.encode("ascii"), b"Accept-Encoding: identity\r\n", *lines, b"\r\n"])


def _is_credential(name: str) -> bool:
    return any(slot.covers(Place.HEADER, name) for slot in _CREDENTIALS)


# ── secrets that a forge lends ────────────────────────────────────────────────────────────────────


def lent_secrets(action: Action, oid: str) -> Needles:
    """What of an action must not come back (I7): tokens in its fields, signatures in its query.

    What is replaced in an object breaks it, so what is surely none is not searched for.
    """
    needles = Needles.none()
    for text in sorted({*_in_fields(action.header), *_in_query(action.address.query)} - {oid}):
        needles |= Needles.of(text[-MAX_SEARCHED:], "")
    return needles


def _in_fields(header: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in header:
        if name.lower() in _PLAIN_FIELDS or name.lower() in _NOT_SENT:
            continue
        known = _is_credential(name)
        scheme, space, token = value.partition(" ")
        if known and scheme.lower() == "basic":
            yield token.strip()
            yield from _basic_parts(token)
            continue
        # `Credential=…, SignedHeaders=…, Signature=…` as well as `Bearer …`.
        for word in re.split(r";? +|,", token if known and space else value):
            key, equals, rest = word.partition("=")
            named = equals and key.isalpha() and rest.strip("=")
            if named and key.lower() in ("credential", "signedheaders"):
                continue
            piece = rest if named else word
            if known or _MIXED.fullmatch(piece):
                yield piece


def _basic_parts(token: str) -> Iterator[str]:
    """The password, which a server that decodes it may show alone."""
    try:
        decoded = base64.b64decode(token.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return
    _, colon, password = decoded.partition(":")
    yield password if colon else decoded


def _in_query(query: str) -> Iterator[str]:
    for field in query[1:].split("&"):
        name, _, value = field.partition("=")
        if not _PLAIN_QUERY.fullmatch(unquote(name)):
            yield from (text for text in {value, unquote(value)} if _MIXED.fullmatch(text))


# ── a batch's answer ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Instant:
    """When: by the loop's clock, which addresses end by, and by the calendar, as forges say it."""

    now: float
    wall: float


class BatchRewriter:
    """The answer to a batch on its way: gathered, read, and written anew with our addresses."""

    __slots__ = ("_base", "_data", "_files", "_needles", "_repo", "_request", "_when")

    def __init__(
        self,
        files: LargeFiles,
        repo: Repo,
        base: str,
        request: BatchRequest,
        needles: Needles,
        when: Instant,
    ) -> None:
        """`base`: the path up to `info/lfs` as the client wrote it. `needles`: the forge's own."""
        self._files = files
        self._repo = repo
        self._base = base
        self._request = request
        self._needles = needles
        self._when = when
        self._data = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Nothing: an answer is judged whole. Raises Malformed."""
        self._data += data
        if len(self._data) > MAX_ANSWER:
            raise Malformed(f"the answer to a batch has at most {MAX_ANSWER} bytes")
        return b""

    def end(self) -> bytes:
        """The answer for the client. Raises Malformed, and then nothing was kept of it."""
        answered = read_batch_answer(bytes(self._data), self._request)
        found = [(each.large, verb, action) for each in answered for verb, action in each.actions]
        for _, _, action in found:
            self._check(action)
        repo, now = self._repo, self._when.now
        authority = repo.host.name if repo.port == DEFAULT_PORT else f"{repo.host}:{repo.port}"
        links = {}
        for large, verb, action in found:
            lasts = lifetime(action, self._when.wall)
            opaque = self._files.keep(repo, large, verb, action, now, lasts)
            href = f"https://{authority}{self._base}/{LFS_TRANSFERS}/{opaque}"
            links[large.oid, verb] = Link(href, lasts)
        return write_batch_answer(answered, links)

    def _check(self, action: Action) -> None:
        """Gitea copies the request's own Authorization: that goes to the repository alone (I4)."""
        if self._repo.is_below(action.address):
            return
        texts = [action.address.target, *(value for _, value in action.header)]
        if any(self._needles.found_in(text.encode("ascii")) for text in texts):
            raise Malformed("the answer would send the forge's own credential somewhere else")


def lifetime(action: Action, wall: float) -> int:
    """Seconds for which an action's address is good; at least one, for the client reads 0 as ever.

    `expires_in` goes first (LFS's batch API). A date before 1970 is Go's way of saying none.
    """
    seconds: float = DEFAULT_LIFETIME
    if action.expires_in:
        seconds = action.expires_in
    elif action.expires_at:
        try:
            ends = datetime.fromisoformat(action.expires_at)
        except ValueError:
            raise Malformed("expires_at is not a date") from None
        if ends.year >= 1970:
            ends = ends if ends.tzinfo is not None else ends.replace(tzinfo=UTC)
            seconds = ends.timestamp() - wall
    return int(min(max(seconds, 1), MAX_LIFETIME))


class ErrorRewriter:
    """An answer that is an error: its message alone goes on, or words of our own."""

    __slots__ = ("_data", "_said")

    def __init__(self, said: bytes | None = None) -> None:
        """`said` is what goes on whatever comes; None where it is a message of LFS's."""
        self._said = said
        self._data = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Nothing, yet."""
        if len(self._data) < MAX_SAID:
            self._data += data
        return b""

    def end(self) -> bytes:
        """What the client gets."""
        return rewrite_error(bytes(self._data)) if self._said is None else self._said


# ── a storage host's answer ───────────────────────────────────────────────────────────────────────


def redirected(transfer: Transfer, head: ResponseHead) -> Transfer | None:
    """Where a download is to be asked for instead; None when the answer is no redirect.

    GitLab sends downloads on to its object storage. The client must not see that address, which is
    signed, and could not reach it; so the gateway follows it, with no field of the first request
    and for downloads alone: an upload that moved was judged for another host. Raises Malformed.
    """
    if head.status not in _REDIRECTS:
        return None
    if transfer.method != "GET" or transfer.hops >= MAX_HOPS:
        raise Malformed("the storage host sends the transfer somewhere else")
    fields = [found for line in head.lines if (found := FIELD.match(line))]
    places = [found[2].strip(b" \t") for found in fields if found[1].lower() == b"location"]
    if len(places) != 1:
        raise Malformed("a redirect has one Location")
    if transfer.own.found_in(places[0]):
        raise Malformed("the storage host would send the forge's own credential somewhere else")
    address = StorageAddress.parse(places[0].decode("latin-1"))
    needles = transfer.needles | lent_secrets(Action(address), transfer.large.oid)
    return Transfer(
        address.host,
        address.port,
        "GET",
        _head("GET", address, ()),
        b"",
        transfer.large,
        transfer.own,
        needles,
        transfer.hops + 1,
    )


def tidy(transfer: Transfer, head: ResponseHead) -> ErrorRewriter | None:
    """Leave in a storage host's answer what the client may see; None: the body passes as it comes.

    An object passes. Of all else, only whether it worked: S3 answers a wrong signature with the
    string that was signed. Raises Malformed.
    """
    head.lines = [line for line in head.lines if line.partition(b":")[0].lower() in _PASSED]
    if head.status >= _ERRORS:
        head.lines = [line for line in head.lines if not line.lower().startswith(b"content-type:")]
        head.lines.append(b"Content-Type: %b\r\n" % MEDIA_TYPE)
        status = head.status
        if status == 401:
            # The client would ask a person for a password, without end.
            head.status, head.start = 403, b"HTTP/1.1 403 Forbidden\r\n"
        return ErrorRewriter(write_error(f"the storage host answered {status}"))
    if transfer.method != "GET":
        return ErrorRewriter(b"")
    if head.status != 200 or head.encoding:
        raise Malformed("the storage host sends something else than the object")
    if head.framing is Framing.LENGTH and head.length != transfer.large.size:
        raise Malformed("the storage host sends an object of another size")
    return None
