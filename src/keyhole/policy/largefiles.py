"""Git LFS: what a request below a repository's `info/lfs` is, and what its body may ask for.

Asked by the gateway after `forge.py` has allowed path and method. A batch says in its body whether
it reads or writes, and giving a lock back whether it breaks another's; so these are decided here,
once the body is whole. What goes on is written anew from what was judged.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.value import dataclass
from keyhole.policy.forge import LFS_TRANSFERS, GitEndpoint
from keyhole.wire.httpfield import Malformed
from keyhole.wire.lfs import Operation, read_batch_request, read_lock_request

if TYPE_CHECKING:
    from keyhole.policy.forge import GitRequest
    from keyhole.policy.policy import Service
    from keyhole.wire.lfs import BatchRequest

_OPAQUE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LOCK_QUERY = frozenset({"path", "id", "cursor", "limit", "refspec"})


class LargeFileEndpoint(enum.Enum):
    """LFS's endpoints."""

    BATCH = 0
    LOCKS = 1
    VERIFY_LOCKS = 2
    UNLOCK = 3
    TRANSFER = 4
    """An address that the gateway gave in the place of a forge's."""


_LOCK_FIELDS = {
    LargeFileEndpoint.LOCKS: ("path", "ref"),
    LargeFileEndpoint.VERIFY_LOCKS: ("cursor", "limit", "ref"),
    LargeFileEndpoint.UNLOCK: ("force", "ref"),
}


@dataclass(frozen=True, slots=True)
class LargeFileRequest:
    """A request of LFS: its endpoint, and the path up to `info/lfs` as the client wrote it."""

    endpoint: LargeFileEndpoint
    base: str
    opaque: str = ""
    """Of an address of the gateway's own: what it is known by."""

    def wants_body(self, method: str) -> bool:
        """Whether the body is judged, so that it must be whole before anything goes on."""
        return method == "POST"


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided on a body, and the body that goes on. Its zero denies."""

    decision: RequestDecision = RequestDecision()
    body: bytes = b""
    batch: BatchRequest | None = None
    """Of a batch: what its answer is read by."""
    why: str = ""
    """For the client, where the reason alone would not tell."""


def find_large_files(found: GitRequest, path: str, query: str) -> LargeFileRequest | None:
    """Read a request to LFS that was allowed; None where it is written in another way than clients
    write it.

    What the gateway answers itself must not be something else to a server that does not decode, or
    that counts a trailing slash; and a lock is asked for by LFS's own names, each once.
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


def judge_body(service: Service, request: LargeFileRequest, body: bytes, *, largest: int) -> Judged:
    """Decide a request whose body is whole.

    `largest`: bytes that an upload may have, so that the client learns it before it sends them. Of
    a transfer, the body is judged by whoever knows what its address stands for.
    """
    fields = _LOCK_FIELDS.get(request.endpoint)
    try:
        if request.endpoint is LargeFileEndpoint.BATCH:
            return _judge_batch(service, read_batch_request(body), largest)
        if fields is None:
            return Judged()
        locks = read_lock_request(body, *fields)
    except Malformed as error:
        return _refused(service, error.why)
    if locks.force and not (service.git and service.git.force):
        # It takes away what another holds.
        reason, rule = Reason.FORCE_NOT_GRANTED, f"{service.rule}.force"
        return Judged(RequestDecision(reason=reason, rule=rule, service=service.name))
    return Judged(_granted(service), locks.encoded())


def _judge_batch(service: Service, batch: BatchRequest, largest: int) -> Judged:
    git = service.git
    if batch.operation is not Operation.DOWNLOAD:
        if git is None or not (git.push or git.tags):
            rule = f"{service.rule}.push"
            return Judged(RequestDecision(reason=Reason.READ_ONLY, rule=rule, service=service.name))
        if any(large.size > largest for large in batch.objects):
            return _refused(service, "an object is larger than limits.body")
    return Judged(_granted(service), batch.encoded(), batch)


def _refused(service: Service, why: str) -> Judged:
    return Judged(RequestDecision(reason=Reason.LFS_REFUSED, service=service.name), why=why)


def _granted(service: Service) -> RequestDecision:
    return RequestDecision(Verdict.ALLOW, Reason.RULE, f"{service.rule}.repos", service.name)


def _is_lock_query(query: str) -> bool:
    """Whether each name is one of LFS's, plainly written and once."""
    names = [field.partition("=")[0] for field in query.split("&")] if query else []
    return len(set(names)) == len(names) and _LOCK_QUERY.issuperset(names)
