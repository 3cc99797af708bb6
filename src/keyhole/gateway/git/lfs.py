"""Large files: keeps a forge's own addresses, and gives the sandbox opaque ones instead.

The response to a batch names where each object is stored and the fields to request it with; both
carry credentials (I1). `LargeFiles` keeps them for one session and issues addresses on the forge's
own host, so that no other host becomes reachable (I2). When the client requests one, `open` returns
the gateway's request to the storage host: a `Transfer`. Used by `largefiles.py`; `storage.py` reads
the storage host's response. Values in, values out: nothing here has a socket.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from keyhole.http.field import HOP_BY_HOP, folded, overrides_method
from keyhole.http.request import OutboundHead
from keyhole.inject.field_families import is_claim
from keyhole.inject.transfer_secrets import is_credential, transfer_secrets
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, RequestUnfit, Unparsable
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge, Repository
from keyhole.policy.forge import find_git_request, repository_at
from keyhole.wire.lfs_json import MEDIA_TYPE
from keyhole.wire.lfs_request import read_object, write_object
from keyhole.wire.lfs_response import TransferVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.inject.scrub import Needles
    from keyhole.model.host import HostPattern
    from keyhole.wire.lfs_request import LargeObject
    from keyhole.wire.lfs_response import StorageAddress, TransferAction

MAX_ADDRESSES = 4096
"""Addresses of a session at once: those of twenty full batches."""

MAX_KEPT = 16 * 1024 * 1024
"""Bytes that a session's addresses take in memory."""

_OPAQUE_BYTES = 24
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")

# RFC 9110 §7.6.1, what frames the message, and what the gateway writes itself.
_NOT_SENT = HOP_BY_HOP | frozenset(
    b"host content-length expect accept-encoding user-agent range if-range".split()
)


_STORAGE = {Forge.BITBUCKET: ("rest", "git-lfs", "storage")}
"""The path of a forge's storage for large files, apart from their repository: Bitbucket Data
Center."""


class Repo(Struct, frozen=True):
    """A repository with large files, on a host of a service."""

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

        It may be another repository, with the credential for it in the response, or the forge's
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


class _Kept(Struct, frozen=True, eq=False):
    repo: Repo
    large: LargeObject
    verb: TransferVerb
    action: TransferAction
    ends: float
    weight: int

    __repr__ = object.__repr__


class Upload(Struct, frozen=True):
    """The client's declaration of its body; `length` is negative when there is none."""

    length: int = 0
    content_type: str = ""

    @classmethod
    def of(cls, length: int, lines: Iterable[bytes]) -> Upload:
        """Read it from the fields of a request that are passed on."""
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-type":
                return cls(length, value.strip().decode("latin-1"))
        return cls(length)


class Transfer(Struct, frozen=True, eq=False):
    """A request to a storage host, for an address that a client asked for."""

    host: Host
    port: int
    method: str
    head: OutboundHead
    """The head, with the credentials that the forge gave for this object."""
    body: bytes
    """Sent in place of the client's body, for a verification."""
    large: LargeObject
    repo: Repo
    own: Needles
    """The needles of the service's own credential, which no redirect takes along."""
    needles: Needles
    """Everything that must not be in the answer: these, and the forge's credentials for this
    object."""
    hops: int = 0

    def pool(self, service: str) -> str:
        """The key of its connection in the pool; no service's name has a colon."""
        return f"{service}:{self.host}:{self.port}"

    def check_body(self, body: bytes) -> None:
        """Refuse a verification of another object. Raises Malformed."""
        if self.body and read_object(body) != self.large:
            raise Malformed("the address is of another object")

    def __repr__(self) -> str:
        return f"Transfer({self.method} {self.host}:{self.port})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a transfer cannot be pickled or copied")

    __copy__ = __reduce__


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


