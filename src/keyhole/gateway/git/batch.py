"""Rewrites the response to a batch of large files: a forge's addresses become ours.

Made by `largefiles.py` for each response; `lfs.py` keeps the addresses. The client gets opaque
addresses on the forge's own host, and of an error only the message (I1, I2).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed
from keyhole.model.host import DEFAULT_PORT
from keyhole.policy.forge import LFS_TRANSFERS
from keyhole.wire.lfs_json import MEDIA_TYPE
from keyhole.wire.lfs_response import (
    MAX_ANSWER,
    TransferLink,
    read_batch_answer,
    rewrite_error,
    write_batch_answer,
)

if TYPE_CHECKING:
    from keyhole.gateway.git.lfs import LargeFiles, Repo
    from keyhole.http.response import ResponseHead
    from keyhole.inject.scrub import Needles
    from keyhole.wire.lfs_request import BatchRequest
    from keyhole.wire.lfs_response import TransferAction

MAX_LIFETIME = 3600
"""Seconds for which an address is valid at most. The client knows it, and requests a new one."""

DEFAULT_LIFETIME = 1800
"""Seconds when the forge names none: the shortest lifetime of GitLab's tokens."""

MAX_SAID = 1024 * 1024
"""Bytes of an error's body that are read and dropped."""


class Instant(Struct, frozen=True):
    """A moment, by the loop's clock, which ends addresses, and by the calendar, which forges
    use."""

    now: float
    wall: float


class BatchRewriter:
    """Collects the answer to a batch, parses it, and rebuilds it with our addresses."""

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
        """Returns nothing yet: an answer is judged whole. Raises Malformed."""
        self._data += data
        if len(self._data) > MAX_ANSWER:
            raise Malformed(f"the answer to a batch has at most {MAX_ANSWER} bytes")
        return b""

    def end(self) -> bytes:
        """The answer for the client. Raises Malformed, and then keeps nothing of it."""
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
            links[large.oid, verb] = TransferLink(href, lasts)
        return write_batch_answer(answered, links)

    def _check(self, action: TransferAction) -> None:
        """Gitea copies the request's own Authorization: that goes to the repository alone (I4)."""
        if self._repo.leads_astray(action.address):
            raise Malformed("the answer leads to another repository, or to the forge's API")
        if self._repo.is_below(action.address):
            return
        texts = [action.address.target, *(value for _, value in action.header)]
        if any(self._needles.found_in(text.encode("ascii")) for text in texts):
            raise Malformed("the answer would send the forge's own credential somewhere else")


def lifetime(action: TransferAction, wall: float) -> int:
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
    """An answer that is an error: only its message is passed on, or our own."""

    __slots__ = ("_data", "_said")

    def __init__(self, said: bytes | None = None) -> None:
        """`said` is the body to send in any case; None for a message of LFS."""
        self._said = said
        self._data = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Returns nothing yet."""
        if len(self._data) < MAX_SAID:
            self._data += data
        return b""

    def end(self) -> bytes:
        """The body for the client."""
        return rewrite_error(bytes(self._data)) if self._said is None else self._said


def tell_error(head: ResponseHead, said: bytes | None = None) -> ErrorRewriter:
    """Turn an answer into one that LFS clients take for an error: they read no other type."""
    head.lines = [line for line in head.lines if not line.lower().startswith(b"content-type:")]
    head.lines.append(b"Content-Type: %b\r\n" % MEDIA_TYPE)
    head.unreadable = False
    return ErrorRewriter(said)
