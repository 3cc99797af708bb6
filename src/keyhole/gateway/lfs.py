"""Large files: a forge's own addresses are kept here, and the sandbox gets opaque ones instead.

A batch's answer says where each object is stored and with which fields to ask for it; both carry
credentials (I1). `LargeFiles` keeps them for one session and gives out addresses on the forge's own
host, so that no other host becomes reachable (I2). When one is asked for, `open` says what the
gateway has to send to the storage host: a `Transfer`. Used by `largefiles.py`; how the
storage host's answer is read is in `storage.py`. Values in, values out: nothing here has a socket.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, NoReturn

from keyhole.inject.families import is_claim
from keyhole.inject.lent import is_credential, lent_secrets
from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge, Repository
from keyhole.model.value import dataclass, replace
from keyhole.policy.forge import find_git_request, repository_at
from keyhole.wire.httpfield import HOP_BY_HOP, Malformed, folded, overrides_method
from keyhole.wire.lfs import read_object, write_object
from keyhole.wire.lfsanswer import Verb
from keyhole.wire.lfsjson import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.inject.scrub import Needles
    from keyhole.model.host import HostPattern
    from keyhole.wire.lfs import LargeObject
    from keyhole.wire.lfsanswer import Action, StorageAddress

MAX_ADDRESSES = 4096
"""Addresses that a session has at once: those of twenty full batches."""

MAX_KEPT = 16 * 1024 * 1024
"""Bytes of what a session's addresses stand for."""

_OPAQUE_BYTES = 24
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")

# RFC 9110 §7.6.1, what frames the message, and what the gateway writes itself.
_NOT_SENT = HOP_BY_HOP | frozenset(
    b"host content-length expect accept-encoding user-agent range if-range".split()
)


_STORAGE = {Forge.BITBUCKET: ("rest", "git-lfs", "storage")}
"""Where a forge keeps large files, by the name of their repository: Bitbucket Data Center."""


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
    credentialed: tuple[HostPattern, ...] = ()
    """The hosts of the service that its credential goes to."""

    def is_below(self, address: StorageAddress) -> bool:
        """Whether an address is the repository's own, so that its credential may go there (I4)."""
        if (address.host, address.port) != (self.host, self.port):
            return False
        try:
            path = RequestPath.parse(address.path)
        except Unparsable:
            return False
        git = find_git_request(self.forge, path)
        if git is not None and git.repository != self.repository:
            return False  # a repository within the path of another one
        segments = path.segments
        ends = range(1, len(segments))
        return any(repository_at(self.forge, segments[:i]) == self.repository for i in ends)

    def leads_astray(self, address: StorageAddress) -> bool:
        """Whether an address is on the forge and not in this repository (I3).

        It may be another repository, for which the answer lends what opens it there; or the forge's
        API. A storage host has neither.
        """
        at_forge = (address.host, address.port) == (self.host, self.port) or any(
            pattern.port == address.port and pattern.matches(address.host)
            for pattern in self.credentialed
        )
        return at_forge and not self.is_below(address) and not self._stores_at(address)

    def _stores_at(self, address: StorageAddress) -> bool:
        """Whether the forge keeps this repository's objects there, apart from the repository."""
        storage = _STORAGE.get(self.forge)
        if storage is None:
            return False
        try:
            segments = RequestPath.parse(address.path).segments
        except Unparsable:
            return False
        *repository, _ = segments[len(storage) :] or ("",)
        named = Repository.from_segments(self.forge, tuple(repository))
        return segments[: len(storage)] == storage and named == self.repository


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
    repo: Repo
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


def _is_sent(name: str) -> bool:
    """Whether a field that a forge asks for goes to its storage."""
    plain = folded(name.lower().encode("ascii"))
    return not (plain in _NOT_SENT or overrides_method(plain) or is_claim(plain.decode("ascii")))


def _transfer(
    kept: _Kept, upload: Upload, credential: tuple[bytes, ...], needles: Needles
) -> Transfer:
    action, verb = kept.action, kept.verb
    given = [(name, value) for name, value in action.header if _is_sent(name)]
    names = {name.lower() for name, _ in given}
    lent = lent_secrets(replace(action, header=tuple(given)), kept.large.oid)
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
    if kept.repo.is_below(action.address) and not any(map(is_credential, names)):
        lines += credential
    if verb is not Verb.DOWNLOAD:
        length = len(body) if verb is Verb.VERIFY else kept.large.size
        lines.append(b"Content-Length: %d\r\n" % length)
    return Transfer(
        action.address.host,
        action.address.port,
        verb.method,
        storage_head(verb.method, action.address, lines),
        body,
        kept.large,
        kept.repo,
        needles,
        needles | lent,
    )


def storage_head(method: str, address: StorageAddress, lines: Iterable[bytes]) -> bytes:
    """The head of a request to a storage host, with these fields beside the gateway's own."""
    plain = address.port == DEFAULT_PORT
    authority = address.host.name if plain else f"{address.host}:{address.port}"
    start = f"{method} {address.target} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: git-lfs\r\n"
    # Encoded, an object could not be searched for secrets (I7).
    return b"".join([start.encode("ascii"), b"Accept-Encoding: identity\r\n", *lines, b"\r\n"])