class LargeFiles:
    """The addresses of one session. Those of another session do not exist here."""

    def __init__(self, token: Callable[[], str] | None = None) -> None:
        self._token = token or (lambda: secrets.token_urlsafe(_OPAQUE_BYTES))
        self._kept: dict[str, _Kept] = {}
        self._weight = 0

    @property
    def count(self) -> int:
        """The number of addresses."""
        return len(self._kept)

    def keep(
        self,
        repo: Repo,
        large: LargeObject,
        verb: TransferVerb,
        action: TransferAction,
        now: float,
        lasts: int,
    ) -> str:
        """An opaque name for an action; the oldest are dropped when there are too many (I9)."""
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
        """Look up an address. Raises RequestUnfit.

        Returns a function that makes the transfer. Its arguments are the header lines of the
        service's credential, which are written only where the address is the repository's own and
        came without any, and the needles that must not come back.
        """
        kept = self._kept.get(opaque)
        if kept is None or kept.repo != repo:
            # Does not reveal whether another repository has it.
            raise _unopened("the address is not known; ask for it again")
        if now >= kept.ends:
            self._forget(opaque)
            raise _unopened("the address is over; ask for it again")
        if method != kept.verb.method:
            raise _unopened(f"the address is for {kept.verb.method} alone")
        if kept.verb is TransferVerb.UPLOAD:
            if upload.length != kept.large.size:
                raise _unopened("the body does not have the size of the object")
            # Once: an uploaded and verified object must not be replaced.
            self._forget(opaque)
        elif kept.verb is TransferVerb.DOWNLOAD and upload.length:
            raise _unopened("a download has no body")
        return lambda lines, needles: _transfer(kept, upload, lines, needles)

    def _forget(self, opaque: str) -> None:
        self._weight -= self._kept.pop(opaque).weight


def _is_sent(name: str) -> bool:
    """Whether a field that a forge asks for is sent to its storage."""
    plain = folded(name.lower().encode("ascii"))
    return not (plain in _NOT_SENT or overrides_method(plain) or is_claim(plain.decode("ascii")))


def _transfer(
    kept: _Kept, upload: Upload, credential: tuple[bytes, ...], needles: Needles
) -> Transfer:
    action, verb = kept.action, kept.verb
    given = [(name, value) for name, value in action.header if _is_sent(name)]
    names = {name.lower() for name, _ in given}
    handed_out = transfer_secrets(replace(action, header=tuple(given)), kept.large.oid)
    body = b""
    if verb is TransferVerb.VERIFY:
        body = write_object(kept.large)
        given = [(n, v) for n, v in given if n.lower() not in ("content-type", "accept")]
        media = MEDIA_TYPE.decode("ascii")
        given += [("Content-Type", media), ("Accept", media)]
    elif verb is TransferVerb.UPLOAD and "content-type" not in names:
        plain = _CONTENT_TYPE.fullmatch(upload.content_type)
        given.append(("Content-Type", plain[0] if plain else "application/octet-stream"))
    lines = [f"{name}: {value}\r\n".encode("ascii") for name, value in given]
    if kept.repo.is_below(action.address) and not any(map(is_credential, names)):
        lines += credential
    length = 0
    if verb is not TransferVerb.DOWNLOAD:
        length = len(body) if verb is TransferVerb.VERIFY else kept.large.size
    return Transfer(
        action.address.host,
        action.address.port,
        verb.method,
        storage_head(verb.method, action.address, lines, length),
        body,
        kept.large,
        kept.repo,
        needles,
        needles | handed_out,
    )


def storage_head(
    method: str, address: StorageAddress, lines: Iterable[bytes], length: int = 0
) -> OutboundHead:
    """The head of a request to a storage host, with these fields beside the gateway's own."""
    plain = address.port == DEFAULT_PORT
    authority = address.host.name if plain else f"{address.host}:{address.port}"
    # Encoded, an object could not be searched for secrets (I7).
    own = (b"User-Agent: git-lfs\r\n", b"Accept-Encoding: identity\r\n")
    return OutboundHead(method, address.target, authority, [*own, *lines], length)


def _unopened(why: str) -> RequestUnfit:
    """The error for an address that stands for nothing here."""
    return RequestUnfit(Reason.LFS_REFUSED, why)
