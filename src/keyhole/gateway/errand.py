"""A request of git's own: which of its endpoints, for which repository, and what goes on of it.

Asked by `inspection.py` for requests that policy allowed to a git host. The exact forms are those
of facts: git protocol §1 and §2; what a server might read otherwise is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.gateway.refusal import Unfit
from keyhole.model.decision import Reason
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.model.value import dataclass
from keyhole.policy.forge import GitEndpoint, find_git_request
from keyhole.policy.largefiles import find_large_files
from keyhole.wire.gitrefs import (
    ADVERTISEMENT_TYPES,
    RECEIVE_PACK,
    REQUEST_TYPES,
    UPLOAD_PACK,
    AdvertisementRewriter,
)
from keyhole.wire.httpfield import Malformed, values_of
from keyhole.wire.lfsjson import MEDIA_TYPE, is_lfs_json

if TYPE_CHECKING:
    from keyhole.model.repository import Repository
    from keyhole.policy.forge import GitRequest
    from keyhole.policy.largefiles import LargeFileRequest
    from keyhole.policy.policy import GitGrant
    from keyhole.policy.rulebook import HostRules
    from keyhole.wire.httprequest import RequestHead
    from keyhole.wire.httpresponse import ResponseHead

_OK = 200
_UNAUTHORIZED = 401

_ENDINGS = {
    GitEndpoint.REFS: "/info/refs",
    GitEndpoint.FETCH: f"/{UPLOAD_PACK}",
    GitEndpoint.PUSH: f"/{RECEIVE_PACK}",
}
GIT_ENDINGS = tuple(_ENDINGS.values())
_BODIES = {
    GitEndpoint.FETCH: REQUEST_TYPES[UPLOAD_PACK],
    GitEndpoint.PUSH: REQUEST_TYPES[RECEIVE_PACK],
}
_VERSIONS = {b"version=0": 0, b"version=1": 1, b"version=2": 2}
_OURS = frozenset({b"git-protocol", b"content-encoding", b"accept-encoding", b"content-type"})


class Rewriter(Protocol):
    """Makes another body of an answer's; both may raise Malformed."""

    def feed(self, data: bytes) -> bytes:
        """What may go on now."""

    def end(self) -> bytes:
        """The rest."""


class Unauthorized(Exception):
    """The origin does not accept the credential."""


class Reading(Protocol):
    """How an answer is understood before it goes on."""

    whole: bool
    """Whether none of it goes on before all of it was understood."""

    def read(self, head: ResponseHead) -> Rewriter | None:
        """What makes another body of it, if anything does. Raises Malformed or Unauthorized."""


class GitReading:
    """An answer to git: of one media type where it is rewritten."""

    whole = False

    def __init__(self, media: bytes = b"", rewriter: Rewriter | None = None) -> None:
        self._media = media
        self._rewriter = rewriter

    def read(self, head: ResponseHead) -> Rewriter | None:
        """As `Reading`."""
        if head.status == _UNAUTHORIZED:
            # Passed on, git would ask its user for a password and wait.
            raise Unauthorized
        if self._rewriter is None or head.status != _OK:
            return None
        if values_of(head.lines, b"content-type") != [self._media]:
            raise Malformed("the origin does not speak smart HTTP")
        return self._rewriter


@dataclass(frozen=True, slots=True)
class Errand:
    """One request of git's."""

    endpoint: GitEndpoint
    repository: Repository
    path: str
    """The repository's path as the client wrote it, without the endpoint."""
    grant: GitGrant
    writes: bool
    version: int
    gzip: bool
    fields: tuple[bytes, ...]
    """Fields of the client that go on, as lines."""
    large: LargeFileRequest | None = None
    """What it is of LFS, if it is."""

    @property
    def announces_push(self) -> bool:
        """Whether a push follows that is to be judged."""
        return self.endpoint is GitEndpoint.REFS and self.writes and self.judged

    @property
    def judged(self) -> bool:
        """Whether something is to be looked for in what is pushed."""
        return not self.grant.force or bool(self.grant.deny_paths)

    def reading(self) -> Reading:
        """How the answer is read."""
        if self.endpoint is not GitEndpoint.REFS:
            return GitReading()
        service = RECEIVE_PACK if self.writes else UPLOAD_PACK
        rewriter = AdvertisementRewriter(service, options=bool(self.grant.push_options))
        return GitReading(ADVERTISEMENT_TYPES[service], rewriter)


def read_errand(rules: HostRules, head: RequestHead) -> Errand | None:
    """Read an allowed request as git's; None where it is none. Raises Unfit."""
    git = rules.service.git
    if git is None or not rules.host.git:
        return None
    path = RequestPath.parse(head.path, opaque_slash=rules.host.encoded_slash)
    found = find_git_request(git.forge, path)
    if found is None or found.repository is None:
        return None
    if found.endpoint is GitEndpoint.LFS:
        return _read_large(found, found.repository, git, head)
    ending = _ENDINGS.get(found.endpoint)
    plain = "%" not in head.path or git.forge is Forge.AZURE_DEVOPS  # where names have spaces
    queried = head.query is not None and found.endpoint is not GitEndpoint.REFS
    if ending is None or not head.path.endswith(ending) or not plain or queried:
        raise Unfit(Reason.ENDPOINT_REFUSED, "git's endpoints are written plainly")
    fields: dict[bytes, list[bytes]] = {name: [] for name in _OURS}
    others: list[bytes] = []
    for line in head.lines:
        name, _, value = line.partition(b":")
        fields.get(name.lower(), others).append(value.strip() if name.lower() in fields else line)
    writes = not found.reads(head.query or "")
    encoding = fields[b"content-encoding"]
    if encoding and (found.endpoint is not GitEndpoint.FETCH or encoding != [b"gzip"]):
        raise Unfit(Reason.ENDPOINT_REFUSED, "only a fetch may be compressed, with gzip")
    media = _BODIES.get(found.endpoint)
    if media is not None:
        if fields[b"content-type"] != [media]:
            raise Unfit(Reason.ENDPOINT_REFUSED, f"the body's type is {media.decode()}")
        others.append(b"Content-Type: %b\r\n" % media)
    # A push knows no version 2, and version 1 changes nothing that matters.
    asked = fields[b"git-protocol"]
    version = _VERSIONS.get(asked[0], 0) if len(asked) == 1 and not writes else 0
    if version:
        others.append(b"Git-Protocol: version=%d\r\n" % version)
    base = head.path.removesuffix(ending)
    return Errand(
        found.endpoint, found.repository, base, git, writes, version, bool(encoding), tuple(others)
    )


def _read_large(
    found: GitRequest, repository: Repository, git: GitGrant, head: RequestHead
) -> Errand:
    large = find_large_files(found, head.path, head.query or "")
    if large is None:
        raise Unfit(Reason.ENDPOINT_REFUSED, "not a request as clients of LFS write it")
    if head.method == "POST" and not is_lfs_json(head.lines):
        raise Unfit(Reason.ENDPOINT_REFUSED, f"the body's type is {MEDIA_TYPE.decode()}")
    # GitHub answers 406 to who does not ask for the type (facts: git protocol §9).
    fields = (b"Accept: %b\r\n" % MEDIA_TYPE, b"Content-Type: %b\r\n" % MEDIA_TYPE)
    return Errand(found.endpoint, repository, large.base, git, False, 0, False, fields, large)
