"""Reads a request to one of git's endpoints: its repository, and the fields that are passed on.

Called by `http/authorize.py` for requests that policy allowed to a git host. It accepts the exact
forms that git itself sends, and refuses a form that a server might read differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.requests import GitOperation
from keyhole.model.decision import Reason
from keyhole.model.errors import RequestUnfit
from keyhole.model.repository import Forge
from keyhole.policy.forge import GitDecision, GitEndpoint
from keyhole.policy.large_files import find_large_files
from keyhole.wire.git_refs import RECEIVE_PACK, REQUEST_TYPES, UPLOAD_PACK
from keyhole.wire.lfs_json import MEDIA_TYPE, is_lfs_json

if TYPE_CHECKING:
    from keyhole.http.request import RequestHead
    from keyhole.model.decision import RequestDecision
    from keyhole.model.repository import Repository
    from keyhole.policy.forge import GitRequest
    from keyhole.policy.policy import GitGrant

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


def read_operation(
    git: GitGrant | None, decision: RequestDecision, head: RequestHead
) -> GitOperation | None:
    """Read an allowed request as git's; None where it is none. Raises RequestUnfit.

    Which repository it is for was read when it was decided, and is not read a second time.
    """
    found = decision.request if isinstance(decision, GitDecision) else None
    if git is None or found is None or found.repository is None:
        return None
    if found.endpoint is GitEndpoint.LFS:
        return _read_large(found, found.repository, git, head)
    ending = _ENDINGS.get(found.endpoint)
    plain = "%" not in head.path or git.forge is Forge.AZURE_DEVOPS  # where names have spaces
    queried = head.query is not None and found.endpoint is not GitEndpoint.REFS
    if ending is None or not head.path.endswith(ending) or not plain or queried:
        raise RequestUnfit(Reason.ENDPOINT_REFUSED, "git's endpoints are written plainly")
    fields: dict[bytes, list[bytes]] = {name: [] for name in _OURS}
    others: list[bytes] = []
    for line in head.lines:
        name, _, value = line.partition(b":")
        fields.get(name.lower(), others).append(value.strip() if name.lower() in fields else line)
    writes = not found.reads(head.query or "")
    encoding = fields[b"content-encoding"]
    if encoding and (found.endpoint is not GitEndpoint.FETCH or encoding != [b"gzip"]):
        raise RequestUnfit(Reason.ENDPOINT_REFUSED, "only a fetch may be compressed, with gzip")
    media = _BODIES.get(found.endpoint)
    if media is not None:
        if fields[b"content-type"] != [media]:
            raise RequestUnfit(Reason.ENDPOINT_REFUSED, f"the body's type is {media.decode()}")
        others.append(b"Content-Type: %b\r\n" % media)
    # A push knows no version 2, and version 1 changes nothing that matters.
    asked = fields[b"git-protocol"]
    version = _VERSIONS.get(asked[0], 0) if len(asked) == 1 and not writes else 0
    if version:
        others.append(b"Git-Protocol: version=%d\r\n" % version)
    base = head.path.removesuffix(ending)
    return GitOperation(
        found.endpoint, found.repository, base, git, writes, version, bool(encoding), tuple(others)
    )


def _read_large(
    found: GitRequest, repository: Repository, git: GitGrant, head: RequestHead
) -> GitOperation:
    large = find_large_files(found, head.path, head.query or "")
    if large is None:
        raise RequestUnfit(Reason.ENDPOINT_REFUSED, "not a request as clients of LFS write it")
    if head.method == "POST" and not is_lfs_json(head.lines):
        raise RequestUnfit(Reason.ENDPOINT_REFUSED, f"the body's type is {MEDIA_TYPE.decode()}")
    # GitHub answers 406 to a client that does not ask for the type.
    fields = (b"Accept: %b\r\n" % MEDIA_TYPE, b"Content-Type: %b\r\n" % MEDIA_TYPE)
    return GitOperation(found.endpoint, repository, large.base, git, False, 0, False, fields, large)
