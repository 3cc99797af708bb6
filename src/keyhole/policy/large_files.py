"""Git LFS: parses requests below a repository's `info/lfs`, and decides on their bodies.

Called by the gateway after `forge.py` has allowed path and method. The body of a batch declares
whether it reads or writes, and that of an unlock whether it breaks another user's lock; so these
are decided here, once the body is whole. The gateway sends a body rebuilt from the parsed one.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed
from keyhole.policy.forge import LFS_TRANSFERS, GitEndpoint
from keyhole.wire.lfs_request import LfsOperation, read_batch_request, read_lock_request

if TYPE_CHECKING:
    from keyhole.policy.forge import GitRequest
    from keyhole.policy.policy import Service
    from keyhole.wire.lfs_request import BatchRequest

_OPAQUE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LOCK_QUERY = frozenset({"path", "id", "cursor", "limit", "refspec"})


class LargeFileEndpoint(enum.Enum):
    """LFS's endpoints."""

    BATCH = 0
    LOCKS = 1
    VERIFY_LOCKS = 2
    UNLOCK = 3
    TRANSFER = 4
    """An address that the gateway issued in place of a forge's."""


_LOCK_FIELDS = {
    LargeFileEndpoint.LOCKS: ("path", "ref"),
    LargeFileEndpoint.VERIFY_LOCKS: ("cursor", "limit", "ref"),
    LargeFileEndpoint.UNLOCK: ("force", "ref"),
}


class LargeFileRequest(Struct, frozen=True):
    """A request of LFS: its endpoint, and the path up to `info/lfs` as the client wrote it."""

    endpoint: LargeFileEndpoint
    base: str
    opaque: str = ""
    """The identifier of an address that the gateway issued."""

    def wants_body(self, method: str) -> bool:
        """Whether the body is judged, so that it must be whole before the request is sent."""
        return method == "POST"


class BodyDecision(Struct, frozen=True):
    """The decision on a body, and the body that is sent. The zero value denies."""

    decision: RequestDecision = RequestDecision()
    body: bytes = b""
    batch: BatchRequest | None = None
    """For a batch: the parsed request, which is needed to read the response."""
    why: str = ""
    """A message for the client, where the reason alone does not explain it."""


def find_large_files(found: GitRequest, path: str, query: str) -> LargeFileRequest | None:
    """Read an allowed request to LFS; None if it is not written as clients write it.

    The gateway answers some requests itself. They must not mean something else to a server that
    does not decode, or that distinguishes a trailing slash; and a lock request uses LFS's own
    names, each once.
    """
    base = "/".join(("", *GitEndpoint.LFS.value))
    tail = "/".join((base, *found.below))
    if found.endpoint is not GitEndpoint.LFS or not path.endswith(tail):
        return None
    base = path.removesuffix(tail) + base
    match found.below:
        case ("objects", "batch"):
            return LargeFileRequest(LargeFileEndpoint.BATCH, base)
        case ("locks",) if _is_lock_query(query):
            return LargeFileRequest(LargeFileEndpoint.LOCKS, base)
        case ("locks", "verify"):
            return LargeFileRequest(LargeFileEndpoint.VERIFY_LOCKS, base)
        case ("locks", _, "unlock"):
            return LargeFileRequest(LargeFileEndpoint.UNLOCK, base)
        case (first, name) if first == LFS_TRANSFERS and _OPAQUE.fullmatch(name):
            return LargeFileRequest(LargeFileEndpoint.TRANSFER, base, name)
    return None


def judge_body(
    service: Service, request: LargeFileRequest, body: bytes, *, largest: int
) -> BodyDecision:
    """Decide a request whose body is whole.

    `largest`: bytes that an upload may have, so that the client learns it before it sends them. The
    body of a transfer is judged where its address is resolved.
    """
    fields = _LOCK_FIELDS.get(request.endpoint)
    try:
        if request.endpoint is LargeFileEndpoint.BATCH:
            return _judge_batch(service, read_batch_request(body), largest)
        if fields is None:
            return BodyDecision()
        locks = read_lock_request(body, *fields)
    except Malformed as error:
        return _refused(service, error.why)
    if locks.force and not (service.git and service.git.force):
        # It breaks another user's lock.
        reason, rule = Reason.FORCE_NOT_GRANTED, f"{service.rule}.force"
        return BodyDecision(RequestDecision(reason=reason, rule=rule, service=service.name))
    return BodyDecision(_granted(service), locks.encoded())


def _judge_batch(service: Service, batch: BatchRequest, largest: int) -> BodyDecision:
    git = service.git
    if batch.operation is not LfsOperation.DOWNLOAD:
        if git is None or not (git.push or git.tags):
            rule = f"{service.rule}.push"
            return BodyDecision(
                RequestDecision(reason=Reason.READ_ONLY, rule=rule, service=service.name)
            )
        if any(large.size > largest for large in batch.objects):
            return _refused(service, "an object is larger than limits.body")
    return BodyDecision(_granted(service), batch.encoded(), batch)


def _refused(service: Service, why: str) -> BodyDecision:
    return BodyDecision(RequestDecision(reason=Reason.LFS_REFUSED, service=service.name), why=why)


def _granted(service: Service) -> RequestDecision:
    return RequestDecision(Verdict.ALLOW, Reason.RULE, f"{service.rule}.repos", service.name)


def _is_lock_query(query: str) -> bool:
    """Whether each name is one of LFS's, plainly written and once."""
    names = [field.partition("=")[0] for field in query.split("&")] if query else []
    return len(set(names)) == len(names) and _LOCK_QUERY.issuperset(names)
