"""The answer to a batch of large files on its way: a forge's addresses become ours.

Made by `largefiles.py` for each answer. What stands in it is kept by `lfs.py`; the client gets
opaque addresses on the forge's own host, and of an error its message (I1, I2).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keyhole.model.host import DEFAULT_PORT
from keyhole.model.value import dataclass
from keyhole.policy.forge import LFS_TRANSFERS
from keyhole.wire.httpfield import Malformed
from keyhole.wire.lfsanswer import (
    MAX_ANSWER,
    Link,
    read_batch_answer,
    rewrite_error,
    write_batch_answer,
)
from keyhole.wire.lfsjson import MEDIA_TYPE

if TYPE_CHECKING:
    from keyhole.gateway.lfs import LargeFiles, Repo
    from keyhole.inject.scrub import Needles
    from keyhole.wire.httpresponse import ResponseHead
    from keyhole.wire.lfs import BatchRequest
    from keyhole.wire.lfsanswer import Action

MAX_LIFETIME = 3600
"""Seconds for which an address is good at most. The client is told, and asks again."""

DEFAULT_LIFETIME = 1800
"""Seconds where the forge tells none: as long as GitLab's tokens last at least."""

MAX_SAID = 1024 * 1024
"""Bytes of an error's body that are read past."""


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
        if self._repo.leads_astray(action.address):
            raise Malformed("the answer leads to another repository, or to the forge's API")
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


def tell_error(head: ResponseHead, said: bytes | None = None) -> ErrorRewriter:
    """Make an answer one that clients of LFS take for an error: they read no other type."""
    head.lines = [line for line in head.lines if not line.lower().startswith(b"content-type:")]
    head.lines.append(b"Content-Type: %b\r\n" % MEDIA_TYPE)
    head.unreadable = False
    return ErrorRewriter(said)
